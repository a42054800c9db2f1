"""Scores against NumPy, and the choice of a round against its definition."""

import numpy as np
import pytest
import torch

from fedweave import metrics
from fedweave.errors import BadInput

RNG = np.random.default_rng(0)
ROUNDS = np.array([2, 4, 6, 8, 10])


def test_masked_mean_is_the_weighted_mean_of_real_rows() -> None:
    values, weights = RNG.normal(size=(3, 7)), RNG.uniform(size=(3, 7))
    weights[:, 4:] = 0
    spoiled = values.copy()
    spoiled[:, 4:] = np.nan
    got = metrics.masked_mean(torch.tensor(spoiled), torch.tensor(weights)).numpy()
    np.testing.assert_allclose(got, [np.average(v[:4], weights=w[:4]) for v, w in zip(values, weights, strict=True)], rtol=1e-12)
    assert torch.isnan(metrics.masked_mean(torch.ones(2), torch.zeros(2, dtype=torch.bool)))


def test_accuracy_and_mse_against_numpy_also_under_vmap() -> None:
    logits, targets = RNG.normal(size=(4, 9, 5)), RNG.integers(0, 5, size=(4, 9))
    mask = RNG.uniform(size=(4, 9)) > 0.3
    expected = [100 * np.mean(x.argmax(-1)[m] == y[m]) for x, y, m in zip(logits, targets, mask, strict=True)]
    tensors = torch.tensor(logits), torch.tensor(targets), torch.tensor(mask)
    np.testing.assert_allclose(metrics.accuracy(*tensors).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(torch.func.vmap(metrics.accuracy)(*tensors).numpy(), expected, rtol=1e-12)
    series, truth = torch.tensor(logits), torch.tensor(RNG.normal(size=(4, 9, 5)))
    expected = [np.mean((a[m] - b[m]) ** 2) for a, b, m in zip(logits, truth.numpy(), mask, strict=True)]
    np.testing.assert_allclose(metrics.mse(series, truth, tensors[2]).numpy(), expected, rtol=1e-12)


def test_client_mean_is_macro_not_weighted_by_size() -> None:
    values, sizes = np.array([100.0, 0.0, 50.0]), np.array([1, 98, 1])
    assert metrics.summarise(values).mean == 50.0
    assert abs(metrics.summarise(values).mean - np.average(values, weights=sizes)) > 40
    assert metrics.summarise(values).client_std == pytest.approx(np.std(values))


@pytest.mark.parametrize(("clients", "worst"), [(3, 1), (10, 1), (19, 1), (20, 2), (100, 10)])
def test_worst_tenth_of_the_clients(clients: int, worst: int) -> None:
    values = RNG.permutation(np.arange(float(clients)))
    assert metrics.summarise(values).worst10 == pytest.approx(np.mean(range(worst)))
    assert metrics.summarise(values, higher_is_better=False).worst10 == pytest.approx(np.mean(range(clients - worst, clients)))


def test_a_nan_client_is_not_averaged_away() -> None:
    assert np.isnan(metrics.summarise(np.array([1.0, np.nan, 3.0]))).all()


@pytest.mark.parametrize("higher", [True, False])
def test_rules_follow_their_definition(higher: bool) -> None:
    for _ in range(50):
        val, test = RNG.normal(size=(5, 6)), RNG.normal(size=(5, 6))
        best = np.argmax if higher else np.argmin
        expected = {
            "best_val_round": np.full(6, best(val.mean(1))),
            "per_client_best_val": best(val, axis=0),
            "last": np.full(6, 4),
            "best_test_round": np.full(6, best(test.mean(1))),
        }
        assert set(expected) == set(metrics.RULES)
        for rule, index in expected.items():
            np.testing.assert_array_equal(metrics.select(val, ROUNDS, rule, higher, test), index)


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val", "last"])
def test_selection_reads_validation_only(rule: str) -> None:
    val = RNG.normal(size=(5, 6))
    picks = [metrics.select(val, ROUNDS, rule, True, test) for test in (None, np.zeros((5, 6)), RNG.normal(size=(5, 6)))]
    assert all((pick == picks[0]).all() for pick in picks)


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val"])
@pytest.mark.parametrize("higher", [True, False])
def test_ties_go_to_the_earliest_round_whatever_the_order_of_rows(rule: str, higher: bool) -> None:
    rounds = np.array([8, 2, 6, 4])
    assert (rounds[metrics.select(np.ones((4, 3)), rounds, rule, higher)] == 2).all()
    assert (rounds[metrics.select(np.ones((4, 3)), rounds, "last", higher)] == 8).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rounds_with_broken_validation_are_never_chosen(bad: float) -> None:
    val = np.arange(10.0).reshape(5, 2)
    val[4, 0] = bad
    assert (metrics.select(val, ROUNDS, "best_val_round", True) == 3).all()
    assert metrics.select(val, ROUNDS, "per_client_best_val", True).tolist() == [3, 4]


def test_a_client_without_validation_rows_does_not_vote() -> None:
    val = np.array([[1.0, np.nan, 5.0], [3.0, np.nan, 2.0], [2.0, np.nan, 2.0]])
    assert metrics.select(val, [1, 2, 3], "best_val_round", True).tolist() == [0, 0, 0]
    assert metrics.select(val, [1, 2, 3], "per_client_best_val", True).tolist() == [1, 0, 0]


def test_errors_name_the_key_and_the_way_out() -> None:
    with pytest.raises(BadInput, match=r"evaluate\.select: 'best_val' is unknown; did you mean 'best_val_round'"):
        metrics.select(np.ones((2, 2)), [1, 2], "best_val", True)
    with pytest.raises(BadInput, match=r"test: shape \(\)"):
        metrics.select(np.ones((2, 2)), [1, 2], "best_test_round", True)
    with pytest.raises(BadInput, match="does not match 3 rounds"):
        metrics.select(np.ones((2, 2)), [1, 2, 3], "last", True)
    with pytest.raises(BadInput, match="no evaluated round has a finite value"):
        metrics.select(np.array([[np.nan, 1.0], [1.0, np.nan]]), [1, 2], "best_val_round", True)
    with pytest.raises(BadInput, match="one value per client"):
        metrics.summarise(np.empty(0))
