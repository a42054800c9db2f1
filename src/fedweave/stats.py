"""Who is better, and how sure are we: paired tests, intervals and ranks over clients, seeds and tasks.

Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7 (2006), for ranks, Friedman and Nemenyi;
Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979), for the correction.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedweave.errors import BadInput
from fedweave.streams import stream

ALPHA = 0.05

ENUMERATED = 13  # pairs up to which all sign flips are listed


class Comparison(NamedTuple):
    """`method` against `other` on one task; `difference` is mean(method) - mean(other), [low, high] its 95 % interval."""

    method: str
    other: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    better: str


class Ranking(NamedTuple):
    """Average ranks [M] over T tasks (1 is best), Friedman's p, and the difference that Nemenyi's test asks for."""

    methods: tuple[str, ...]
    ranks: np.ndarray
    tasks: int
    p: float
    critical_difference: float


def signed_rank(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test on pairs [N]; 1 when no pair differs.

    Exact up to 13 pairs, ties included, and up to 50 without; zero differences are dropped (Wilcoxon's own rule).
    """
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if not np.isfinite(difference).all():
        return float("nan")
    if not difference.any():
        return 1.0
    difference = difference[difference != 0]
    if len(difference) > ENUMERATED:
        from scipy.stats import wilcoxon

        return float(wilcoxon(difference).pvalue)
    # All 2^n signs at once: milliseconds, where scipy's exact test of tied ranks takes a quarter of a second.
    ranks = _places(np.abs(difference))
    sums = ((np.arange(2 ** len(ranks))[:, None] >> np.arange(len(ranks))) & 1) @ ranks
    seen = ranks[difference > 0].sum()
    return float(min(1.0, 2 * min((sums <= seen + 1e-9).mean(), (sums >= seen - 1e-9).mean())))


def _places(values: np.ndarray) -> np.ndarray:
    """Rank of every entry of `values` [n], from 1; ties share the mean rank."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[group]


def holm(p: ArrayLike) -> np.ndarray:
    """Holm's adjusted p values [m] in the given order; NaN stays NaN and does not count as a test."""
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    steps = raw[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def bootstrap(values: np.ndarray, seed: int = 0, draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of `values` [S, N], seeds and clients drawn with replacement, each on its own axis."""
    values = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if not np.isfinite(values).all():
        return float("nan"), float("nan")
    generator = stream(seed, *values.shape)
    seeds, clients = (generator.multinomial(n, np.full(n, 1 / n), size=draws) / n for n in values.shape)
    means = np.einsum("ds,sn,dn->d", seeds, values, clients, optimize=True)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def against(values: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]], higher_is_better: bool) -> list[Comparison]:
    """Compare `pairs` of methods; `values` maps each method to [S, N] with the same clients in the same columns.

    Clients are the pairs of the test, after averaging each client over its seeds. `better` names the winner where
    Holm's p over all given pairs is below 0.05, and is empty otherwise.
    """
    means = {name: np.asarray(v, dtype=np.float64).mean(0) for name, v in values.items()}
    if len({mean.shape for mean in means.values()}) > 1:
        raise BadInput(f"values: methods have {sorted({mean.shape for mean in means.values()})} clients; pass the common ones")
    raw = [signed_rank(means[a], means[b]) for a, b in pairs]
    return [
        _comparison(a, b, values, means, p, adjusted, higher_is_better) for (a, b), p, adjusted in zip(pairs, raw, holm(raw), strict=True)
    ]


def _comparison(
    a: str, b: str, values: Mapping[str, np.ndarray], means: Mapping[str, np.ndarray], p: float, adjusted: float, higher: bool
) -> Comparison:
    difference = means[a] - means[b]
    paired = values[a] - values[b] if np.shape(values[a]) == np.shape(values[b]) else difference
    gain = float(difference.mean() if higher else -difference.mean())
    better = (a if gain > 0 else b) if adjusted < ALPHA and gain != 0 else ""
    return Comparison(a, b, float(difference.mean()), *bootstrap(paired), p, float(adjusted), better)


def leader(values: Mapping[str, np.ndarray], higher_is_better: bool) -> str | None:
    """The method with the best mean over clients and seeds; None where every mean is NaN. Ties: the first name."""
    means = {name: float(np.mean(v)) * (1 if higher_is_better else -1) for name, v in values.items()}
    finite = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    return max(finite, key=finite.__getitem__) if finite else None


def against_leader(values: Mapping[str, np.ndarray], higher_is_better: bool) -> list[Comparison]:
    """The leader against every other method (Holm over M - 1 tests)."""
    best = leader(values, higher_is_better)
    return against(values, [(best, name) for name in values if name != best], higher_is_better) if best else []


def all_pairs(values: Mapping[str, np.ndarray], higher_is_better: bool) -> list[Comparison]:
    """Every pair of methods once (Holm over M (M - 1) / 2 tests)."""
    return against(values, list(combinations(values, 2)), higher_is_better)


def ranks(scores: np.ndarray, higher_is_better: Sequence[bool]) -> np.ndarray:
    """Rank of each method within each task, [T, M] from `scores` [T, M]; 1 is best, ties share the mean rank."""
    sign = np.where(np.asarray(higher_is_better), -1.0, 1.0)[:, None]
    return np.stack([_places(row) for row in np.asarray(scores, dtype=np.float64) * sign])


def ranking(methods: Sequence[str], scores: np.ndarray, higher_is_better: Sequence[bool]) -> Ranking:
    """Average ranks with Friedman's test and Nemenyi's critical difference at 0.05.

    Raises:
        BadInput: fewer than two tasks or three methods, or an empty cell.
    """
    from scipy.stats import friedmanchisquare, studentized_range

    scores = np.asarray(scores, dtype=np.float64)
    tasks, count = scores.shape
    if tasks < 2 or count < 3 or not np.isfinite(scores).all():
        raise BadInput(f"scores: {tasks} tasks x {count} methods cannot be ranked; it takes 2 x 3 finite cells or more")
    table = ranks(scores, higher_is_better)
    p = float(friedmanchisquare(*table.T).pvalue) if (table != table[:, :1]).any() else 1.0
    q = float(studentized_range.ppf(1 - ALPHA, count, np.inf)) / np.sqrt(2)
    critical = float(q * np.sqrt(count * (count + 1) / (6 * tasks)))
    return Ranking(tuple(methods), table.mean(0), tasks, p, critical)
