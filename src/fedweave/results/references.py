"""Controls that are not ranked: rules, models that an analyst would fit, and models of the pooled rows of all clients.

A rule predicts the most frequent class, the training mean or the last value. An analyst fits a linear model or boosting
to each client, or partial pooling to all. A model of pooled rows is not federated learning: it is an upper bound that
privacy forbids.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.metrics import METRICS, higher_is_better, unit
from fedweave.results.formats import format_score, name_score
from fedweave.results.runs import Run, Study, by_task
from fedweave.results.selection import drop_unscored_clients, select_scores
from fedweave.runs import selection
from fedweave.runs.control_names import POOLED_BOOSTING

COLUMNS = ["task", "dataset", "setting", "control", "metric", "mean", "client_std", "worst10", "clients", "kind"]
RULE, POOLED = "control", "not federated"  # kinds of controls


def controls(study: Study) -> pd.DataFrame:
    """One row per task and control, best first within a task. No control here is ranked or tested as a method.

    `mean`, `client_std` and `worst10` are over the clients whose test rows define the metric, which are those of all
    methods; `clients` counts them. Numbers of a run on pooled rows are averaged over its seeds; the others have none.
    """
    rows: list[dict[str, Any]] = []
    for task, runs in by_task(study).items():
        # A run that was deployed or fitted alone has fewer of them.
        run, labels = max(runs, key=lambda run: len(run.info.get("controls") or {})), {run.label for run in runs}
        # A method of the task is no control of it.
        parts = [_row(run, *rule) for rule in (run.info.get("controls") or {}).items() if rule[0] not in labels]
        parts += [_pooled_row(pooled_run) for pooled_run in study.pooled if pooled_run.task == task]
        order = -1.0 if runs[0].higher_is_better else 1.0
        rows += sorted(parts, key=lambda row: (np.isnan(row["mean"]), order * row["mean"]))
    return pd.DataFrame(rows, columns=COLUMNS)


def methods_not_above(board: pd.DataFrame, rule: Mapping[str, Any], higher_is_better: bool) -> list[str]:
    """The methods of a task's `board` whose mean is not better than that of `rule`, a row of `controls`."""
    sign = 1.0 if higher_is_better else -1.0
    return list(board[sign * board["mean"] <= sign * rule["mean"]]["method"])


def unbeaten_control(board: pd.DataFrame, rules: pd.DataFrame, kind: str = RULE) -> tuple[str, str] | None:
    """(name, score as text) of the best control of a kind, if no method is better; else None.

    Args:
        board, rules: methods and controls of a task.
        kind: of the control.
    """
    rules, scored = rules[(rules["kind"] == kind) & rules["mean"].notna()], board[board["mean"].notna()]
    if rules.empty or scored.empty:
        return None
    metric = str(scored["metric"].iloc[0])
    sign = 1.0 if higher_is_better(metric) else -1.0
    rule = rules.loc[(sign * rules["mean"]).idxmax()]
    if (sign * scored["mean"] > sign * rule["mean"]).any():
        return None
    return str(rule["control"]), f"{format_score(rule['mean'], np.nan, metric)}{unit(metric)}"


def name_unbeaten_control(rules: pd.DataFrame, board: pd.DataFrame) -> str:
    """A sentence on the `unbeaten_control` of the only task of these `controls` and this `board`; empty without one."""
    found = unbeaten_control(board, rules)
    if found is None:
        return ""
    metric = str(board["metric"].iloc[0])
    mean = board["mean"].max() if higher_is_better(metric) else board["mean"].min()
    best = name_score(format_score(mean, np.nan, metric), metric)
    return f"no method is better than the control {found[0]!r}: {best} against {found[1]}"


def _row(run: Run, name: str, scores: list[float]) -> dict[str, Any]:
    values = np.array([np.nan if value is None else value for value in scores], dtype=np.float64)
    values = values[np.isfinite(values)]
    kind = POOLED if name == POOLED_BOOSTING else RULE
    numbers = selection.summarise(values, run.higher_is_better) if len(values) else selection.Summary(*[np.nan] * 3)
    return {**_control_columns(run, name), **numbers._asdict(), "clients": len(values), "kind": kind}


def _control_columns(run: Run, name: str) -> dict[str, Any]:
    where = {"task": run.task, "dataset": run.info["dataset"], "setting": run.info["setting"]}
    return {**where, "control": name, "metric": run.info["metric"]}


def _pooled_row(run: Run) -> dict[str, Any]:
    """The row of a run on pooled rows: at the round that validation chose, as every method."""
    table = drop_unscored_clients(select_scores(run).assign(task=run.task), [run.task] if run.has_splits else [])
    scores = table.pivot(index="seed", columns="client", values="value")
    values = scores.loc[:, scores.notna().any()].to_numpy()
    numbers = selection.summarise_run(values, run.higher_is_better)._asdict() if values.size else {}
    summary = {name: numbers.get(name, np.nan) for name in ("mean", "client_std", "worst10")}
    return {**_control_columns(run, run.label), **summary, "clients": values.shape[1], "kind": POOLED}


def pooling_note(task: str, runs: list[Run]) -> str:
    """A sentence if the rows of a task cannot be pooled, so that this control is missing; else empty."""
    if runs[0].info.get("poolable", True):
        return ""
    return f"{task}: no model on pooled rows is shown as a control: every client has a graph of its own."


def missing_score_note(runs: Sequence[Run]) -> str:
    """A sentence on clients that `drop_unscored_clients` leaves out, as the metric needs more rows; else empty."""
    task, name, has_splits = runs[0].task, str(runs[0].info["metric"]), runs[0].has_splits
    metric = METRICS.get(name)
    if metric is not None and not metric.needs and not metric.is_of_user:
        return ""  # it is defined wherever there is a row
    parts = [run.reported_point for run in runs]
    tests = pd.concat([part[part["split"] == "test"] for part in parts]).assign(task=task)
    scored = drop_unscored_clients(tests, [task] if has_splits else [])
    names = [runs[0].client_names[client] for client in sorted({*tests["client"]} - {*scored["client"]})]
    if not names:
        return ""
    count, verb = format_count(len(runs[0].evaluated_clients), "client"), "has" if len(names) == 1 else "have"
    where = " in some split" * has_splits + (f", which needs {metric.needs}" if metric and metric.needs else "")
    who = f"{len(names)} of {count} {verb} no {name}{where}: {name_clients(names)}"
    return f"{task}: {who}. No mean or test includes them."


def name_clients(names: Sequence[str]) -> str:
    """The first five names, and how many others there are."""
    return ", ".join(names[:5]) + (f" and {format_count(len(names) - 5, 'other')}" if len(names) > 5 else "")


def sampling_note(runs: Sequence[Run]) -> str:
    """A sentence if only a sample of the clients is evaluated; else empty."""
    count, total = len(runs[0].evaluated_clients), len(runs[0].client_names)
    if count == total:
        return ""
    return f"{runs[0].task}: evaluated on {count} of {format_count(total, 'client')}, the same for all methods."


def control_rows(table: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Rows of `controls` as text cells, as those of a leaderboard; without a rank."""
    for row in table.to_dict("records"):
        score, worst = (format_score(row[key], np.nan, row["metric"]) for key in ("mean", "worst10"))
        kind = row.get("kind") or RULE
        yield {"method": f"{row['control']} [{kind}]", "metric": row["metric"], "score": score, "worst10": worst}
