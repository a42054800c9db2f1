"""Controls without a model: what the most frequent class, the training mean or the last value would score."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedweave.metrics import METRICS
from fedweave.results.formats import format_score
from fedweave.results.runs import Run, Study, by_task
from fedweave.runs import selection

COLUMNS = ["task", "dataset", "setting", "control", "metric", "mean", "client_std", "worst10", "clients"]


def controls(study: Study) -> pd.DataFrame:
    """One row per task and rule, best first within a task. A rule has no seeds; it is compared and tested with nothing.

    `mean`, `client_std` and `worst10` are over the clients whose test rows define the metric, which are those of all
    methods; `clients` counts them.
    """
    rows: list[dict[str, Any]] = []
    for task, runs in by_task(study).items():
        run = next((run for run in runs if run.info.get("controls")), None)
        found = [] if run is None else [_row(task, run, *rule) for rule in run.info["controls"].items()]
        order = -1.0 if runs[0].higher_is_better else 1.0
        rows += sorted(found, key=lambda row: order * row["mean"])
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(task: str, run: Run, name: str, scores: list[float]) -> dict[str, Any]:
    values = np.array([np.nan if value is None else value for value in scores], dtype=np.float64)
    values = values[np.isfinite(values)]
    about = {"task": task, "dataset": run.info["dataset"], "setting": run.info["setting"], "control": name}
    numbers = selection.summarise(values, run.higher_is_better) if len(values) else selection.Summary(*[np.nan] * 3)
    return {**about, "metric": run.info["metric"], **numbers._asdict(), "clients": len(values)}


def unscored(run: Run) -> list[str]:
    """Names of the clients whose test rows do not define the metric in any repetition, though they have test rows."""
    tests = run.evaluations[(run.evaluations["split"] == "test") & (run.evaluations["point"] == run.info["point"])]
    known = tests["value"].notna().groupby(tests["client"]).any()
    metric = METRICS.get(run.info["metric"])
    if metric is not None and not metric.needs:
        return []  # it is defined wherever there is a row
    return [run.client_names[client] for client in known.index[~known]]


def without_score(task: str, runs: list[Run]) -> str:
    """A sentence on the clients that have no score by the metric; empty where all have one."""
    names, metric = unscored(runs[0]), str(runs[0].info["metric"])
    if not names:
        return ""
    needs = METRICS[metric].needs if metric in METRICS else ""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
    why = f", which needs {needs}" if needs else ""
    count = len(runs[0].client_names)
    return f"{task}: {len(names)} of {count} clients have no {metric}{why}: {shown}. No mean or test includes them."


def control_rows(table: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Rows of `controls` as text cells, as those of a leaderboard; without a rank."""
    for row in table.to_dict("records"):
        score, worst = (format_score(row[key], np.nan, row["metric"]) for key in ("mean", "worst10"))
        yield {"method": f"{row['control']} [control]", "metric": row["metric"], "score": score, "worst10": worst}
