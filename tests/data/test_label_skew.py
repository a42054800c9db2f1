"""Label skews: tables of counts have the documented sums and distributions; options of all rules are described."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedweave import data
from fedweave.data.partitions import registry
from fedweave.data.partitions.label_skew import (
    Allocation,
    ClassSizes,
    clusters,
    dirichlet,
    dominant,
    draw_counts,
    grouped,
    lda,
    shards,
    some_classes,
)
from fedweave.data.partitions.quotas import allocate_rows, assign_classes, distribute_evenly, split_proportionally
from fedweave.errors import BadInput
from fedweave.settings import REQUIRED
from fedweave.tensors.random_streams import stream


def class_sizes(sizes: list[int]) -> ClassSizes:
    return ClassSizes(np.array(sizes), None)


def test_dirichlet_shares_follow_their_distribution() -> None:
    draws, beta, clients = 400, 0.5, 8
    counts = [
        dirichlet(class_sizes([20000, 20000]), clients, stream(1, i), beta=beta, balance=False, minimum=0).counts
        for i in range(draws)
    ]
    share = np.stack(counts) / 20000
    law = stats.beta(beta, beta * (clients - 1))
    assert stats.kstest(share[:, 0, 0], law.cdf).pvalue > 1e-3
    assert stats.kstest(share[:, -1, 1], law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(share[:, 3, 0], share[:, 3, 1])[0, 1]) < 4 / np.sqrt(draws)


def test_dirichlet_labels_of_random_rows_are_uniform_over_clients() -> None:
    counts = sum(
        dirichlet(class_sizes([50] * 4), 5, stream(2, i), beta=0.2, balance=False, minimum=0).counts > 25
        for i in range(300)
    )
    assert stats.chisquare(counts.sum(1)).pvalue > 1e-3


def test_dirichlet_is_uniform_for_large_beta() -> None:
    counts = dirichlet(class_sizes([1000] * 5), 10, stream(3), beta=1e7).counts
    assert np.abs(counts - 100).max() <= 2


@given(st.integers(2, 12), st.floats(0.05, 5.0), st.integers(0, 20), st.integers(0, 10**6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_dirichlet_is_complete_and_keeps_the_minimum(n: int, beta: float, low: int, seed: int, balance: bool) -> None:
    sizes, sure = np.array([400, 300, 500, 600]), low == 0 or (beta > 0.5 and n < 6)
    with nullcontext() if sure else suppress(BadInput):
        counts = dirichlet(ClassSizes(sizes, None), n, stream(seed), beta=beta, minimum=low, balance=balance).counts
        assert np.array_equal(counts.sum(0), sizes)
        assert counts.min() >= 0
        assert counts.sum(1).min() >= low


def test_balance_gives_no_more_rows_to_large_clients() -> None:
    sizes = [100] * 10
    largest = [
        max(
            dirichlet(class_sizes(sizes), 10, stream(4, i), beta=0.1, balance=b, minimum=0).counts.sum(1).max()
            for i in range(20)
        )
        for b in (True, False)
    ]
    assert largest[0] <= 199  # below rows / N before its last class, which adds at most all of its rows
    assert largest[1] > 199


def test_balance_gives_no_more_rows_to_a_client_with_exactly_its_share() -> None:
    """A client that gets the whole first class has rows / N. The second class goes to the other client."""
    draws = [dirichlet(class_sizes([10, 10]), 2, stream(7, i), beta=1e-2, minimum=0).counts for i in range(20)]
    full = [counts for counts in draws if counts[:, 0].max() == 10]
    assert len(full) > 10
    assert all(counts.sum(1).tolist() == [10, 10] for counts in full)


def test_dirichlet_accepts_clients_with_exactly_the_minimum() -> None:
    assert dirichlet(class_sizes([10, 10]), 1, stream(8), beta=1.0, minimum=20).counts.tolist() == [[10, 10]]


def test_lda_is_balanced_exactly() -> None:
    train, test = class_sizes([500] * 100), np.full(100, 100)
    allocation = lda(train, 100, stream(1), alpha=0.1)
    assert np.array_equal(allocation.counts.sum(1), np.full(100, 500))
    assert np.array_equal(allocation.counts.sum(0), train.counts)
    held = draw_counts(test, allocation.shares, stream(2))
    assert np.array_equal(held.sum(1), np.full(100, 100))
    assert np.array_equal(held.sum(0), test)
    for counts, least in ((allocation.counts[0], 0.95), (held[0], 0.85)):  # no class of the first client has run out
        assert np.corrcoef(allocation.shares[0], counts)[0, 1] > least


def test_lda_draws_from_its_shares() -> None:
    shares = np.array([[0.1, 0.2, 0.7]])
    counts = sum(draw_counts(np.array([500, 500, 500]), np.repeat(shares, 30, 0), stream(3, i))[0] for i in range(40))
    assert stats.chisquare(counts, shares[0] * counts.sum()).pvalue > 1e-3


def test_rows_of_classes_without_a_share_are_drawn_last() -> None:
    """When the classes with a share have no rows left, the draw uses the other classes, so that it ends."""
    counts = draw_counts(np.array([3, 3]), np.array([[1.0, 0.0], [1.0, 0.0]]), stream(5))
    assert counts.tolist() == [[3, 0], [0, 3]]


def test_lda_is_uniform_for_large_alpha() -> None:
    counts = lda(class_sizes([600] * 5), 6, stream(4), alpha=1e6).counts
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_every_client_has_the_same_number_of_equal_shards() -> None:
    sizes = np.array([103, 100, 100, 100, 108])
    counts = shards(ClassSizes(sizes, None), 10, stream(1), classes=2).counts
    each = sizes // 4
    assert ((counts > 0).sum(1) <= 2).all()
    assert (counts % each == 0).all()
    assert np.array_equal((counts // each).sum(0), np.full(5, 4))
    assert np.array_equal((counts // each).sum(1), np.full(10, 2))


@pytest.mark.parametrize("allocate", [partial(shards, classes=2), partial(some_classes, classes=2), grouped])
def test_classes_of_clients_are_drawn(allocate: Callable[..., Allocation]) -> None:
    """Over many seeds, each class is equally often among the classes of the first client."""
    most = np.stack([allocate(class_sizes([40] * 10), 10, stream(6, i)).counts[0] for i in range(200)])
    held = (most > 10 if allocate is grouped else most > 0).sum(0)
    assert len(np.unique(most, axis=0)) > 20
    assert np.abs(held - held.mean()).max() < 5 * np.sqrt(held.mean())


def test_shards_without_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="4 shards a class, but the smallest has 3 rows"):
        shards(class_sizes([3] + [40] * 9), 20, stream(1), classes=2)


def test_each_cluster_has_its_own_classes() -> None:
    allocation = clusters(class_sizes([60] * 10), 10, stream(1), classes=2)
    assert np.array_equal(allocation.group, np.arange(10) % 5)
    for counts, cluster in zip(allocation.counts, allocation.group, strict=True):
        assert counts[2 * cluster : 2 * cluster + 2].tolist() == [30, 30]
        assert counts.sum() == 60


@given(st.integers(1, 40), st.integers(2, 20), st.data())
@settings(max_examples=50, deadline=None)
def test_assigned_classes_are_distinct_and_balanced(clients: int, total: int, draw: st.DataObject) -> None:
    each = draw.draw(st.integers(1, total))
    held = assign_classes(clients, total, each, stream(clients, total, each))
    assert (held.sum(1) == each).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1


def test_some_classes_fill_a_data_set_exactly() -> None:
    counts = some_classes(class_sizes([6000] * 10), 100, stream(1), classes=4, size=600).counts
    assert np.array_equal(np.unique(counts), [0, 150])
    assert ((counts > 0).sum(1) == 4).all()
    assert np.array_equal(counts.sum(0), np.full(10, 6000))


def test_dominant_classes_have_their_share() -> None:
    counts = dominant(class_sizes([6000] * 10), 100, stream(1), classes=2, dominance=0.5, size=600).counts
    assert (counts.sum(1) == 600).all()
    assert (counts.sum(0) <= 6000).all()
    ordered = np.sort(counts, axis=1)
    assert (ordered[:, -2:].sum(1) >= 300).all()
    assert (ordered[:, -2:] <= 151).all()
    assert ((ordered[:, :-2] == 37) | (ordered[:, :-2] == 38)).all()


@given(st.lists(st.integers(30, 90), min_size=3, max_size=6), st.integers(2, 6), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_tables_of_counts_fit_the_class_sizes(sizes: list[int], clients: int, seed: int) -> None:
    weight = stream(seed).dirichlet(np.ones(len(sizes)), size=clients)
    counts = allocate_rows(np.array(sizes), weight, None)
    assert (counts.sum(0) <= sizes).all()
    assert len(np.unique(counts.sum(1))) == 1
    assert np.abs(counts - counts[0].sum() * weight).max() < 1 + 1e-9


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_remainders_are_spread_over_the_clients(sizes: list[int], clients: int) -> None:
    counts = distribute_evenly(np.array(sizes), np.ones((clients, len(sizes)), dtype=bool))
    assert np.array_equal(counts.sum(0), sizes)
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(1)) <= 1


@given(st.integers(1, 10**6), st.integers(1, 300), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_proportional_cuts_are_exact(size: int, clients: int, seed: int) -> None:
    share = stream(seed).dirichlet(np.full(clients, 0.3)) * (stream(seed, 1).random(clients) < 0.7)
    share[0] += 0.1
    counts = split_proportionally(share, size)
    assert counts.sum() == size
    assert (counts[share == 0] == 0).all()
    assert np.abs(counts - share / share.sum() * size).max() < 1 + 1e-5


def test_most_rows_of_a_class_are_in_its_group() -> None:
    allocation = grouped(class_sizes([1000] * 10), 20, stream(1))
    home = np.stack([allocation.counts[allocation.group == g].sum(0) for g in range(5)])
    assert np.array_equal(np.sort(home, axis=0), np.repeat([[40]] * 4 + [[840]], 10, axis=1))
    assert ((home > 500).sum(1) == 2).all()
    assert allocation.counts.sum(1).tolist() == [500] * 20


@pytest.mark.parametrize("name", data.PARTITIONS)
def test_options_are_described(name: str) -> None:
    """Each option has a meaning. Its default has its type and is within its bounds."""
    for option in registry.settings(name):
        assert option.meaning, option.name
        if option.default is not REQUIRED:
            option.check(option.default, option.name)
