"""Who may be called better: words and marks that claim no more than the test does."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedweave import stats
from fedweave.results.runs import Run
from fedweave.results.tables import shown

NAMED = 6  # most names in a sentence


def marked(board: pd.DataFrame, significance: pd.DataFrame) -> dict[str, str]:
    """Method -> "best" (ahead of all others by the test), "lead" (highest, but not so), "tied" (not told apart from the
    leader), "behind", or "diverged".
    """
    tests = significance[significance["family"] == "leader"]
    marks = dict.fromkeys(board["method"], "behind")
    for test in tests.to_dict("records"):
        marks[test["other"]] = "behind" if test["better"] else "tied"
    finite = board[board["mean"].notna()]["method"]
    marks |= dict.fromkeys(board[board["mean"].isna()]["method"], "diverged")
    if len(finite) and len(board) > 1:
        leader = tests["method"].iloc[0] if len(tests) else finite.iloc[0]
        rest = [mark for method, mark in marks.items() if method != leader]
        marks[leader] = "best" if "behind" in rest and "tied" not in rest else "lead"
    return marks


def verdict(board: pd.DataFrame, marks: Mapping[str, str]) -> str:
    """The outcome in one sentence that claims no more than the test does."""
    leader = next((method for method, mark in marks.items() if mark in ("best", "lead")), board["method"].iloc[0])
    if board["mean"].isna().all():
        return "No method reached a finite score."
    row = board[board["method"] == leader].iloc[0]
    score = shown(row["mean"], row["std"], row["metric"]) + (" %" if row["metric"] == "accuracy" else "")
    tied = [method for method in board["method"] if marks[method] == "tied"]
    behind = sum(mark == "behind" for mark in marks.values())
    if len(board) == 1 or not (tied or behind):
        return f"{leader} reaches {score}; there is nothing to compare it with."
    if not tied:
        return f"{leader} is best with {score}, significantly ahead of {_count(behind)}."
    return f"{leader} leads with {score}, but the test does not tell it apart from {_listed(tied)}" + (
        f"; it is significantly ahead of {_count(behind)}." if behind else "."
    )


def blind(runs: Sequence[Run], scores: Mapping[str, np.ndarray]) -> str:
    """Why no test over the columns of `scores`, label -> [S, N], can call anybody better; empty where one can."""
    columns = next(iter(scores.values())).shape[1]
    if len(runs) < 2 or 2.0 ** (1 - columns) < stats.ALPHA:  # the least p: all columns agree
        return ""
    if sharing := runs[0].info.get("sharing"):
        return f"Clients that share test nodes count as one: with {columns} for {len(sharing)} the test cannot call anything significant."
    return f"With {columns} clients the test cannot call anything significant."


def _count(behind: int) -> str:
    return "the one other method" if behind == 1 else f"{behind} other methods"


def _listed(names: list[str]) -> str:
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
