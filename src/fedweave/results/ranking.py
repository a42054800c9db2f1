"""Average ranks of methods over clients and tasks, with Friedman's test and Nemenyi's critical difference.

Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7 (2006).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.errors import BadInput
from fedweave.results.formats import ALPHA, DIGITS


class Ranking(NamedTuple):
    """Average ranks [M] over T tasks (1 is best), Friedman's p, and the critical difference of Nemenyi's test."""

    methods: tuple[str, ...]
    ranks: np.ndarray
    tasks: int
    p: float
    critical_difference: float


def ranks(scores: np.ndarray, higher_is_better: Sequence[bool]) -> np.ndarray:
    """Rank of each method within each task, [T, M] from `scores` [T, M]; 1 is best, ties share the mean rank."""
    signed = np.asarray(scores, dtype=np.float64) * np.where(np.asarray(higher_is_better), -1.0, 1.0)[:, None]
    scale = np.abs(signed).max(axis=1, keepdims=True)
    return np.stack([_rank_values(row) for row in (signed / np.where(scale > 0, scale, 1.0)).round(DIGITS)])


def ranking(methods: Sequence[str], scores: np.ndarray, higher_is_better: Sequence[bool]) -> Ranking:
    """Average ranks with Friedman's test and Nemenyi's critical difference at 0.05.

    Raises:
        BadInput: fewer than two tasks or three methods, or an empty cell.
    """
    scores = np.asarray(scores, dtype=np.float64)
    tasks, count = scores.shape
    if tasks < 2 or count < 3 or not np.isfinite(scores).all():
        raise BadInput(f"scores: {tasks} tasks x {count} methods cannot be ranked; it takes 2 x 3 finite cells or more")
    table = ranks(scores, higher_is_better)
    critical = studentized_range(count) / np.sqrt(2) * np.sqrt(count * (count + 1) / (6 * tasks))
    return Ranking(tuple(methods), table.mean(0), tasks, friedman(table), float(critical))


def friedman(table: np.ndarray) -> float:
    """p of Friedman's test on ranks [T, M], corrected for ties; 1 where all are tied."""
    from scipy.special import chdtrc

    tasks, count = table.shape
    ties = sum(float((n**3 - n).sum()) for n in (np.unique(row, return_counts=True)[1] for row in table))
    correction = 1 - ties / (tasks * count * (count**2 - 1))
    if correction <= 0:
        return 1.0
    statistic = 12 * tasks / (count * (count + 1)) * float(((table.mean(0) - (count + 1) / 2) ** 2).sum()) / correction
    return float(chdtrc(count - 1, statistic))


def studentized_range(count: int) -> float:
    """The 0.95 quantile of the range of `count` standard normal draws, which Nemenyi's test divides by the root of 2.

    By bisection on P(range < q) = M ∫ φ(z) (Φ(z) − Φ(z − q))^(M − 1) dz, as importing scipy.stats costs a second.
    """
    from scipy.special import ndtr

    z = np.linspace(-9.0, 9.0, 4001)
    weight = count * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    low, high = 0.0, 20.0
    for _ in range(50):
        q = (low + high) / 2
        low, high = (q, high) if (weight * (ndtr(z) - ndtr(z - q)) ** (count - 1)).sum() < 1 - ALPHA else (low, q)
    return high


def _rank_values(values: np.ndarray) -> np.ndarray:
    """Rank of every entry of `values` [n], from 1; ties share the mean rank."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[group]
