"""Stage `ablate`: a run with one thing changed at a time."""

import numpy as np

from fedweave import archive, assemble, experiment, metrics
from fedweave.errors import Diverged, choose
from fedweave.files import write_table
from fedweave.report.extras import ABLATION_COLUMNS
from pipelines import paths
from pipelines.processes import stage
from pipelines.train import train


def main(name: str) -> None:
    """Train every variant of the ablation `name` and write results/<study>/ablations/<name>/table.csv."""
    study = assemble.load()
    block = study.ablate[choose(name, study.ablate, "params.yaml: ablate")]
    rows, done = [], []
    for variant, settings in block["variants"].items():
        title = f"{name}, {variant}"
        bench, histories, checkpoints = train(study, block["run"], settings, title)
        task, values = bench.method.task, np.stack([archive.selected(bench, history) for history in histories.values()])
        score = metrics.headline(values, task.higher_is_better)
        rows.append((name, variant, bench.run.name, bench.method.label, task.metric, score.mean, score.std))
        print(f"{title}: {task.metric} {score.mean:.4g}", flush=True)
        done.append((checkpoints, bench.run))
    write_table(paths.RESULTS / study.name / "ablations" / name / "table.csv", ABLATION_COLUMNS, rows)
    for checkpoints, run in done:
        experiment.forget(checkpoints, run)


if __name__ == "__main__":
    stage(main, Diverged)
