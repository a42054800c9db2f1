"""The schedule: participants, minibatches and keys depend on seed, round and identity, with the documented
distribution.
"""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from fedweave.engine.clients import Cohort
from fedweave.engine.schedule import Training, client_plan, cohort, participants, participation_counts, sample_size
from fedweave.tensors.random_streams import stream

IDS = torch.arange(40)
EPOCHS = Training(batch_size=4, epochs=3)


def plan(rows: int, training: Training, epochs: int = 3) -> np.ndarray:
    """The minibatches [E, S, B] of a client with `rows` rows that begin at 100."""
    return client_plan(np.arange(100, 100 + rows), training, epochs, stream(0, rows))


def toy_cohort(seed: int = 0, round: int = 0, order: torch.Tensor | None = None) -> Cohort:
    """All clients of the toy, with the same twelve training rows each."""
    federation = tiny.rows_federation()
    federation = replace(federation, train=torch.arange(12).expand(tiny.CLIENTS, -1))
    positions = torch.arange(tiny.CLIENTS)
    return cohort(federation if order is None else federation.select(order), positions, EPOCHS, 3, seed, round)


@pytest.mark.parametrize(
    ("participation", "clients", "expected"),
    [(0.28, 25, 7), (0.281, 25, 8), (0.01, 20, 1), (1.0, 20, 20), (1.9, 20, 1), (7, 20, 7), (30, 20, 20)],
)
def test_a_share_of_clients_is_rounded_up(participation: float, clients: int, expected: int) -> None:
    """A number above 1 is a number of clients. There is at least one participant, and at most all clients."""
    assert sample_size(participation, clients) == expected
    assert len(participants(0, 0, torch.arange(clients), participation)) == expected


def test_participants_depend_on_identities() -> None:
    """Another order of the clients gives the same identities. Another seed or round gives others."""
    sample = participants(3, 5, IDS, 9)
    assert torch.equal(sample, sample.sort().values)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(IDS[order][participants(3, 5, IDS[order], 9)].sort().values, sample)
    assert not torch.equal(participants(3, 6, IDS, 9), sample)
    assert not torch.equal(participants(4, 5, IDS, 9), sample)
    assert {*participants(3, 5, IDS, 8).tolist()} < {*sample.tolist()}, "a smaller sample is a part of a larger one"


def test_participation_is_counted_among_the_clients_of_the_round() -> None:
    """The count of a client is the number of rounds whose sample contains it. Rounds without uploads do not count."""
    present = [30, 30, 0, 40, 40]
    expected = torch.zeros(40, dtype=torch.int64)
    for round, clients in zip(range(2, 7), present, strict=True):
        if clients:
            expected[participants(1, round, IDS[:clients], 0.25)] += 1
    assert torch.equal(participation_counts(1, 2, present, IDS, 0.25), expected)
    assert expected.sum() == 2 * 8 + 2 * 10


@pytest.mark.parametrize("rows", [3, 4, 10, 12])
def test_an_epoch_is_a_shuffled_pass_over_the_rows(rows: int) -> None:
    """Every epoch has each row once, in its own order. Only the last batch is padded."""
    batches = plan(rows, EPOCHS)
    assert batches.shape == (3, -(-rows // 4), 4)
    assert (batches[:, :-1] >= 0).all()
    epochs = [epoch[epoch >= 0] for epoch in batches]
    assert all(np.array_equal(np.sort(epoch), np.arange(100, 100 + rows)) for epoch in epochs)
    if rows > 4:  # with so many rows, two equal orders are very unlikely
        assert len({tuple(epoch) for epoch in epochs} | {tuple(range(100, 100 + rows))}) == 4


@pytest.mark.parametrize(("rows", "steps"), [(3, 1), (4, 1), (10, 2), (12, 3)])
def test_an_incomplete_batch_is_left_out(rows: int, steps: int) -> None:
    """A client with fewer rows than one batch keeps its batch."""
    batches = plan(rows, replace(EPOCHS, drop_last=True))
    assert batches.shape == (3, steps, 4)
    assert (batches >= 0).sum() == 3 * min(rows, 4 * steps)


def test_steps_continue_the_pass_over_the_rows() -> None:
    """Five steps of four rows over ten rows are two passes, and the second one is incomplete."""
    batches = plan(10, replace(EPOCHS, steps=5), epochs=1)
    assert batches.shape == (1, 5, 4)
    first, second = batches[0, :3], batches[0, 3:]
    assert np.array_equal(np.sort(first[first >= 0]), np.arange(100, 110))
    assert len(np.unique(second)) == 8
    assert plan(10, replace(EPOCHS, steps=2, batch_size=0), epochs=3).shape == (3, 2, 10)


def test_minibatches_and_keys_depend_on_seed_round_and_identity() -> None:
    """Clients with the same rows have other orders and keys. The order of clients has no effect."""
    base = toy_cohort()
    assert len({tuple(client.flatten().tolist()) for client in base.plan}) == tiny.CLIENTS
    assert len({*base.keys.tolist()}) == tiny.CLIENTS
    for other in (toy_cohort(seed=1), toy_cohort(round=1)):
        assert (other.plan != base.plan).flatten(1).any(1).all()
        assert (other.keys != base.keys).all()
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = toy_cohort(order=order)
    assert torch.equal(moved.plan, base.plan[order])
    assert torch.equal(moved.keys, base.keys[order])
