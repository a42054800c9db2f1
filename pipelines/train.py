"""Stage `train`: one method on one task, every seed, in one process."""

import json
from collections.abc import Callable

from fedweave import assemble, experiment
from fedweave.engine import Report
from pipelines import paths
from pipelines.processes import stage

LINES = 3  # of progress per repetition


def main(key: str) -> None:
    """Train the run `key` of params.yaml and write results/<study>/runs/<key>.

    A killed stage goes on from its last checkpoint when it is run again.
    """
    study = assemble.load()
    found = json.loads(paths.tuned(study.name, study.runs[key].task, key).read_text(encoding="utf-8"))
    run = study.run(key, found["best"])
    bench = experiment.prepare(run, *assemble.load_inputs(run))
    checkpoints = paths.STATE / "checkpoints" / paths.code_digest(run.method)
    checkpoints.mkdir(parents=True, exist_ok=True)
    histories = experiment.perform_all(bench, checkpoints, lines(key, run.train.rounds))
    for seed, history in histories.items():
        print(f"{key}, seed {seed}: test {bench.method.task.metric} {experiment.selected(bench, history).mean():.4g}", flush=True)
    experiment.write(paths.run(study.name, key), bench, histories)
    experiment.forget(checkpoints, run)


def lines(key: str, rounds: int) -> Callable[[int, Report], None]:
    """Progress for a log: a few lines a repetition, whatever the number of rounds."""

    def show(seed: int, report: Report) -> None:
        if report.round % max(1, rounds // LINES) == 0:
            print(f"{key}, seed {seed}: round {report.round}/{rounds}, loss {report.loss:.4g}", flush=True)

    return show


if __name__ == "__main__":
    stage(main, experiment.Diverged)
