"""Sentences on controls: the most frequent class, the training mean, the last value, a model on pooled rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedweave.metrics import METRICS, unit
from fedweave.results import POOLED, RULE, Study, Tables, by_task, format_score, methods_not_above, pooling_note
from fedweave.results.verdicts import join_names

SPELLED = 4  # most tasks that are described one by one


def control_warnings(study: Study, tables: Tables) -> tuple[list[str], bool]:
    """What must be said first: which methods are not better than a rule without a model, and whether a leader is.

    These are comparisons of numbers: a rule has no seeds, so no test and no claim belongs to it.
    """
    sentences: list[tuple[str, bool]] = []
    for task, runs in by_task(study).items():
        board = tables.board[tables.board["task"] == task]
        rules = tables.controls[(tables.controls["task"] == task) & (tables.controls["kind"] == RULE)]
        sentences += _sentences(task, board, rules, runs[0].higher_is_better)
    led = [task for task, leader in sentences if leader]
    if len(led) > SPELLED:
        count = tables.board["task"].nunique()
        line = f"ON {len(led)} OF {count} TASKS NO METHOD IS BETTER THAN A RULE WITHOUT A MODEL (table controls.csv)."
        return [line], True
    lines = [sentence for sentence, leader in sorted(sentences, key=lambda one: not one[1])]
    return lines if len(lines) <= SPELLED else [line for line, leader in sentences if leader], bool(led)


def _sentences(task: str, board: pd.DataFrame, rules: pd.DataFrame, higher: bool) -> Iterator[tuple[str, bool]]:
    """(sentence, whether it is about the leader) on the best rule that some method is not better than."""
    finite = board[board["mean"].notna()]
    for rule in rules[rules["mean"].notna()].to_dict("records")[:1]:
        below = methods_not_above(finite, rule, higher)
        metric = str(rule["metric"])
        control = f"{rule['control']} ({format_score(rule['mean'], np.nan, metric)}{unit(metric)})"
        if below and len(below) == len(finite):
            best = finite.iloc[0]
            score = format_score(best["mean"], np.nan, metric)
            yield (
                f"{task}: NO METHOD IS BETTER THAN THE CONTROL {control}; the best, {best['method']}, has {score}.",
                True,
            )
        elif below:
            verb = "is" if len(below) == 1 else "are"
            yield (
                f"{task}: {len(below)} of {len(finite)} methods {verb} not better than the control {control}: "
                f"{join_names(below)}.",
                False,
            )


def upper_bound(study: Study, tables: Tables) -> list[str]:
    """How far the best method of each task is from one model on the pooled rows of all clients, or why none is there.

    It is no method: it is not ranked or tested, and the sentence compares two numbers.
    """
    lines = [line for task, runs in by_task(study).items() if (line := pooling_note(task, runs))]
    pools = tables.controls[(tables.controls["kind"] == POOLED) & tables.controls["mean"].notna()]
    if pools["task"].nunique() > SPELLED:
        above = sum(_gap(row, tables.board)[1] > 0 for row in pools.to_dict("records"))
        lines.append(f"A model on pooled rows, which is not federated, is better than every method on {above} of "
                     f"{pools['task'].nunique()} tasks.")  # fmt: skip
        return lines
    for row in pools.to_dict("records"):
        best, gap = _gap(row, tables.board)
        if np.isfinite(gap):
            metric = str(row["metric"])
            size, score = (format_score(value, np.nan, metric) for value in (abs(gap), row["mean"]))
            size += " points" if unit(metric) else f" ({metric})"
            place = "equal to it" if not gap else f"{size} {'worse' if gap > 0 else 'better'}"
            lines.append(
                f"{row['task']}: {row['control']}, one model on the pooled rows of all clients, is not federated and "
                f"has {score}{unit(metric)}; the best method, {best}, is {place}."
            )
    return lines


def _gap(row: dict[str, Any], board: pd.DataFrame) -> tuple[str, float]:
    """The best method of the task of a pooled model, and by how much it is worse than that model."""
    best = board[board["task"] == row["task"]].iloc[0]
    sign = 1.0 if METRICS[row["metric"]].higher_is_better else -1.0
    return str(best["method"]), sign * float(row["mean"] - best["mean"])
