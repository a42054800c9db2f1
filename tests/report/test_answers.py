"""The three answers on the first screen of a task, and its picture, against the tables of made-up studies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedweave import plots, results
from fedweave.metrics import Margin
from fedweave.report import answers, picture
from fedweave.report.board import rows_of
from fedweave.results.references import POOLED, RULE
from fedweave.runs.control_names import BASE_RATE, LINEAR
from tests.fake_results import write_study

METHODS = {"Local": -20.0, "FedAvg": -12.0, "FedAvg-FT": -0.1, "FedAGHN": 0.0}


def answer(folder: Path, methods: Mapping[str, float], **block: Any) -> tuple[answers.TaskAnswers, results.Tables]:
    """The answers for a made-up study, and its tables."""
    path = write_study(folder / "results" / "s", {"t": block}, methods, extras=False)
    tables = results.write(path)
    return answers.answer(results.load_study(path), tables, "t"), tables


def test_the_cheapest_of_equivalent_methods_is_deployed(tmp_path: Path) -> None:
    """FedAGHN sends twice as much as FedAvg-FT."""
    found, tables = answer(tmp_path, METHODS)
    board = tables.board.set_index("method")
    assert set(board.loc[["FedAGHN", "FedAvg-FT"]]["mark"]) == {"lead", "equivalent"}
    assert (found.best.word, found.pays.word, found.deploy.word) == (board.index[0], "Yes", "FedAvg-FT")
    difference = board["mean"].iloc[0] - board.loc["Local"]["mean"]
    assert f"{board.index[0]} is {difference:.2f} points better than Local (95 % interval " in found.pays.reason
    assert found.pays.reason.endswith(
        f"; {board['gain'].iloc[0]:.0f} of 12 clients score better, {board['loss'].iloc[0]:.0f} worse"
    )
    assert found.method == "FedAvg-FT"


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({}, "no other method is shown to be as good; it sends "),
        (
            {"FedAvg-FT": "equivalent", "FedAvg": "equivalent"},
            "the only one of 3 equivalent methods that is shown to be better than Local; it sends ",
        ),
    ],
)
def test_equivalent_methods_that_are_not_better_than_local_are_not_denied(
    others: Mapping[str, str], reason: str
) -> None:
    """The line "Best" names them as equivalent."""
    marks = {"FedAGHN": "lead", "FedAvg-FT": "open", "FedAvg": "open", "Local": "open"} | others
    board = pd.DataFrame({"method": [*marks], "mark": [*marks.values()], "bytes_up": 2**20, "bytes_down": 2**20})
    found = answers._deploy(board.assign(vs_local=["better", "open", "open", ""]), "Yes", "")
    assert (found.word, found.reason.startswith(reason)) == ("FedAGHN", True)


def test_the_direction_of_an_error_is_named(tmp_path: Path) -> None:
    found, tables = answer(tmp_path, METHODS, metric="mse")
    means = tables.board.set_index("method")["mean"]
    gap = results.format_score(means["Local"] - means.iloc[0], np.nan, "mse")
    assert f"is better than Local, {gap} lower in mse (95 % interval " in found.pays.reason
    low, high = (float(text) for text in found.pays.reason.split("interval ")[1].split(")")[0].split(" to "))
    assert 0 < low < float(gap) < high


@pytest.mark.parametrize(
    ("methods", "pays", "deploy"),
    [
        ({"Local": 0.0, "FedAvg": -9.0, "FedAGHN": -6.0}, "No", "Local"),
        ({"FedAvg": -9.0, "FedAGHN": -6.0}, "Not measured", "Open"),
    ],
)
def test_local_is_deployed_where_nothing_is_better(
    tmp_path: Path, methods: Mapping[str, float], pays: str, deploy: str
) -> None:
    found, _ = answer(tmp_path, methods)
    assert (found.pays.word, found.deploy.word) == (pays, deploy)


def test_nothing_is_said_of_collaboration_where_local_is_under_trained(tmp_path: Path) -> None:
    """The best round of Local is made the last one; nothing else changes."""
    before, _ = answer(tmp_path, METHODS)
    folder = tmp_path / "results" / "s"
    file = folder / "runs" / "t-local" / "evaluations.parquet"
    table = pd.read_parquet(file)
    table["value"] = table["round"] * 0.5 + table["client"]
    table.to_parquet(file, index=False)
    found = answers.answer(results.load_study(folder), results.write(folder), "t")
    assert before.pays.word == "Yes"
    assert found.pays.word == answers.UNDER_TRAINED
    assert "in the last round in 3 of 3 seeds" in found.pays.reason
    assert (found.deploy.word, found.method) == ("Nothing yet", "")


@pytest.mark.parametrize(("metric", "worse"), [("accuracy", -1.0), ("mse", 1.0)])
def test_a_local_far_below_a_model_of_each_client_is_under_trained(metric: str, worse: float) -> None:
    """Only a control that learns from one client counts, and only by more than the margin."""
    margin = Margin(points=1.0)
    board = pd.DataFrame([{"method": "Local", "mean": 50.0, "metric": metric, "at_last": 0.0, "seeds": 3}])

    def explain(gap: float, control: str = LINEAR) -> str:
        controls = pd.DataFrame([{"control": control, "mean": 50.0 - worse * gap}])
        return answers.explain_under_training(board, controls, margin)

    assert explain(1.1).startswith("Local is worse than 'Linear model per client' (")
    assert explain(0.9) == explain(-5.0) == explain(5.0, BASE_RATE) == ""


@pytest.mark.parametrize(("metric", "scores"), [("accuracy", (70.0, 69.0, 71.0)), ("mse", (0.5, 0.6, 0.4))])
def test_a_control_that_no_method_is_above_is_named_first(metric: str, scores: tuple[float, float, float]) -> None:
    """A model of the pooled rows, which cannot be deployed in a federation, is named at the end."""
    equal, lower, higher = scores
    board = pd.DataFrame([{"metric": metric, "mean": equal}])
    best = answers.Answer("Best", "Ditto", "leads", "open")

    def name(*rows: tuple[str, float, str]) -> answers.Answer:
        controls = pd.DataFrame(rows, columns=["control", "mean", "kind"])
        return answers._name_unbeaten_controls(best, board, controls)

    assert name(("Rule", lower, RULE), ("Central", lower, POOLED)) == best
    assert name(("Rule", equal, RULE)).word == "No method is better than the control Rule"
    assert name(("Rule", equal, RULE), ("Other", higher, RULE)).word.endswith("Other")
    pooled = name(("Central", higher, POOLED))
    assert (pooled.word, pooled.reason.startswith("leads; Central, not federated, has")) == ("Ditto", True)


@pytest.mark.parametrize(("metric", "means"), [("accuracy", [68.0, 70.0]), ("mse", [0.7, 0.5])])
def test_a_control_that_no_method_is_above_is_named_beside_the_best_method(metric: str, means: list[float]) -> None:
    board = pd.DataFrame({"metric": metric, "mean": [means[0], *means]})
    rules = pd.DataFrame([{"control": "Rule", "mean": means[1], "kind": RULE}])
    line = results.name_unbeaten_control(rules, board)
    assert line.endswith(
        {"accuracy": "'Rule': 70.00 % against 70.00 %", "mse": "'Rule': mse 0.5000 against 0.5000"}[metric]
    )
    assert not results.name_unbeaten_control(rules.assign(mean=means[0]), board)


def test_one_seed_answers_nothing(tmp_path: Path) -> None:
    path = write_study(tmp_path / "results" / "s", {"t": {}}, METHODS, seeds=(0,), extras=False)
    found = answers.answer(results.load_study(path), results.write(path), "t")
    assert (found.pays.word, found.deploy.word, found.method) == ("Open", "Open", "")
    assert "one seed: no verdict" in found.best.reason


def test_positions_of_the_picture_are_those_of_the_scores(tmp_path: Path) -> None:
    """Interval, tick, band and axis of every row are on one scale; all methods are shown or folded, each once."""
    names = {f"M{i:02d}": -float(i) for i in range(20)} | METHODS
    path = write_study(tmp_path / "results" / "s", {"t": {}}, names, rounds=4, extras=False)
    study, tables = results.load_study(path), results.write(path)
    board = tables.board
    runs = {run.name: run for run in study.runs}
    rows = list(
        rows_of(board, [runs[name] for name in board["run"]], tables.significance, plots.assign_styles([*names]))
    )
    margin = study.margin("accuracy")
    drawn = picture.draw(board, rows, tables.controls, margin)
    assert sorted(row.method for row in [*drawn.rows, *drawn.folded]) == sorted(names)
    assert {*METHODS} - {"FedAGHN"} <= {row.method for row in drawn.rows}
    low, high = board["low"].min(), board["high"].max()

    def value(position: float) -> float:
        return float(low + position / 100 * (high - low))

    for row in [*drawn.rows, *drawn.folded]:
        expected = board.set_index("method").loc[row.method]
        assert value(row.interval["at"]) == pytest.approx(expected["mean"])
        assert value(row.interval["left"]) == pytest.approx(expected["low"])
        assert value(row.interval["left"] + row.interval["width"]) == pytest.approx(expected["high"])
    left, width = drawn.band
    assert value(left) == pytest.approx(board["mean"].iloc[0] - margin.points)
    assert value(left + width) == pytest.approx(min(board["mean"].iloc[0] + margin.points, high))
    assert [value(at) for at, _ in drawn.ticks] == pytest.approx([float(number) for _, number in drawn.ticks])
