"""Sentences on controls without a model: the most frequent class, the training mean, the last value."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedweave.metrics import unit
from fedweave.results import Study, Tables, by_task, format_score
from fedweave.results.verdicts import listed

SPELLED = 4  # most tasks that are described one by one


def below_controls(study: Study, tables: Tables) -> tuple[list[str], bool]:
    """What must be said first: which methods are worse than a rule without a model, and whether a leader is.

    These are comparisons of numbers: a rule has no seeds, so no test and no claim belongs to it.
    """
    found: list[tuple[str, bool]] = []
    for task, runs in by_task(study).items():
        board = tables.board[tables.board["task"] == task]
        rules = tables.controls[tables.controls["task"] == task]
        found += _sentences(task, board, rules, runs[0].higher_is_better)
    led = [task for task, leader in found if leader]
    if len(led) > SPELLED:
        count = tables.board["task"].nunique()
        line = f"ON {len(led)} OF {count} TASKS EVERY METHOD IS WORSE THAN A RULE WITHOUT A MODEL (table controls.csv)."
        return [line], True
    lines = [sentence for sentence, leader in sorted(found, key=lambda one: not one[1])]
    return lines if len(lines) <= SPELLED else [line for line, leader in found if leader], bool(led)


def _sentences(task: str, board: pd.DataFrame, rules: pd.DataFrame, higher: bool) -> Iterator[tuple[str, bool]]:
    """(sentence, whether it is about the leader) on the best rule that some method is worse than."""
    finite = board[board["mean"].notna()]
    for rule in rules[rules["mean"].notna()].to_dict("records")[:1]:
        sign = 1.0 if higher else -1.0
        worse = list(finite[sign * finite["mean"] < sign * rule["mean"]]["method"])
        metric = str(rule["metric"])
        said = f"{rule['control']} ({format_score(rule['mean'], np.nan, metric)}{unit(metric)})"
        if worse and len(worse) == len(finite):
            best = finite.iloc[0]
            score = format_score(best["mean"], np.nan, metric)
            yield (
                f"{task}: EVERY METHOD IS WORSE THAN THE CONTROL {said}; the best, {best['method']}, has {score}.",
                True,
            )
        elif worse:
            verb = "is" if len(worse) == 1 else "are"
            yield (
                f"{task}: {len(worse)} of {len(finite)} methods {verb} worse than the control {said}: {listed(worse)}.",
                False,
            )
