"""The schedule of a run: participants and their minibatches, as functions of (seed, round, client)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedweave.client.solvers import Solver
from fedweave.engine.clients import Clients, Cohort
from fedweave.tensors import dropout_keys
from fedweave.tensors.random_streams import first_numbers, streams

LANES = 64  # padding to a multiple of this many rows does not change the order of sums, so no bit changes
# The random streams that are derived from a run's seed.
SAMPLING, BATCHES, DROPOUT, INITIAL, SERVER, EVALUATION = range(1, 7)


@dataclass(frozen=True)
class Training:
    """How a client spends one round.

    Attributes:
        batch_size: B, at most the rows of the largest client; 0: the client's whole training set in one batch.
        epochs: E passes over the training rows; ignored when `steps` is given.
        steps: K steps a round instead of epochs (one "epoch" of the plan is then K steps), or 0.
        drop_last: leave out a last incomplete batch of clients with at least B rows (for BatchNorm).
        average_buffers: BatchNorm statistics are sent and averaged with the model, in methods that average.
        uniform_mean: the server gives all uploads equal weights, instead of their numbers of training rows.
        keep_optimizer: every client has one optimiser for the whole run, instead of a new one every round.
        server: the optimiser of a server that averages, or None for a server that takes the mean.
    """

    batch_size: int = 32
    epochs: int = 1
    steps: int = 0
    drop_last: bool = False
    average_buffers: bool = False
    keep_optimizer: bool = False
    uniform_mean: bool = False
    server: Solver | None = None


def sample_size(participation: float, clients: int) -> int:
    """How many of `clients` take part in a round: a fraction (≤ 1) or a number (> 1) of them, at least 1."""
    # Minus 1e-9, because 0.28 * 25 is a little above 7 in floating point.
    number = int(participation) if participation > 1 else int(np.ceil(participation * clients - 1e-9))
    return min(clients, max(1, number))


def participants(seed: int, round: int, ids: Tensor, participation: float) -> Tensor:
    """Positions of the clients sampled in `round`, ascending: `sample_size` of them."""
    number = sample_size(participation, len(ids))
    if number == len(ids):
        return torch.arange(number)
    # Scores depend on identities, so that relabelling the clients relabels the sample.
    scores = first_numbers(seed, SAMPLING, round, ids=ids.numpy())
    return torch.from_numpy(np.sort(np.argsort(scores, kind="stable")[:number]))


def participation_counts(seed: int, first: int, present: Sequence[int], ids: Tensor, participation: float) -> Tensor:
    """How often each of the clients `ids` [N] took part from round `first` on.

    In the i-th of these rounds the first `present[i]` clients existed, or none counts if it is 0.
    """
    counts = torch.zeros(len(ids), dtype=torch.int64)
    for round, clients in enumerate(present, first):
        if not clients:
            continue
        counts[participants(seed, round, ids[:clients], participation)] += 1
    return counts


def client_plan(rows: np.ndarray, training: Training, epochs: int, generator: np.random.Generator) -> np.ndarray:
    """One client's minibatches [E, S, B]; −1 is padding; every pass over `rows` is shuffled."""
    m = len(rows)
    if training.batch_size == 0:
        return np.broadcast_to(rows, (epochs, training.steps or 1, m))
    size = training.batch_size
    per_pass = m // size if training.drop_last and m >= size else -(-m // size)
    steps = training.steps or per_pass
    passes = np.full((-(-epochs * steps // per_pass), per_pass * size), -1, dtype=np.int64)
    for row in passes:
        shuffled = generator.permutation(rows)[: per_pass * size]
        row[: len(shuffled)] = shuffled
    return passes.reshape(-1, size)[: epochs * steps].reshape(epochs, steps, size)


def _limit_batch_size(training: Training, rows: int) -> Training:
    """`training` with the same batches, and a batch size of no more than the `rows` of the largest client needs."""
    return replace(training, batch_size=min(training.batch_size, -(-rows // LANES) * LANES))


def cohort(
    federation: Clients,
    positions: Tensor,
    training: Training,
    epochs: int,
    seed: int,
    round: int,
    testing: bool = False,
) -> Cohort:
    """The participants at `positions` with their plan of `epochs` epochs [P, E, S, B] and their keys."""
    training, ids = _limit_batch_size(training, federation.train.shape[1]), federation.ids.cpu()[positions]
    train = federation.train.cpu()[positions].numpy()
    plans = [
        client_plan(rows[rows >= 0], training, epochs, generator)
        for rows, generator in zip(train, streams(seed, BATCHES, round, ids=ids.numpy()), strict=True)
    ]
    shape = tuple(max(p.shape[d] for p in plans) for d in (1, 2))
    padded = np.full((len(plans), epochs, *shape), -1, dtype=np.int64)
    for i, p in enumerate(plans):
        padded[i, :, : p.shape[1], : p.shape[2]] = p
    base = dropout_keys.key(seed, DROPOUT, round)
    return Cohort(federation, positions, torch.from_numpy(padded), dropout_keys.fold(base, ids), round, testing)


def evaluation_sample(seed: int, ids: Tensor, clients: int) -> Tensor | None:
    """The clients that are evaluated, bool [N]: `clients` of the clients `ids` [N], or None for all of them.

    It depends on the identities and on `seed` alone, which is the seed of the partition (of several: the first). So the
    sample is the same for all methods, settings and repetitions of a task.

    Args:
        clients: K; 0, or N and more, for all.
    """
    if not 0 < clients < len(ids):
        return None
    scores = first_numbers(seed, EVALUATION, ids=ids.numpy())
    chosen = torch.zeros(len(ids), dtype=torch.bool)
    chosen[torch.from_numpy(np.argsort(scores, kind="stable")[:clients])] = True
    return chosen


def evaluation_cohort(
    federation: Clients, seed: int, round: int, testing: bool = True, positions: Tensor | None = None
) -> Cohort:
    """The clients at `positions` (default: all) with an empty plan: for evaluation, and for what needs no training."""
    positions = torch.arange(federation.clients) if positions is None else positions
    base = dropout_keys.key(seed, DROPOUT, round)
    return Cohort(
        federation,
        positions,
        torch.empty((len(positions), 0, 0, 0), dtype=torch.int64),
        dropout_keys.fold(base, federation.ids.cpu()[positions]),
        round,
        testing,
    )
