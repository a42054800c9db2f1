"""Tables of whole numbers with given sums: who gets how many rows. Legend: N clients, C classes."""

import numpy as np

from fedweave.errors import BadInput


def assign_classes(clients: int, total: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Random bools [N, C]: `each` distinct classes a client, every class equally often (within one)."""
    quota = np.full(total, clients * each // total)
    quota[rng.permutation(total)[: clients * each % total]] += 1
    held = np.zeros((clients, total), dtype=bool)
    for i in range(clients):
        # A class whose quota equals the clients that are left must be taken now; others are drawn by quota.
        forced = quota == clients - i
        weight = np.where(forced, 0, quota).astype(float)
        free = each - int(forced.sum())
        held[i] = forced
        if free:
            held[i, rng.choice(total, size=free, replace=False, p=weight / weight.sum())] = True
        quota -= held[i]
    return held


def allocate_rows(sizes: np.ndarray, weight: np.ndarray, size: int | None) -> np.ndarray:
    """Counts [N, C] near size * `weight` [N, C] with rows of exactly `size` that fit in `sizes` [C]."""
    most = int(np.floor((sizes / np.maximum(weight.sum(0), 1e-12)).min() + 1e-9))
    if size is None:
        tables = (_round_counts(sizes, weight, rows) for rows in range(most, 0, -1))
        counts = next((table for table in tables if table is not None), None)
    else:
        counts = _round_counts(sizes, weight, size)
    if counts is None:
        raise BadInput(f"partition.size: {size} rows for each of {len(weight)} clients are not there; at most {most}")
    return counts


def _round_counts(sizes: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray | None:
    """Round size * weight down and fill up from the classes with most rows left; None if they run short."""
    counts = np.floor(size * weight + 1e-9).astype(np.int64)
    left = sizes - counts.sum(0)
    for row, share in zip(counts, weight, strict=True):
        missing = size - int(row.sum())
        extra = np.argsort(np.where(share > 0, -left, np.iinfo(np.int64).max), kind="stable")[:missing]
        row[extra] += 1
        left[extra] -= 1
    return None if left.min() < 0 else counts


def split_proportionally(share: np.ndarray, size: int) -> np.ndarray:
    """Cut `size` rows by the cumulative shares [N]: int64 [N] with sum `size`."""
    ends = np.round(np.cumsum(share) / share.sum() * size, 6)  # 0.999999999 is 1
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
        takers = np.flatnonzero(member[:, c])
        counts[np.roll(takers, -(start % max(1, len(takers)))), c] = split_evenly(int(size), len(takers))
        start += int(size) % len(takers)
    return counts
