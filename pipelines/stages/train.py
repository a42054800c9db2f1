"""Stage `train`: one method on one task, every seed, in one process."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.data import Dataset, Partition
from fedweave.engine.records import Report
from fedweave.errors import BadInput, ContestantFailed, choose, relocate
from fedweave.files.atomic import check_writable, write_atomic
from fedweave.methods import METHODS
from fedweave.runs import archive, repetition
from fedweave.runs import checkpoints as checkpoint_files
from fedweave.runs.build import LOG
from fedweave.runs.dependencies import inputs_digest, run_digest
from fedweave.runs.inputs import load_inputs
from fedweave.runs.selection import finite_mean
from fedweave.study import validate
from fedweave.study.code import digest
from fedweave.study.spec import PARAMS, RunSpec, StudySpec

from .. import machine, paths
from ..processes import run_main
from . import params_entries

LINES_PER_REPETITION = 3  # of progress


def main(key: str) -> None:
    """Train the run `key` of params.yaml and write results/<study>/runs/<key>."""
    check = params_entries.create_check()
    study = validate.load()
    check_writable(paths.run(study.name, choose(key, study.runs, "params.yaml: runs")))
    run = study.run(key, tuned_values(study, key))
    with machine.record_load() as load:
        try:
            prepared, histories, checkpoints = train(run, load_inputs(run), key, (), paths.run(study.name, key))
        except ContestantFailed as error:
            _keep_failure(paths.run(study.name, key), error)
            return
    _print_logs(paths.run(study.name, key))
    for seed, history in histories.items():
        score, name = finite_mean(archive.select_scores(prepared, history)), prepared.method.task.score_metric.name
        result = f"test {name} {score:.4g}" if math.isfinite(score) else f"no client has a finite test {name}"
        print(f"{key}, seed {seed}: {result}", flush=True)
    machine.write(paths.run(study.name, key) / "system.csv", load)
    archive.write(paths.run(study.name, key), prepared, histories, controls=paths.STATE / "controls")
    check(*params_entries.run_entries(run.name, run.method, key))
    checkpoint_files.record_written(checkpoints, prepared)


def _keep_failure(folder: Path, error: ContestantFailed) -> None:
    """Say why a contestant has no result. The study goes on without it: its folder has no run.json."""
    _print_logs(folder)
    again = f"once it is mended, or to try it again: dvc repro -f -s train@{folder.name}"
    print(f"{error}; the study goes on without it; {again}", flush=True)
    write_atomic(folder / "failed.txt", f"{error}\n")


def _print_logs(folder: Path) -> None:
    """Print what a program has printed, if the run is one of a program."""
    for file in sorted(folder.glob(LOG.format("*"))):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            print(f"{file.stem}: {line}", flush=True)


class TrainingResult(NamedTuple):
    """A run, its repetitions by seed, and the folder of their checkpoints."""

    prepared: repetition.PreparedRun
    histories: dict[int, repetition.History]
    checkpoints: Path


def train(
    run: RunSpec,
    inputs: tuple[Dataset, Partition],
    title: str,
    partition_code: Sequence[Path] = (),
    logs: Path | None = None,
) -> TrainingResult:
    """Train every repetition of `run`; one that was killed continues from its checkpoint of the same code and data, and
    with further seeds the others are not trained again.

    Args:
        inputs: data set and partition.
        title: name of the run in the log.
        partition_code: the code that makes the partition, if the partition is not read from a file.
        logs: folder for what programs print, if the run is one of a program.
    """
    if not METHODS[run.method].has_models:
        from fedweave.contestants.checks import check_terms  # other runs need nothing of it

        check_terms(run, str(PARAMS))
    with relocate({"runs": "params.yaml: runs", "tasks": "params.yaml: tasks"}):
        prepared = repetition.prepare(run, *inputs)
    prepared = prepared.with_logs(logs) if logs else prepared
    parts = [run_digest(run), inputs_digest(run), *([digest(partition_code)] if partition_code else [])]
    checkpoints = paths.STATE / "checkpoints" / "-".join(parts)
    checkpoint_files.forget_repeated(checkpoints, prepared)
    return TrainingResult(
        prepared,
        repetition.run_repetitions(prepared, checkpoints, progress_printer(title, prepared.rounds)),
        checkpoints,
    )


def tuned_values(study: StudySpec, key: str) -> dict[str, Any]:
    """The values of the settings that tuning has chosen for the run `key`.

    Raises:
        BadInput: the tune stage has not run, or its file is damaged.
    """
    file = paths.tuning_result(study.name, study.runs[key].task, key)
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["best"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{file}: not what the tune stage writes ({type(error).__name__}); run it: dvc repro tune"
        ) from error


def progress_printer(key: str, rounds: int) -> Callable[[int, Report], None]:
    """A function that prints progress for a log: a few lines a repetition, for any number of rounds."""

    def show(seed: int, report: Report) -> None:
        if report.round % max(1, rounds // LINES_PER_REPETITION) == 0:
            dropped = (
                f", dropped the uploads of clients {', '.join(map(str, report.dropped))}" if report.dropped else ""
            )
            line = f"{key}, seed {seed}: round {report.round}/{rounds}, loss {report.loss:.4g}{dropped}\n"
            print(line, end="", flush=True)  # in one write: processes of other seeds write to the same log

    return show


if __name__ == "__main__":
    run_main(main)
