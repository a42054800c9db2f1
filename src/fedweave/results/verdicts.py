"""Sentences on which method is better, which claim no more than the test does."""

from collections.abc import Mapping, Sequence

import pandas as pd

from fedweave.errors import format_count
from fedweave.metrics import unit
from fedweave.results import parts, statistics
from fedweave.results.formats import format_score
from fedweave.results.marks import assign_marks
from fedweave.results.runs import Run

__all__ = [
    "assign_marks",
    "describe_parts",
    "describe_splits",
    "describe_test",
    "join_names",
    "reason_without_power",
    "verdict",
]

SIGNED_RANK_TEST = "Wilcoxon's signed-rank test over clients"
MIXED_MODEL_TEST = "linear mixed model over seeds, splits and clients"

MOST_NAMES = 6  # most names in a sentence
MOST_BEHIND = 3  # most methods behind the leader that are named


def verdict(board: pd.DataFrame, marks: Mapping[str, str]) -> str:
    """The outcome of a task in one sentence."""
    leader = next((method for method, mark in marks.items() if mark in ("best", "lead")), board["method"].iloc[0])
    if board["mean"].isna().all():
        return "No method reached a finite score."
    row = board[board["method"] == leader].iloc[0]
    score = format_score(row["mean"], row["std"], row["metric"]) + unit(row["metric"])
    names = {
        mark: [method for method in board["method"] if marks[method] == mark and method != leader]
        for mark in ("behind", "undecided", "tied")
    }
    if not any(names.values()):
        return f"{leader} reaches {score}; there is nothing to compare it with."
    phrases = [f"significantly ahead of {_join_or_count(names['behind'])}"] if names["behind"] else []
    phrases += [f"not significantly different from {join_names(names['tied'], 'or')}"] if names["tied"] else []
    phrases += [f"undecided against {join_names(names['undecided'])}"] if names["undecided"] else []
    return f"{leader} leads with {score}: {'; '.join(phrases)}."


def reason_without_power(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """Why no test of the `runs` of a task can find a significant difference; empty where one can.

    Args:
        table: a table of `results.clients`.
    """
    repetitions, columns = next(iter(parts.scores_by_method(runs, table).values())).shape
    if len(runs) > 1 and runs[0].has_splits and min(repetitions, columns) < 2:
        what = "split" if repetitions < 2 else "client"
        return f"With one {what} there is no test over splits; it takes 2 splits and 2 clients or more."
    if len(runs) < 2 or runs[0].has_splits or 2.0 ** (1 - columns) < statistics.ALPHA:  # the least p: all columns agree
        return ""
    counted = describe_parts(runs, table)
    these = f"{columns} of these" if counted else format_count(columns, "client")
    return f"{counted} With {these} no test can call a difference significant; it takes 6 or more.".lstrip()


def describe_parts(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """A sentence on the clients that tests and intervals count as one; empty where each counts alone.

    Args:
        table: a table of `results.clients`.
    """
    words = parts.describe(runs, table)
    return words and f"{words[0].upper()}{words[1:]}."


def describe_splits(runs: Sequence[Run]) -> str:
    """The splits of a task and the test over them: "3 splits (1, 2, 3): linear mixed model …"; empty for one split."""
    seeds = runs[0].info.get("splits") or []
    if not seeds:
        return ""
    numbers = ", ".join(map(str, seeds[:MOST_NAMES])) + (", …" if len(seeds) > MOST_NAMES else "")
    return f"{format_count(len(seeds), 'split')} ({numbers})" + (f": {MIXED_MODEL_TEST}" if len(runs) > 1 else "")


def describe_test(runs: Sequence[Run]) -> str:
    """Which test compares the `runs` of a task, and its splits if it has several; empty for one run on one split."""
    return describe_splits(runs) or (SIGNED_RANK_TEST if len(runs) > 1 else "")


def _join_or_count(methods: Sequence[str]) -> str:
    return join_names(methods) if len(methods) <= MOST_BEHIND else f"{len(methods)} other methods"


def join_names(names: Sequence[str], word: str = "and") -> str:
    """At most six names as words: "a, b and c", "a, b, c, d, e and 3 others"."""
    words = (
        list(names)
        if len(names) <= MOST_NAMES
        else [*names[: MOST_NAMES - 1], format_count(len(names) - MOST_NAMES + 1, "other")]
    )
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {word} {words[-1]}"
