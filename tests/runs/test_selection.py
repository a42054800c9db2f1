"""Scores and statistics compared with NumPy, and the choice of a round compared with its definition."""

import warnings
from functools import partial

import numpy as np
import pytest
import tiny
import torch

from fedweave.client.data import ClientData
from fedweave.errors import BadInput
from fedweave.runs import selection
from fedweave.tensors import dropout_keys

DRAWS = np.random.default_rng(0)
ROUNDS = np.array([2, 4, 6, 8, 10])


def client(**arrays: np.ndarray) -> ClientData:
    """A client with arrays only."""
    none = torch.zeros(0, dtype=torch.int64)
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    return ClientData(tensors, (), none, none, none, dropout_keys.key(0), 0, torch.tensor(0.0), True)


def test_a_clients_accuracy_is_over_its_real_rows_also_under_vmap() -> None:
    y, weight, task = DRAWS.integers(0, tiny.CLASSES, 20), DRAWS.uniform(size=tiny.CLASSES), tiny.rows_task()
    data, rows, outputs = (
        client(y=y, test_weight=weight),
        np.array([4, 11, 7, 0, 19, -1, -1]),
        DRAWS.normal(size=(6, 7, tiny.CLASSES)),
    )
    hits = 100.0 * (outputs.argmax(-1)[:, :5] == y[rows[:5]])
    for shared, expected in {False: hits.mean(1), True: np.average(hits, axis=1, weights=weight[y[rows[:5]]])}.items():
        score = partial(task.score, data=data, rows=torch.from_numpy(rows), shared_test=shared)
        mapped = torch.func.vmap(score)(torch.from_numpy(outputs))
        np.testing.assert_allclose(mapped, expected, rtol=1e-12)
        np.testing.assert_allclose([score(out) for out in torch.from_numpy(outputs)], expected, rtol=1e-12)
    assert task.score(torch.from_numpy(outputs[0]), data, torch.full((7,), -1)).isnan()


def test_a_sensors_error_is_the_mean_over_rows_and_steps() -> None:
    """Row = sensor · T + start. Three input values, two output values."""
    series, rows, outputs = DRAWS.normal(size=(2, 10)), torch.tensor([0, 3, 12, -1]), DRAWS.normal(size=(4, 2))
    truth = np.stack([series[0, 3:5], series[0, 6:8], series[1, 5:7]])
    score = tiny.series_task().score(torch.from_numpy(outputs), client(x=series), rows)
    assert float(score) == pytest.approx(np.mean((outputs[:3] - truth) ** 2), rel=1e-12)


def test_a_run_in_four_numbers() -> None:
    values = DRAWS.normal(size=(4, 20))
    summary = selection.summarise_run(values)
    means = values.mean(1)
    assert summary.mean == pytest.approx(means.mean())
    assert summary.std == pytest.approx(np.sqrt(((means - means.mean()) ** 2).sum() / 3))
    assert summary.client_std == pytest.approx(values.std(1).mean())
    assert summary.worst10 == pytest.approx(np.sort(values, axis=1)[:, :2].mean())
    one = selection.summarise_run(values[:1])
    assert np.isnan(one.std)
    assert one.mean == pytest.approx(means[0])


def test_client_mean_is_not_weighted_by_size() -> None:
    values, sizes = np.array([100.0, 0.0, 50.0]), np.array([1, 98, 1])
    assert selection.summarise(values).mean == 50.0
    assert abs(selection.summarise(values).mean - np.average(values, weights=sizes)) > 40
    assert selection.summarise(values).client_std == pytest.approx(np.std(values))


@pytest.mark.parametrize(("clients", "worst"), [(3, 1), (10, 1), (19, 1), (20, 2), (100, 10)])
def test_worst_tenth_of_the_clients(clients: int, worst: int) -> None:
    values = DRAWS.permutation(np.arange(float(clients)))
    assert selection.summarise(values).worst10 == pytest.approx(np.mean(range(worst)))
    assert selection.summarise(values, higher_is_better=False).worst10 == pytest.approx(
        np.mean(range(clients - worst, clients))
    )


def test_a_nan_of_a_client_makes_the_mean_nan() -> None:
    assert np.isnan(selection.summarise(np.array([1.0, np.nan, 3.0]))).all()


@pytest.mark.parametrize("higher", [True, False])
def test_rules_follow_their_definition(higher: bool) -> None:
    for _ in range(50):
        val, test = DRAWS.normal(size=(5, 6)), DRAWS.normal(size=(5, 6))
        best = np.argmax if higher else np.argmin
        expected = {
            "best_val_round": np.full(6, best(val.mean(1))),
            "per_client_best_val": best(val, axis=0),
            "last": np.full(6, 4),
            "best_test_round": np.full(6, best(test.mean(1))),
        }
        assert set(expected) == set(selection.RULES)
        for rule, index in expected.items():
            np.testing.assert_array_equal(selection.select(val, ROUNDS, rule, higher, test), index)


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val", "last"])
def test_selection_reads_validation_only(rule: str) -> None:
    val = DRAWS.normal(size=(5, 6))
    picks = [
        selection.select(val, ROUNDS, rule, True, test) for test in (None, np.zeros((5, 6)), DRAWS.normal(size=(5, 6)))
    ]
    assert all((pick == picks[0]).all() for pick in picks)


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val"])
@pytest.mark.parametrize("higher", [True, False])
def test_the_earliest_of_equal_rounds_is_chosen_for_any_order_of_rows(rule: str, higher: bool) -> None:
    rounds = np.array([8, 2, 6, 4])
    assert (rounds[selection.select(np.ones((4, 3)), rounds, rule, higher)] == 2).all()
    assert (rounds[selection.select(np.ones((4, 3)), rounds, "last", higher)] == 8).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rounds_with_broken_validation_are_never_chosen(bad: float) -> None:
    val = np.arange(10.0).reshape(5, 2)
    val[4, 0] = bad
    assert (selection.select(val, ROUNDS, "best_val_round", True) == 3).all()
    assert selection.select(val, ROUNDS, "per_client_best_val", True).tolist() == [3, 4]


def test_a_client_without_validation_rows_does_not_vote() -> None:
    val = np.array([[1.0, np.nan, 5.0], [3.0, np.nan, 2.0], [2.0, np.nan, 2.0]])
    assert selection.select(val, [1, 2, 3], "best_val_round", True).tolist() == [0, 0, 0]
    assert selection.select(val, [1, 2, 3], "per_client_best_val", True).tolist() == [1, 0, 0]
    assert selection.select(val[::-1], [1, 2, 3], "best_val_round", True).tolist() == [2, 2, 2]
    assert selection.select(val[::-1], [1, 2, 3], "per_client_best_val", True).tolist() == [1, 2, 2]


@pytest.mark.parametrize("rule", ["best_val_round", "best_test_round"])
def test_no_round_is_chosen_where_each_lacks_a_client(rule: str) -> None:
    broken = np.array([[np.nan, 1.0], [1.0, np.nan]])
    assert selection.select(broken, [1, 2], rule, True, broken) is None
    assert selection.select(np.full((2, 2), np.nan), [1, 2], rule, True, np.full((2, 2), np.nan)) is None


def test_the_mean_of_no_finite_value_is_none_without_a_warning() -> None:
    assert selection.finite_mean(np.array([1.0, np.nan, 3.0, np.inf])) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(selection.finite_mean(np.full(3, np.nan)))
        assert np.isnan(selection.finite_mean(np.empty(0)))


def test_errors_name_the_key_and_the_way_out() -> None:
    with pytest.raises(BadInput, match=r"evaluate\.select: 'best_val' is unknown; did you mean 'best_val_round'"):
        selection.select(np.ones((2, 2)), [1, 2], "best_val", True)
    with pytest.raises(BadInput, match=r"test: shape \(\)"):
        selection.select(np.ones((2, 2)), [1, 2], "best_test_round", True)
    with pytest.raises(BadInput, match="does not match 3 rounds"):
        selection.select(np.ones((2, 2)), [1, 2, 3], "last", True)
    with pytest.raises(BadInput, match="one value per client"):
        selection.summarise(np.empty(0))
