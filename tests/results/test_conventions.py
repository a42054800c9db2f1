"""Small rules of the tables: signs, equal scores, rounds of all seeds, names of settings."""

from pathlib import Path

import pandas as pd
import pytest

from fedweave import results
from fedweave.metrics import clip
from fedweave.results.formats import describe_change, format_change_interval, format_difference
from fedweave.results.repetitions import interval
from tests.fake_results import write_study


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "+1.00"), (0.0, "0.00"), (1e-9, "0.00"), (-1e-9, "0.00"), (-1.0, "\N{MINUS SIGN}1.00")]
)
def test_only_a_gain_has_a_plus_sign(value: float, text: str) -> None:
    assert format_difference(value, "accuracy") == text


@pytest.mark.parametrize(
    ("metric", "value", "low", "high", "text"),
    [
        ("accuracy", 9.544, 1.0, 18.0, "accuracy 9.54 points higher (1.00 to 18.00 points higher)"),
        ("accuracy", -2.0, -5.0, 1.0, "accuracy 2.00 points lower (5.00 points lower to 1.00 points higher)"),
        ("accuracy", 0.0, 0.0, 0.0, "accuracy 0.00 points (0.00 to 0.00 points)"),
        ("mse", -0.00507, -0.01, 0.0, "mse 0.005070 lower, and lower is better (0.0000 to 0.01000 lower)"),
        ("roc_auc", 0.0123, 0.01, 0.0146, "roc_auc 0.01230 higher (0.01000 to 0.01460 higher)"),
        ("mse", float("nan"), float("nan"), 1.0, "mse \N{EN DASH}, and lower is better (\N{EN DASH})"),
    ],
)
def test_differences_in_words_have_a_unit_and_a_direction(
    metric: str, value: float, low: float, high: float, text: str
) -> None:
    assert f"{describe_change(value, metric)} ({format_change_interval(low, high, metric)})" == text


@pytest.mark.parametrize(("higher", "methods"), [(True, ["a", "b"]), (False, ["a", "c"])])
def test_a_method_equal_to_a_control_is_not_better(higher: bool, methods: list[str]) -> None:
    board = pd.DataFrame({"method": ["a", "b", "c"], "mean": [2.0, 1.0, 3.0]})
    assert results.methods_not_above(board, {"mean": 2.0}, higher) == methods


def test_a_run_has_the_rounds_of_all_its_seeds() -> None:
    rounds, none = pd.DataFrame({"seed": [0, 0, 0, 1, 1], "round": [1, 2, 3, 1, 2]}), pd.DataFrame()
    assert results.Run(Path(), {}, none, rounds, none, none).trained_rounds == 2


def test_settings_of_one_name_are_distinguished_by_their_tasks(tmp_path: Path) -> None:
    tasks = {"a": {"setting": "s"}, "b": {"setting": "s"}, "c": {"setting": "u"}}
    folder = write_study(tmp_path / "results" / "x", tasks, {"A": 0.0, "B": 1.0}, clients=3, rounds=2, extras=False)
    board = results.write(folder).board
    assert dict(zip(board["task"], board["setting"], strict=True)) == {"a": "s [a]", "b": "s [b]", "c": "u"}


def test_intervals_of_means_end_at_the_bounds_of_the_metric(tmp_path: Path) -> None:
    """Student's t has no bounds: with two clients, the interval of the mean goes beyond 100 %."""
    folder = write_study(tmp_path / "results" / "x", methods={"A": 12.0}, clients=2, rounds=2, extras=False)
    study = results.load_study(folder)
    board = results.compute_tables(study).board.iloc[0]
    scores = results.scores_by_method(list(study.runs), results.clients(study))["A"]
    low, high = interval(scores)
    assert 0 < low < 100 < high
    assert (board["low"], board["high"]) == (low, 100.0)
    assert clip("mse", [-1.0, 2.0]).tolist() == [0.0, 2.0]
    assert clip("a metric of another project", (-1.0, 2.0)) == (-1.0, 2.0)
