"""Stage `ablate`: a run with one thing changed at a time."""

import csv
import io
import json

from fedweave import assemble, experiment
from fedweave.errors import choose
from fedweave.files import write_atomic
from fedweave.report.extras import ABLATION_COLUMNS
from pipelines import paths
from pipelines.processes import stage
from pipelines.train import lines


def main(name: str) -> None:
    """Train every variant of the ablation `name` and write results/<study>/ablations/<name>/table.csv."""
    study = assemble.load()
    block = study.ablate[choose(name, study.ablate, "params.yaml: ablate")]
    key = block["run"]
    found = json.loads(paths.tuned(study.name, study.runs[key].task, key).read_text(encoding="utf-8"))
    rows, done = [], []
    for variant, settings in block["variants"].items():
        run = study.run(key, found["best"], settings)
        bench = experiment.prepare(run, *assemble.load_inputs(run))
        checkpoints = paths.STATE / "checkpoints" / paths.code_digest(run.method)
        checkpoints.mkdir(parents=True, exist_ok=True)
        title = f"{name}, {variant}"
        histories = experiment.perform_all(bench, checkpoints, lines(title, run.train.rounds))
        metric = bench.method.task.metric
        score = experiment.headline(bench, histories)[metric]
        rows.append((name, variant, run.name, bench.method.label, metric, score["mean"], score["std"]))
        print(f"{title}: {metric} {score['mean']:.4g}", flush=True)
        done.append((checkpoints, run))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([ABLATION_COLUMNS, *rows])
    write_atomic(paths.RESULTS / study.name / "ablations" / name / "table.csv", text.getvalue())
    for checkpoints, run in done:
        experiment.forget(checkpoints, run)


if __name__ == "__main__":
    stage(main, experiment.Diverged)
