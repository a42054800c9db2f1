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

SEEDS_TEST = "test over seeds and clients"
SPLITS_TEST = "test over splits, seeds and clients"

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
        for mark in ("behind", "equivalent", "open", "no verdict")
    }
    if not any(names.values()):
        return f"{leader} reaches {score}; there is nothing to compare it with."
    phrases = [f"better than {_join_or_count(names['behind'])}"] if names["behind"] else []
    phrases += [f"equivalent to {join_names(names['equivalent'])}"] if names["equivalent"] else []
    phrases += [f"open against {join_names(names['open'])}"] if names["open"] else []
    phrases += [f"no verdict against {join_names(names['no verdict'])}"] if names["no verdict"] else []
    return f"{leader} leads with {score}: {'; '.join(phrases)}."


def reason_without_power(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """Why the design of a task allows no verdict, whatever the scores; empty where it allows one.

    Args:
        table: a table of `results.clients`.
    """
    if len(runs) < 2:
        return ""
    shapes = [scores.shape for scores in parts.scores_by_method(runs, table).values()]
    repetitions, columns = max(seeds for seeds, _ in shapes), shapes[0][1]
    if repetitions < 2:
        return (
            "One seed: no verdict. How much the scores vary between seeds is not known; intervals are over clients "
            "alone. It takes 2 seeds or more."
        )
    if columns >= statistics.LEAST_CLIENTS:
        return ""
    counted = describe_parts(runs, table)
    these = f"{columns} of these" if counted else format_count(columns, "client")
    least = f"{2.0 ** (1 - columns):.2g}"
    return (
        f"{counted} With {these} there is no verdict: even if all agree, p is {least} or more. It takes "
        f"{statistics.LEAST_CLIENTS} or more."
    ).lstrip()


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
    return f"{format_count(len(seeds), 'split')} ({numbers})" + (f": {SPLITS_TEST}" if len(runs) > 1 else "")


def describe_test(runs: Sequence[Run]) -> str:
    """Which test compares the `runs` of a task, and its splits if it has several; empty for one run on one split."""
    return describe_splits(runs) or (SEEDS_TEST if len(runs) > 1 else "")


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
