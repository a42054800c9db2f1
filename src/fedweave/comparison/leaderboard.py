"""The leaderboard of a comparison as one table: scores, results of tests, both evaluation points, cost."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedweave.metrics import unit
from fedweave.results import MIB, Run, Study
from fedweave.results.marks import (
    CONTROLS,
    GRAPH_CONTROL,
    MEANING,
    add_marks,
    control_column,
    control_tests,
    reason_without_verdict,
)
from fedweave.results.statistics import ONE_SEED, name_few_seeds

SCORES = ("rank", "method", "metric", "mean", "std", "low", "high", "seeds", "verdict", "p", "margin")
PRINTED = ("task", *SCORES[:7], "verdict", *map(control_column, CONTROLS), "pre", "post")
DETAILS = ("pre", "post", "point", "pooled", "client_std", "worst10", "mib", "seconds")


def rank_methods(board: pd.DataFrame, significance: pd.DataFrame, runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row per run, best first within each task, named as in `runs`; with `task` in front if there are several.

    Methods with another graph than the one they learn are controls: they come last, without a rank.

    Args:
        board: the table of `results.board`.
        significance: the tests between its methods.
        runs: name -> run.
    """
    marked = add_marks(board, significance)
    parts = [_rank_task(part, significance[significance["task"] == task]) for task, part in marked.groupby("task")]
    table = _add_control_intervals(pd.concat(parts, ignore_index=True), significance)
    controls = [control_column(control) for control in CONTROLS if control in {*board["method"]}]
    against = [name + suffix for name in controls for suffix in ("", "_low", "_high")]
    table = rename_methods(table, runs).rename(columns={"mark": "verdict"})
    table["point"] = table["run"].map({run.name: run.info["point"] for run in runs.values()})
    table["mib"] = (table["bytes_up"] + table["bytes_down"]) / MIB
    tasks = ["task"] if table["task"].nunique() > 1 else []
    return table[[*tasks, *SCORES, *against, *DETAILS]].reset_index(drop=True)


def _rank_task(board: pd.DataFrame, significance: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task with `rank`, and `p` and `margin` of the tests against the leader.

    Args:
        significance: the tests of the task.
    """
    leading = significance[significance["family"] == "leader"].set_index("other")
    columns = {"p": "p_adjusted", "margin": "margin"}
    ranks = (board["mark"] != GRAPH_CONTROL).cumsum().where(board["mark"] != GRAPH_CONTROL)
    return board.assign(
        rank=ranks.astype("float64"), **{name: board["method"].map(leading[source]) for name, source in columns.items()}
    )


def explain_words(board: pd.DataFrame, study: Study) -> list[str]:
    """What the verdicts of a leaderboard mean, one line each: of few seeds, of equivalence with its margin, of open."""
    verdicts = board[[name for name in ("verdict", *map(control_column, CONTROLS)) if name in board]]
    has_word = {word: (verdicts == word).any(axis=1) for word in ("equivalent", "open")}
    lines = []
    if len(board) > 1 and (few := name_few_seeds(board["seeds"].max())):
        lines.append(reason_without_verdict(few) + "; intervals are over clients" * (few == ONE_SEED))
    for metric in board[has_word["equivalent"]]["metric"].unique():
        margin = study.margin(metric).describe(metric)
        lines.append(f"equivalent: the {metric} differs by no more than {margin}")
    return lines + [MEANING["open"]] * bool(has_word["open"].any())


def format_text(board: pd.DataFrame, rules: pd.DataFrame) -> str:
    """The main columns of a leaderboard in a terminal, and below the methods the controls without a model."""
    table = _append_rules(board, rules)
    table["rank"] = [str(int(rank)) if np.isfinite(rank) else "" for rank in table["rank"]]
    columns = [column for column in PRINTED if column in table]
    number = "{:.2f}" if all(map(unit, board["metric"])) else "{:.4g}"
    return table[columns].to_string(index=False, na_rep="", float_format=number.format)


def format_html(board: pd.DataFrame, rules: pd.DataFrame) -> str:
    """All columns of a leaderboard, and below the methods the controls without a model."""
    return str(_append_rules(board, rules).to_html(index=False, na_rep="", float_format="{:.4g}".format))


def _append_rules(board: pd.DataFrame, rules: pd.DataFrame) -> pd.DataFrame:
    rules = rules.rename(columns={"control": "method"})
    rules["method"] += " [" + rules["kind"] + "]"
    return pd.concat([board, rules])[[*board]]


def rename_methods(table: pd.DataFrame, runs: Mapping[str, Run]) -> pd.DataFrame:
    """`table` with a column `run`, whose methods are named as in `runs` (name -> run)."""
    return table.assign(method=table["run"].map({run.name: name for name, run in runs.items()}))


def _add_control_intervals(board: pd.DataFrame, significance: pd.DataFrame) -> pd.DataFrame:
    """`board` with the interval of the difference to every control."""
    rows, intervals = [*zip(board["task"], board["method"], strict=True)], {}
    for control in CONTROLS:
        tests = {
            (task, name): test
            for task, part in significance.groupby("task")
            for name, test in control_tests(part, control).items()
        }
        for side in ("low", "high"):
            intervals[f"{control_column(control)}_{side}"] = [tests.get(row, {}).get(side, np.nan) for row in rows]
    return board.assign(**intervals)
