"""Tables of whole numbers with given sums: how many rows each client gets. Legend: N clients, C classes."""

import numpy as np

from fedweave.errors import BadInput


def assign_classes(clients: int, total: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Random bools [N, C]: `each` distinct classes a client, every class equally often (within one)."""
    quota = np.full(total, clients * each // total)
    quota[rng.permutation(total)[: clients * each % total]] += 1
    holds = np.zeros((clients, total), dtype=bool)
    for i in range(clients):
        # A class whose quota equals the number of clients left must be assigned now; the others are drawn by quota.
        forced = quota == clients - i
        weight = np.where(forced, 0, quota).astype(float)
        free = each - int(forced.sum())
        holds[i] = forced
        if free:
            holds[i, rng.choice(total, size=free, replace=False, p=weight / weight.sum())] = True
        quota -= holds[i]
    return holds


def allocate_rows(sizes: np.ndarray, weight: np.ndarray, size: int | None) -> np.ndarray:
    """Counts [N, C] near size * `weight` [N, C] with rows of exactly `size` that fit in `sizes` [C]."""
    limit = int(np.floor((sizes / np.maximum(weight.sum(0), 1e-12)).min() + 1e-9))
    if size is None:
        tables = (_round_counts(sizes, weight, rows) for rows in range(limit, 0, -1))
        counts = next((table for table in tables if table is not None), None)
    else:
        counts = _round_counts(sizes, weight, size)
    if counts is None:
        raise BadInput(
            f"partition.size: {size} rows for each of {len(weight)} clients are too many; give at most {limit}"
        )
    return counts


def _round_counts(sizes: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray | None:
    """Round size * weight down, then add rows of the classes with most rows left; None if a class has too few rows."""
    counts = np.floor(size * weight + 1e-9).astype(np.int64)
    remaining = sizes - counts.sum(0)
    for row, share in zip(counts, weight, strict=True):
        missing = size - int(row.sum())
        extra = np.argsort(np.where(share > 0, -remaining, np.iinfo(np.int64).max), kind="stable")[:missing]
        row[extra] += 1
        remaining[extra] -= 1
    return None if remaining.min() < 0 else counts


def split_proportionally(share: np.ndarray, size: int) -> np.ndarray:
    """Cut `size` rows by the cumulative shares [N]: int64 [N] with sum `size`."""
    ends = np.round(np.cumsum(share) / share.sum() * size, 6)  # so that 0.999999999 counts as 1
    return np.diff(np.floor(ends).astype(np.int64), prepend=0)


def split_evenly(total: int, parts: int) -> np.ndarray:
    """`parts` integers with sum `total` that differ by at most one, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def distribute_evenly(sizes: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Share each class c evenly over the clients with `member` [N, C]: counts [N, C].

    Remainders go to consecutive clients from class to class, so that no client collects them all.
    """
    counts = np.zeros(member.shape, dtype=np.int64)
    start = 0
    for c, size in enumerate(sizes):
        members = np.flatnonzero(member[:, c])
        counts[np.roll(members, -(start % max(1, len(members)))), c] = split_evenly(int(size), len(members))
        start += int(size) % len(members)
    return counts
