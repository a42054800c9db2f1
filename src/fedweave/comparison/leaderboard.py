"""The leaderboard of a comparison as one table: scores, results of tests, both evaluation points, cost."""

from collections.abc import Mapping
from dataclasses import asdict, fields

import numpy as np
import pandas as pd

from fedweave.metrics import unit
from fedweave.results import MIB, Run, Study, statistics
from fedweave.results.marks import CONTROLS, MEANING, add_marks, control_column, control_tests

SCORES = ("rank", "method", "metric", "mean", "std", "low", "high", "seeds", "verdict", "p", "margin")
PRINTED = ("task", "rank", "method", "metric", "mean", "std", "low", "high", "verdict", "vs_local", "vs_fedavg_ft",
           "pre", "post")  # fmt: skip
DETAILS = ("pre", "post", "point", "pooled", "client_std", "worst10", "mib", "seconds")
GRAPH_CONTROL = "graph control"  # in place of a verdict: a method with another graph than the one it learns


def rank_methods(board: pd.DataFrame, significance: pd.DataFrame, runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row per run, best first within each task, named as in `runs`; with `task` in front if there are several.

    Methods with another graph than the one they learn are controls: they come last, without a rank.

    Args:
        board: the table of `results.board`.
        significance: the tests between its methods.
        runs: name -> run.
    """
    parts = [_rank_task(part, significance[significance["task"] == task]) for task, part in board.groupby("task")]
    table = _add_control_intervals(pd.concat(parts, ignore_index=True), significance)
    controls = [control_column(control) for control in CONTROLS if control in {*board["method"]}]
    against = [name + suffix for name in controls for suffix in ("", "_low", "_high")]
    table = rename_methods(table, runs).rename(columns={"mark": "verdict"})
    table["point"] = table["run"].map({run.name: run.info["point"] for run in runs.values()})
    table["mib"] = (table["bytes_up"] + table["bytes_down"]) / MIB
    tasks = ["task"] if table["task"].nunique() > 1 else []
    return table[[*tasks, *SCORES, *against, *DETAILS]].reset_index(drop=True)


def _rank_task(board: pd.DataFrame, significance: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task with `rank`, `mark`, outcomes against controls, and `p` and `margin` of the tests against
    the leader.

    Args:
        significance: the tests of the task.
    """
    is_control = board["method"].isin(significance[significance["family"] == "graph"]["other"])
    methods, controls = board[~is_control], board[is_control]
    tests = significance
    if len(controls):
        # A control may have the best mean; the leader is the best method.
        finite = methods[methods["mean"].notna()]["method"]
        leading = _tests_of(significance, finite.iloc[0] if len(finite) else None)
        tests = pd.concat([significance[significance["family"] != "leader"], leading])
    leading = tests[tests["family"] == "leader"].set_index("other")
    ranked = add_marks(methods, tests[~((tests["family"] == "leader") & tests["other"].isin(controls["method"]))])
    ranked["rank"] = np.arange(1, len(ranked) + 1)
    if len(controls):
        ranked = pd.concat([ranked, add_marks(controls, tests).assign(mark=GRAPH_CONTROL)])
    columns = {"p": "p_adjusted", "margin": "margin"}
    return ranked.assign(**{name: ranked["method"].map(leading[source]) for name, source in columns.items()})


def _tests_of(significance: pd.DataFrame, leader: str | None) -> pd.DataFrame:
    """The tests of `leader` against all others, out of those of all pairs."""
    pairs = significance[significance["family"] == "pairs"]
    names = [field.name for field in fields(statistics.TestedPair)]
    every = [statistics.TestedPair(**row) for row in pairs[names].to_dict("records")]
    rows = [asdict(test) for test in statistics.leader_comparisons(every, leader)]
    task = significance["task"].iloc[0]
    return pd.DataFrame(rows, columns=names).assign(task=task, family="leader")[[*significance]]


def explain_words(board: pd.DataFrame, study: Study) -> list[str]:
    """What the verdicts of a leaderboard mean, one line each: of one seed, of equivalence with its margin, of open."""
    verdicts = board[[name for name in ("verdict", *map(control_column, CONTROLS)) if name in board]]
    has_word = {word: (verdicts == word).any(axis=1) for word in ("equivalent", "open")}
    lines = (
        ["one seed: no verdict; intervals are over clients"] if (board["seeds"] == 1).all() and len(board) > 1 else []
    )
    metrics = board[has_word["equivalent"]]["metric"].unique()
    lines += [f"equivalent: the {metric} differs by no more than {study.margin(metric).describe(metric)}"
              for metric in metrics]  # fmt: skip
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
    intervals = {
        control_column(control) + side: np.full(len(board), np.nan)
        for control in CONTROLS
        for side in ("_low", "_high")
    }
    for task in board["task"].unique():
        tests = significance[significance["task"] == task]
        for control in CONTROLS:
            for method, test in control_tests(tests, control).items():
                rows = (board["task"] == task) & (board["method"] == method)
                for side in ("low", "high"):
                    intervals[f"{control_column(control)}_{side}"][rows] = test[side]
    return board.assign(**intervals)
