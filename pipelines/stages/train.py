"""Stage `train`: one method on one task, every seed, in one process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput, Diverged, choose
from fedweave.federation.engine import Report
from fedweave.files import check_regular, check_writable
from fedweave.pipelines import machine, paths
from fedweave.pipelines.processes import note, stage
from fedweave.runs import archive, assembly, repetition
from fedweave.runs.dependencies import run_digest
from fedweave.study.spec import Run, Study

FAILURES = (Diverged,)  # which end the stage with one line
LINES = 3  # of progress per repetition


def main(key: str) -> None:
    """Train the run `key` of params.yaml and write results/<study>/runs/<key>."""
    study = assembly.load()
    check_writable(paths.run(study.name, choose(key, study.runs, "params.yaml: runs")))
    run = study.run(key, found(study, key))
    with machine.watched() as load:
        bench, histories, checkpoints = train(run, assembly.load_inputs(run), key)
    note("trained")
    for seed, history in histories.items():
        print(
            f"{key}, seed {seed}: test {bench.method.task.metric} {archive.selected(bench, history).mean():.4g}",
            flush=True,
        )
    machine.write(paths.run(study.name, key) / "system.csv", load)
    archive.write(paths.run(study.name, key), bench, histories)
    repetition.forget(checkpoints, bench.run)


class Trained(NamedTuple):
    """A run with its repetitions by seed, and the folder of their checkpoints, to be kept until results are written."""

    bench: repetition.Bench
    histories: dict[int, repetition.History]
    checkpoints: Path


def train(run: Run, inputs: tuple[Dataset, Partition], title: str) -> Trained:
    """Every repetition of `run`, which the log calls `title`; what was killed goes on from its last checkpoint if the code is the same."""
    bench = repetition.prepare(run, *inputs)
    checkpoints = paths.STATE / "checkpoints" / run_digest(run)
    return Trained(bench, repetition.perform_all(bench, checkpoints, lines(title, bench.rounds)), checkpoints)


def found(study: Study, key: str) -> dict[str, Any]:
    """The values that tuning found for the run `key`.

    Raises:
        BadInput: the tune stage has not run, or its file is damaged.
    """
    file = paths.tuned(study.name, study.runs[key].task, key)
    check_regular(file)
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["best"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{file}: not what the tune stage writes ({type(error).__name__}); run it: dvc repro tune"
        ) from error


def lines(key: str, rounds: int) -> Callable[[int, Report], None]:
    """Progress for a log: a few lines a repetition, whatever the number of rounds."""

    def show(seed: int, report: Report) -> None:
        if report.round % max(1, rounds // LINES) == 0:
            lost = f", dropped the uploads of clients {', '.join(map(str, report.dropped))}" if report.dropped else ""
            print(f"{key}, seed {seed}: round {report.round}/{rounds}, loss {report.loss:.4g}{lost}", flush=True)

    return show


if __name__ == "__main__":
    stage(main, *FAILURES)
