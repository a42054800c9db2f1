"""Small rules of the tables: signs, equal scores, rounds of all seeds, names of settings."""

from pathlib import Path

import pandas as pd
import pytest

from fedweave import results
from fedweave.metrics import clip
from fedweave.results.formats import format_difference
from fedweave.results.repetitions import interval
from tests.fake_results import write_study


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "+1.00"), (0.0, "0.00"), (1e-9, "0.00"), (-1e-9, "0.00"), (-1.0, "\N{MINUS SIGN}1.00")]
)
def test_only_a_gain_has_a_plus_sign(value: float, text: str) -> None:
    assert format_difference(value, "accuracy") == text


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
