"""Scores by another metric than that of training, from stored predictions: no model is trained or run again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedweave.errors import BadInput
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import read
from fedweave.metrics import METRICS, Metric, check_fit
from fedweave.results.runs import KEYS, RETRAIN_HINT, Run, Study
from fedweave.results.selection import evaluated_rounds, progress, select_scores

if TYPE_CHECKING:
    from fedweave.runs.predictions import PredictionTable

HALF = 1e-3  # beyond the rounding of a sum of probabilities in half precision


def rescore(study: Study, metric: str) -> Study:
    """`study` with the scores that `metric` gives to the stored predictions.

    Every run stays at the round that validation by its own metric chose: predictions of other rounds are not stored.

    Raises:
        BadInput: an unknown metric, one that does not fit the targets, or a run without predictions.
    """
    for run in study.all_runs:
        check_fit(metric, _kind(run), f"{run.name}: metric")
    parts = (study.runs, study.leaky, study.pooled)
    runs, leaky, pooled = (tuple(_rescore_run(run, METRICS[metric]) for run in part) for part in parts)
    return study._replace(runs=runs, leaky=leaky, pooled=pooled)


def predictions(run: Run, seed: int) -> "PredictionTable | None":
    """Predictions of the reported models of a repetition; None where the file is missing.

    Raises:
        BadInput: a damaged file.
    """
    return _read_predictions(run.folder / f"predictions-{seed}.npz")


def reason_without_predictions(run: Run) -> str:
    """Why the predictions of a run are not stored; empty where they are."""
    stored = str(run.info.get("predictions") or "none: they are of an older version")
    return stored.removeprefix("none: ") if stored.startswith("none: ") else ""


def _kind(run: Run) -> str:
    return str(run.info.get("targets") or ("forecasts" if run.info["metric"] == "mse" else "classes"))


def _read_predictions(path: Path) -> "PredictionTable | None":
    if not path.is_file():
        return None
    from fedweave.runs.predictions import PredictionTable  # imported here, because it loads torch

    arrays = read(path, read_npz, RETRAIN_HINT)
    if missing := {*PredictionTable._fields} - {*arrays}:
        raise BadInput(f"{path}: not readable (no {', '.join(sorted(missing))}); {RETRAIN_HINT}")
    arrays["outputs"] = _restore_sums(arrays["outputs"])
    return PredictionTable(*(arrays[name] for name in PredictionTable._fields))


def _restore_sums(outputs: np.ndarray) -> np.ndarray:
    """Outputs [..., R, C], where probabilities in half precision have the sum one again; else nobody could tell them
    from scores.
    """
    if outputs.dtype != np.float16 or outputs.ndim < 2:
        return outputs
    sums = outputs.sum(-1, keepdims=True, dtype=np.float32)
    are_probabilities = ((outputs >= 0) & (np.abs(sums - 1) < HALF)).all((-2, -1), keepdims=True)
    return outputs / np.where(are_probabilities, sums, 1) if are_probabilities.any() else outputs


def _rescore_run(run: Run, metric: Metric) -> Run:
    if metric.name == run.info["metric"]:
        return run
    from fedweave.runs.predictions import score_pooled_rows

    kind, selected = _kind(run), select_scores(run)
    if not any((run.folder / f"predictions-{seed}.npz").is_file() for seed in run.seeds):
        raise BadInput(
            f"{run.name}: no predictions are stored ({reason_without_predictions(run)}), which {metric.name} needs; "
            f"train it again with metric: {metric.name}, or with evaluate.predictions: true"
        )
    tables = {seed: predictions(run, seed) for seed in run.seeds}
    for table in filter(None, tables.values()):
        metric.check(kind, 1 if kind == "numbers" else table.outputs.shape[-1])
    rows = [row for seed, table in tables.items() for row in _rows(run, metric, kind, seed, table, selected)]
    pooled = {seed: score_pooled_rows(metric, kind, table) for seed, table in tables.items() if table is not None}
    info = {
        **run.info,
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "select": "last",  # the only round with predictions
        "selected_by": run.info.get("selected_by") or run.info["metric"],
        "pooled": pooled,
        "controls": _controls(run, metric, kind),
        **({"progress": progress(run)} if evaluated_rounds(run) > 1 else {}),
    }
    return replace(run, info=info, evaluations=pd.DataFrame(rows, columns=[*KEYS, "value"]))


def _rows(
    run: Run, metric: Metric, kind: str, seed: int, table: "PredictionTable | None", selected: pd.DataFrame
) -> Iterator[tuple[Any, ...]]:
    """Scores of every client and part in one repetition, at the latest round that one of them reports."""
    rounds = selected[selected["seed"] == seed]["round"]
    for test in (False, True):
        for client in run.evaluated_clients:
            rows = np.zeros(0, bool) if table is None else (table.client == client) & (table.test == test)
            value = np.nan if table is None else metric.value(kind, table.targets[rows], table.outputs[rows])
            yield seed, max(int(rounds.max()), 1), run.info["point"], "test" if test else "val", client, value


def _controls(run: Run, metric: Metric, kind: str) -> dict[str, list[float]]:
    """Rule without a model -> the metric of every client's test rows."""
    path = run.folder / "controls.npz"
    table = _read_predictions(path)
    if table is None:
        return {}
    names = read(path, read_npz, RETRAIN_HINT)["names"].tolist()
    rows = [table.client == client for client in run.evaluated_clients]
    return {
        str(name): [metric.value(kind, table.targets[client_rows], outputs[client_rows]) for client_rows in rows]
        for name, outputs in zip(names, table.outputs, strict=True)
    }
