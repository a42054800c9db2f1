"""Results out of the ordinary: ties, units of many sizes, missing scores and seeds. Every table and sentence says what
was computed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedweave import plots, report, results
from fedweave.report import ablations, optional_files
from fedweave.report.summary import summary
from fedweave.results import references
from tests.fake_results import write_study

METHODS = {"Local": -6.0, "FedAvg-FT": -3.0, "FedAGHN": 0.0}
SEVENTHS = 100 * np.array([1.0, 2.0, 3.0]) / 7  # accuracies on seven rows; their mean depends on their order


def write(folder: Path, methods: dict[str, float] = METHODS, clients: int = 8, **block: Any) -> Path:
    """A study of one task, "t", on eight clients."""
    return write_study(folder / "results" / "s", {"t": block}, methods, clients=clients, rounds=2, extras=False)


def edit(folder: Path, run: str, change: Callable[[pd.DataFrame], pd.DataFrame] | None = None, **info: Any) -> None:
    """Change the scores of a run, or what it recorded about itself."""
    path = folder / "runs" / run
    if change:
        change(pd.read_parquet(path / "evaluations.parquet")).to_parquet(path / "evaluations.parquet", index=False)
    stored = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(stored | info))


def without(**cells: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A change that takes away the scores of some cells, such as those of client=1."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        mine = np.logical_and.reduce([table[name] == value for name, value in cells.items()])
        return table.assign(value=table["value"].where(~mine))

    return change


def compute(folder: Path) -> tuple[results.Study, results.Tables, dict[str, str]]:
    """The study, its tables, and topic -> text of its summary."""
    study = results.load_study(folder)
    tables = results.compute_tables(study)
    return study, tables, {line.topic: line.text for line in summary(study, tables)}


def test_of_equal_means_the_first_row_leads(tmp_path: Path) -> None:
    """Names of runs are sorted in another way than labels."""
    folder = write(tmp_path, {"A": 0.0, "B": 0.0, "C": -20.0})
    scores = pd.read_parquet(folder / "runs" / "t-b" / "evaluations.parquet")
    edit(folder, "t-a", lambda _: scores, label="Z")
    _, tables, lines = compute(folder)
    assert tables.board["method"].tolist() == ["B", "Z", "C"]
    assert tables.board["mark"].tolist() == ["lead", "tied", "behind"]
    assert "t: B leads with " in lines["Who leads"]
    leads = tables.significance[tables.significance["family"] == "leader"]
    assert {*leads["method"]} == {"B"}


def test_the_leader_is_the_first_row_also_where_units_differ_in_size(tmp_path: Path) -> None:
    """A is better by the mean over clients, B by the mean over units: the tests are those of A, which leads."""
    unit = [0] * 11 + [*range(1, 10)]
    folder = write(tmp_path, {"A": 0.0, "B": 0.0}, clients=20, units=unit, sharing=unit)
    for run, scores in (("t-a", [90.0, 40.0]), ("t-b", [80.0, 48.0])):
        value = np.repeat(scores, [11, 9]) + np.arange(20) % 3
        edit(folder, run, lambda table, value=value: table.assign(value=value[table["client"]]))
    _, tables, lines = compute(folder)
    assert tables.board["method"].tolist() == ["A", "B"]
    assert tables.board["mark"].tolist() == ["lead", "undecided"]
    (test,) = tables.significance.query("family == 'leader'").to_dict("records")
    assert (test["method"], test["other"]) == ("A", "B")
    assert test["difference"] < 0 < tables.board["mean"].iloc[0] - tables.board["mean"].iloc[1]
    assert "t: A leads with " in lines["Who leads"]
    assert "not significantly ahead of B" in lines["Who leads"]


def test_a_rounding_error_is_no_gain_and_no_better_rank(tmp_path: Path) -> None:
    """The same three accuracies in another order of seeds."""
    orders = {"Local": [0, 1, 2], "FedAMP": [2, 0, 1], "FedAvg-FT": [1, 2, 0]}
    assert len({SEVENTHS[order].mean() for order in orders.values()}) > 1
    folder = write(tmp_path, dict.fromkeys(orders, 0.0))
    for label, order in orders.items():
        values = SEVENTHS[order]
        edit(folder, f"t-{label.lower()}", lambda t, v=values: t.assign(value=v[t["seed"]]))
    _, tables, lines = compute(folder)
    board = tables.board[tables.board["method"] != "Local"]
    assert board[["gain", "loss", "clients"]].to_numpy().tolist() == [[0.0, 0.0, 8.0]] * 2
    assert tables.ranks["rank"].tolist() == [2.0] * 3
    assert "gain for 0 of 8 clients, loss for 0" in lines["Against Local"]
