"""Draws that are functions of their key: uniform, independent, and the same in every executor."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.func import vmap

from fedweave.tensors import dropout_keys


def test_uniform_draws_are_uniform_and_uncorrelated() -> None:
    draws = dropout_keys.uniform(dropout_keys.key(5), (400, 500)).double().numpy()
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 0.001
    assert abs(np.corrcoef(draws.ravel()[:-1], draws.ravel()[1:])[0, 1]) < 4 / np.sqrt(draws.size)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    n = 400_000
    out = dropout_keys.dropout(torch.ones(n, dtype=torch.float64), p, dropout_keys.key(7))
    dropped = (out == 0).sum().item()
    assert abs(dropped - n * p) < 4 * np.sqrt(n * p * (1 - p))
    assert out[out > 0].unique().numel() == 1
    assert float(out.max()) * (1 - p) == pytest.approx(1.0, rel=2**-15 / (1 - p))


def test_neighbours_are_dropped_independently() -> None:
    """Four elements share a hash. No two of them may be correlated."""
    mask = (
        (dropout_keys.dropout(torch.ones(200_000, dtype=torch.float64), 0.5, dropout_keys.key(11)) > 0)
        .reshape(-1, 4)
        .double()
        .numpy()
    )
    correlation = np.corrcoef(mask.T) - np.eye(4)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(mask))


@pytest.mark.parametrize("shape", [(3,), (5, 7), (2, 3, 4)])
def test_a_batch_of_keys_has_the_draws_of_each_key(shape: tuple[int, ...]) -> None:
    base = torch.stack([dropout_keys.key(i) for i in range(4)])
    h = torch.rand(4, *shape, dtype=torch.float64)
    together = vmap(lambda h, key: dropout_keys.dropout(h, 0.4, key, salt=2) + dropout_keys.uniform(key, shape))(
        h, base
    )
    apart = torch.stack(
        [dropout_keys.dropout(h[i], 0.4, base[i], salt=2) + dropout_keys.uniform(base[i], shape) for i in range(4)]
    )
    assert torch.equal(together, apart)
    assert not torch.equal(apart[0], apart[1])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_integers_and_tensors_give_the_same_key(ints: list[int]) -> None:
    tensors = dropout_keys.fold(torch.zeros((), dtype=torch.int64), *map(torch.tensor, ints))
    assert torch.equal(dropout_keys.key(*ints), tensors)
    assert torch.equal(dropout_keys.fold(dropout_keys.key(ints[0]), *ints[1:]), tensors)


def test_evaluation_drops_nothing() -> None:
    h = torch.rand(9)
    assert dropout_keys.dropout(h, 0.5, None) is h
    assert dropout_keys.dropout(h, 0.0, dropout_keys.key(1)) is h
