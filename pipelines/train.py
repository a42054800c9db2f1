"""Stage `train`: one method on one task, every seed, in one process."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedweave import archive, assemble, experiment
from fedweave.engine import Report
from fedweave.errors import Diverged
from fedweave.spec import Study
from pipelines import paths
from pipelines.processes import stage

LINES = 3  # of progress per repetition


def main(key: str) -> None:
    """Train the run `key` of params.yaml and write results/<study>/runs/<key>."""
    study = assemble.load()
    bench, histories, checkpoints = train(study, key)
    for seed, history in histories.items():
        print(f"{key}, seed {seed}: test {bench.method.task.metric} {archive.selected(bench, history).mean():.4g}", flush=True)
    archive.write(paths.run(study.name, key), bench, histories)
    experiment.forget(checkpoints, bench.run)


class Trained(NamedTuple):
    """A run with its repetitions by seed, and the folder of their checkpoints, to be kept until results are written."""

    bench: experiment.Bench
    histories: dict[int, experiment.History]
    checkpoints: Path


def train(study: Study, key: str, settings: Mapping[str, Any] | None = None, title: str = "") -> Trained:
    """Every repetition of the run `key` with what tuning found for it, overridden by `settings`; the log calls it `title`.

    What was killed goes on from its last checkpoint, provided that the code is the same.
    """
    found = json.loads(paths.tuned(study.name, study.runs[key].task, key).read_text(encoding="utf-8"))
    run = study.run(key, found["best"], settings)
    bench = experiment.prepare(run, *assemble.load_inputs(run))
    checkpoints = paths.STATE / "checkpoints" / paths.code_digest(run.method)
    return Trained(bench, experiment.perform_all(bench, checkpoints, lines(title or key, run.train.rounds)), checkpoints)


def lines(key: str, rounds: int) -> Callable[[int, Report], None]:
    """Progress for a log: a few lines a repetition, whatever the number of rounds."""

    def show(seed: int, report: Report) -> None:
        if report.round % max(1, rounds // LINES) == 0:
            print(f"{key}, seed {seed}: round {report.round}/{rounds}, loss {report.loss:.4g}", flush=True)

    return show


if __name__ == "__main__":
    stage(main, Diverged)
