"""Sentences on controls: rules without a model, models that an analyst would fit, models of pooled rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.metrics import METRICS, unit
from fedweave.report.graph_summary import MOST_TASKS
from fedweave.results import POOLED, RULE, Study, Tables, by_task, format_score, methods_not_above, pooling_note
from fedweave.results.verdicts import join_names


def control_warnings(study: Study, tables: Tables) -> tuple[list[str], bool]:
    """(sentences on methods that are not better than a control, whether a leader is among them).

    These are comparisons of numbers: a control has no seeds, so there is no test.
    """
    sentences: list[tuple[str, bool]] = []
    for task, runs in by_task(study).items():
        board = tables.board[tables.board["task"] == task]
        rules = tables.controls[(tables.controls["task"] == task) & (tables.controls["kind"] == RULE)]
        sentences += _sentences(task, board, rules, runs[0].higher_is_better)
    leader_tasks = [task for task, leader in sentences if leader]
    if len(leader_tasks) > MOST_TASKS:
        count = tables.board["task"].nunique()
        tasks = f"{len(leader_tasks)} of {count} tasks"
        return [f"On {tasks} no method is better than the best control (table controls.csv)."], True
    lines = [sentence for sentence, leader in sorted(sentences, key=lambda one: not one[1])]
    return lines if len(lines) <= MOST_TASKS else [line for line, leader in sentences if leader], bool(leader_tasks)


def _sentences(task: str, board: pd.DataFrame, rules: pd.DataFrame, higher: bool) -> Iterator[tuple[str, bool]]:
    """(sentence, whether it is about the leader) on the best rule, if some method is not better than it."""
    finite = board[board["mean"].notna()]
    for rule in rules[rules["mean"].notna()].to_dict("records")[:1]:
        below = methods_not_above(finite, rule, higher)
        metric = str(rule["metric"])
        control = f"{rule['control']} ({format_score(rule['mean'], np.nan, metric)}{unit(metric)})"
        if below and len(below) == len(finite):
            best = finite.iloc[0]
            end = f"the best, {best['method']}, has {format_score(best['mean'], np.nan, metric)}"
            yield f"{task}: no method is better than the control {control}; {end}.", True
        elif below:
            count = f"{len(below)} of {format_count(len(finite), 'method')} {'is' if len(below) == 1 else 'are'}"
            yield f"{task}: {count} not better than the control {control}: {join_names(below)}.", False


def upper_bound(study: Study, tables: Tables) -> list[str]:
    """The gap between the best method of each task and one model on the pooled rows of all clients, if there is one.

    The pooled model is not ranked or tested; the sentence compares two numbers.
    """
    lines = [line for task, runs in by_task(study).items() if (line := pooling_note(task, runs))]
    pooled = tables.controls[(tables.controls["kind"] == POOLED) & tables.controls["mean"].notna()]
    pooled = pooled.groupby("task", sort=False).head(1)  # the best one of each task
    if pooled["task"].nunique() > MOST_TASKS:
        above = sum(_gap(row, tables.board)[1] > 0 for row in pooled.to_dict("records"))
        lines.append(
            f"A model on pooled rows, which is not federated, is better than every method on {above} of "
            f"{pooled['task'].nunique()} tasks."
        )
        return lines
    for row in pooled.to_dict("records"):
        best, gap = _gap(row, tables.board)
        if np.isfinite(gap):
            metric = str(row["metric"])
            size, score = (format_score(value, np.nan, metric) for value in (abs(gap), row["mean"]))
            size += " points" if unit(metric) else f" ({metric})"
            comparison = "equal to it" if not gap else f"{size} {'worse' if gap > 0 else 'better'}"
            lines.append(
                f"{row['task']}: {row['control']}, one model on the pooled rows of all clients, is not federated and "
                f"has {score}{unit(metric)}; the best method, {best}, is {comparison}."
            )
    return lines


def _gap(row: dict[str, Any], board: pd.DataFrame) -> tuple[str, float]:
    """The best method of the task of a pooled model, and by how much it is worse than that model."""
    best = board[board["task"] == row["task"]].iloc[0]
    sign = 1.0 if METRICS[row["metric"]].higher_is_better else -1.0
    return str(best["method"]), sign * float(row["mean"] - best["mean"])
