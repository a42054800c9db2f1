"""Sentences on which method is better, which claim no more than the test does."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.metrics import unit
from fedweave.results import parts, statistics
from fedweave.results.formats import format_score
from fedweave.results.marks import GRAPH_CONTROL, NOTHING_SHOWN, outcome, reason_without_verdict
from fedweave.results.runs import Run, Study, by_task
from fedweave.results.tables import Tables

SEEDS_TEST = "over seeds and clients"
SPLITS_TEST = "test over splits, seeds and clients"

MOST_NAMES = 6  # most names in a sentence
MOST_BEHIND = 3  # most methods behind the leader that are named


def verdict(study: Study, tables: Tables, task: str) -> str:
    """The outcome of a task in a sentence or two; why there can be no verdict, by design, comes first."""
    board = tables.board[tables.board["task"] == task]
    if board["mean"].isna().all():
        return "No method reached a finite score."
    tests = tables.significance[(tables.significance["task"] == task) & (tables.significance["family"] == "leader")]
    rows = tests[~tests["other"].isin(board[board["mark"] == GRAPH_CONTROL]["method"])].to_dict("records")
    row = board.iloc[0]
    score = format_score(row["mean"], row["std"], row["metric"]) + unit(row["metric"])
    if not rows:
        return f"{row['method']} reaches {score}; there is nothing to compare it with."
    runs = by_task(study)[task]
    if reason := short_reason(runs, tests):
        return f"{reason[0].upper()}{reason[1:]}. {row['method']} leads with {score}."
    phrases = _outcome_phrases(rows, study.margin(row["metric"]).describe(row["metric"]))
    return f"{row['method']} leads with {score}: {'; '.join(phrases)}."


def _outcome_phrases(tests: Sequence[Mapping[str, Any]], margin: str) -> Iterator[str]:
    """What the tests of a leader say, each outcome once."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for test in tests:
        rows.setdefault(outcome(test, test["method"]), []).append(test)
    names = {word: [test["other"] for test in part] for word, part in rows.items()}
    if better := names.get("better"):
        yield "better than " + (join_names(better) if len(better) <= MOST_BEHIND else f"{len(better)} other methods")
    if equivalent := names.get("equivalent"):
        yield f"equivalent to {join_names(equivalent)} (within {margin})"
    # A leader by the mean over clients can be behind where several clients count as one.
    if worse := names.get("worse"):
        yield f"worse than {join_names(worse)} where clients of one part count as one"
    if unclear := names.get("open"):
        yield f"open against {join_names(unclear)} ({NOTHING_SHOWN}; {describe_needed(rows['open'])})"
    if untested := names.get(""):
        yield f"no verdict against {join_names(untested)} (no common scores)"


def describe_needed(tests: Sequence[Mapping[str, Any]]) -> str:
    """How many seeds would decide open `tests` at the variance seen: "5 seeds would decide"."""
    needed = {str(test["other"]): float(test["seeds_needed"]) for test in tests}
    finite = [name for name, seeds in needed.items() if np.isfinite(seeds)]
    if not finite:
        return "more seeds alone would not decide, more clients may"
    seeds = f"{max(needed[name] for name in finite):.0f} seeds would decide"
    rest = [name for name in needed if name not in finite]
    return f"{seeds} {join_names(finite)}, more seeds alone not {join_names(rest)}" if rest else seeds


def short_reason(runs: Sequence[Run], tests: pd.DataFrame) -> str:
    """Why the design of a task allows no verdict, in a few words; empty where it allows one.

    Args:
        tests: of the task.
    """
    over = {*tests["over"]} - {statistics.NOT_COMPARED}
    by_design = over in ({statistics.ONE_SEED}, {statistics.TWO_SEEDS}, {statistics.FEW_CLIENTS})
    return reason_without_verdict(over.pop(), parts.name_parts(runs)) if by_design else ""


def describe_fixed(tests: pd.DataFrame) -> str:
    """A sentence on the methods of a task that do not depend on the seed; empty if fewer than two do not."""
    pairs = tests[(tests["family"] == "pairs") & (tests["over"] == statistics.CLIENTS)]
    names = list(dict.fromkeys([*pairs["method"], *pairs["other"]]))
    return f"{join_names(names)} do not depend on the seed: compared with each other over clients." if names else ""


def describe_margins(study: Study) -> str:
    """The margins of equivalence of a study: "1 point", or "accuracy 1 point, mse 5 % of the error"."""
    metrics = list(dict.fromkeys(str(run.info["metric"]) for run in study.runs))
    words = {metric: study.margin(metric).describe(metric) for metric in metrics}
    return words[metrics[0]] if len(metrics) == 1 else ", ".join(f"{metric} {word}" for metric, word in words.items())


def reason_without_power(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """Why the design of a task allows no verdict, whatever the scores; empty where it allows one.

    Args:
        table: a table of `results.clients`.
    """
    if len(runs) < 2:
        return ""
    rows = table[table["run"].isin([run.name for run in runs])]
    numbers, clients = parts.part_numbers(runs), parts.common_clients(runs, rows)
    columns, counted = len({numbers[client] if numbers else client for client in clients}), describe_parts(runs, table)
    if columns < statistics.LEAST_CLIENTS:
        these = f"{columns} of these" if counted else format_count(columns, "client")
        why, least = f"even if all agree, p is {2.0 ** (1 - columns):.2g} or more", statistics.LEAST_CLIENTS
        return f"{counted} With {these} there is no verdict: {why}. It takes {least} or more.".lstrip()
    if not (few := statistics.name_few_seeds(rows.groupby("run")["seed"].nunique().max())):
        return ""
    known = {
        statistics.ONE_SEED: "How much the scores vary between seeds is not known; intervals are over clients alone.",
        statistics.TWO_SEEDS: "Two seeds say too little of how much scores vary between them.",
    }
    reason = reason_without_verdict(few).capitalize()
    return f"{reason}. {known[few]} It takes {statistics.LEAST_SEEDS} seeds or more. {counted}".rstrip()


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
    is_tested = len(runs) > 1 and not statistics.name_few_seeds(len(seeds))
    return f"{format_count(len(seeds), 'split')} ({numbers})" + (f": {SPLITS_TEST}" if is_tested else "")


def describe_test(runs: Sequence[Run]) -> str:
    """What the test of the `runs` of a task is over, and its splits if it has several; empty for one run on one split,
    and for one seed or two.
    """
    seeds = max(run.evaluations["seed"].nunique() for run in runs)
    return describe_splits(runs) or (SEEDS_TEST if len(runs) > 1 and not statistics.name_few_seeds(seeds) else "")


def join_names(names: Sequence[str]) -> str:
    """At most six names as words: "a, b and c", "a, b, c, d, e and 3 others"."""
    words = [*names]
    if len(names) > MOST_NAMES:
        words[MOST_NAMES - 1 :] = [format_count(len(names) - MOST_NAMES + 1, "other")]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
