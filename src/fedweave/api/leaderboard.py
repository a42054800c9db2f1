"""The leaderboard of a comparison as one table: scores, results of tests, both evaluation points, cost."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedweave.results import MIB, Run
from fedweave.results.marks import CONTROLS, add_marks, control_column, control_tests

SCORES = ("rank", "method", "metric", "mean", "std", "low", "high", "seeds", "verdict")
DETAILS = ("pre", "post", "point", "pooled", "client_std", "worst10", "mib", "seconds")


def rank_methods(board: pd.DataFrame, significance: pd.DataFrame, runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row per run, best first within each task, named as in `runs`; with `task` in front if there are several.

    Args:
        board: the table of `results.board`.
        significance: the tests between its methods.
        runs: name -> run.
    """
    table = _add_control_intervals(add_marks(board, significance), significance)
    controls = [control_column(control) for control in CONTROLS if control in {*board["method"]}]
    against = [name + suffix for name in controls for suffix in ("", "_low", "_high")]
    table = rename_methods(table, runs).rename(columns={"mark": "verdict"})
    table["rank"] = table.groupby("task").cumcount() + 1
    table["point"] = table["run"].map({run.name: run.info["point"] for run in runs.values()})
    table["mib"] = (table["bytes_up"] + table["bytes_down"]) / MIB
    tasks = ["task"] if table["task"].nunique() > 1 else []
    return table[[*tasks, *SCORES, *against, *DETAILS]].reset_index(drop=True)


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
