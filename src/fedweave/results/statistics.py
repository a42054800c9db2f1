"""Comparison of methods: paired tests, intervals and ranks over clients, seeds and tasks.

Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7 (2006): ranks, Friedman and Nemenyi;
Westfall and Young, "Resampling-Based Multiple Testing" (1993), for the correction over clients;
Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979), for the one over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedweave.errors import BadInput
from fedweave.results.repetitions import interval, mixed_model_test, t_test_over_seeds
from fedweave.tensors.random_streams import stream

ALPHA = 0.05

DIGITS = 12  # of means over seeds beside the largest one; rounding errors must not break ties
MOST_ENUMERATED = 13  # up to so many pairs, all sign flips are used
RANDOM_FLIPS = 10_000  # random sign flips for more pairs, the observed signs among them


@dataclass(frozen=True)
class Comparison:
    """`method` against `other` on one task; `difference` is mean(method) - mean(other), [low, high] its 95 % interval.

    The interval is over seeds and clients (`repetitions.interval`).
    `p` belongs to the test over clients, `p_seeds` to the test over seeds (NaN for a single seed); `..._adjusted` are
    corrected. `better` names the winner where the corrected test over clients is significant and the interval, over
    seeds and clients, leaves out zero. `undecided` is true where only one of the two finds a difference.
    """

    method: str
    other: str
    difference: float
    low: float
    high: float
    p: float
    p_adjusted: float
    better: str
    p_seeds: float
    p_seeds_adjusted: float
    undecided: bool = False

    def swap(self) -> "Comparison":
        """The same test from the side of `other`."""
        return replace(
            self, method=self.other, other=self.method, difference=-self.difference, low=-self.high, high=-self.low
        )


class Ranking(NamedTuple):
    """Average ranks [M] over T tasks (1 is best), Friedman's p, and the critical difference of Nemenyi's test."""

    methods: tuple[str, ...]
    ranks: np.ndarray
    tasks: int
    p: float
    critical_difference: float


def signed_rank(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test on pairs [N]; 1 when no pair differs.

    Exact up to 13 pairs, ties included, and up to 50 without; zero differences are dropped (Wilcoxon's own rule).
    """
    pairs = np.array([first, second], dtype=np.float64)
    if not np.isfinite(pairs).all():
        return float("nan")
    # Only signs and order count.
    difference = ((pairs[0] - pairs[1]) / (np.abs(pairs).max(initial=0.0) or 1.0)).round(DIGITS)
    if not difference.any():
        return 1.0
    difference = difference[difference != 0]
    if len(difference) > MOST_ENUMERATED:
        from scipy.stats import wilcoxon

        return float(wilcoxon(difference).pvalue)
    # All 2^n signs at once: milliseconds, where scipy's exact test of tied ranks takes a quarter of a second.
    ranks = _signed_ranks(difference)
    return float((np.abs(_sign_flips(len(ranks)) @ ranks) >= abs(ranks.sum()) - 1e-9).mean())


def step_down(differences: np.ndarray) -> np.ndarray:
    """Two-sided p [K] of K paired tests on the same clients, corrected so that the chance of any false result is p.

    Westfall and Young's step-down maximum. When no method differs, a client's row of `differences` [N, K] could equally
    have the opposite sign, all K at once. So tests with equal results cost no power: with ten clients a leader can be
    significantly better than thirty methods, where Holm's smallest p would be 30 · 2 / 2^10. The statistic is Student's
    t, not the signed rank: of hundreds of pairs some always have the same sign at every client, by a small amount, and
    no rank statistic can be larger than that. All 2^N sign flips are used up to 13 clients, and 10,000 random ones
    beyond. A column with NaN gives NaN.
    """
    p_values = np.full(differences.shape[1], np.nan)
    tested = np.flatnonzero(np.isfinite(differences).all(0))
    if not len(tested):
        return p_values
    unit = differences[:, tested] / np.maximum(np.linalg.norm(differences[:, tested], axis=0), 1e-12)
    observed = np.abs(unit.sum(0))  # grows with |t|, as the sum of squares is 1 under every flip
    order = np.argsort(observed, kind="stable")
    largest = np.maximum.accumulate(np.abs(_sign_flips(len(differences)) @ unit[:, order]), axis=1)
    p = (largest >= observed[order] - 1e-9).mean(0)
    p_values[tested[order]] = np.maximum.accumulate(p[::-1])[::-1]
    return p_values


@lru_cache(maxsize=4)
def _sign_flips(count: int) -> np.ndarray:
    """Signs [B, count] in ±1, the observed ones (all +1) among them."""
    if count <= MOST_ENUMERATED:
        return 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    signs = stream(count).choice([-1.0, 1.0], size=(RANDOM_FLIPS, count))
    signs[0] = 1.0
    return signs


def _signed_ranks(difference: np.ndarray) -> np.ndarray:
    """Wilcoxon's signed ranks [n]: zero where nothing differs, the other ranks from 1."""
    ranks = np.zeros_like(difference)
    differs = difference != 0
    ranks[differs] = np.sign(difference[differs]) * _rank_values(np.abs(difference[differs]))
    return ranks


def _rank_values(values: np.ndarray) -> np.ndarray:
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


def compare_pairs(
    values: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]], higher_is_better: bool, splits: bool = False
) -> list[Comparison]:
    """Compare `pairs` of methods; `values` maps each method to [S, N] with the same clients in the same columns.

    Clients are the pairs of the test, after averaging each client over its seeds. `better` names the winner where p,
    corrected over all given pairs (`step_down`), is below 0.05 and the interval of the difference leaves out zero.
    Otherwise it is empty: clients that agree because of a few seeds are not enough.

    Args:
        splits: every seed has a split of its own. Then client 3 of one split is not client 3 of another, and the test
            is `mixed_model_test` over splits, seeds and clients, corrected by Holm's procedure.
    """
    means = {name: np.asarray(v, dtype=np.float64).mean(0) for name, v in values.items()}
    if len({mean.shape for mean in means.values()}) > 1:
        raise BadInput(
            f"values: methods have {sorted({mean.shape for mean in means.values()})} clients; pass the common ones"
        )
    raw = np.array(
        [mixed_model_test(values[a], values[b]) if splits else signed_rank(means[a], means[b]) for a, b in pairs]
    )
    p_seeds = [t_test_over_seeds(np.asarray(values[a]), np.asarray(values[b])) for a, b in pairs]
    is_single = len(pairs) < 2
    if splits:
        adjusted = holm(raw)
    else:
        adjusted = raw if is_single else np.fmax(raw, step_down(np.stack([means[a] - means[b] for a, b in pairs], 1)))
    comparisons = [_comparison(*pair, values, means, higher_is_better, splits) for pair in pairs]
    return [
        _add_p_values(c, *map(float, p))
        for c, p in zip(comparisons, np.stack([raw, adjusted, p_seeds, holm(p_seeds)], 1), strict=True)
    ]


def _add_p_values(c: Comparison, p: float, adjusted: float, seeds: float, seeds_adjusted: float) -> Comparison:
    """A comparison with its p values, `better` and `undecided`."""
    excludes_zero = c.low * c.high > 0
    better = c.better if adjusted < ALPHA and excludes_zero else ""
    undecided = (excludes_zero or adjusted < ALPHA) and not better and adjusted == adjusted
    return replace(
        c, p=p, p_adjusted=adjusted, p_seeds=seeds, p_seeds_adjusted=seeds_adjusted, better=better, undecided=undecided
    )


def _comparison(
    a: str, b: str, values: Mapping[str, np.ndarray], means: Mapping[str, np.ndarray], higher: bool, splits: bool
) -> Comparison:
    """The difference and its interval, still without a test: `better` is the method that is ahead."""
    difference, nan = means[a] - means[b], float("nan")
    paired = values[a] - values[b] if np.shape(values[a]) == np.shape(values[b]) else difference
    gain = float(difference.mean() if higher else -difference.mean())
    # A mean that depends on a few clients may have another sign than the ranks that are tested. Over splits, it is the
    # mean that is tested.
    tested = difference.mean() if splits else _signed_ranks(difference).sum()
    better = (a if gain > 0 else b) if difference.mean() * tested > 0 else ""
    return Comparison(a, b, float(difference.mean()), *interval(paired), nan, nan, better, nan, nan)


def leader(values: Mapping[str, np.ndarray], higher_is_better: bool) -> str | None:
    """The method with the best mean over clients and seeds; None where every mean is NaN. Ties: the first name."""
    means = {name: float(np.mean(v)) * (1 if higher_is_better else -1) for name, v in values.items()}
    finite = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    return max(finite, key=finite.__getitem__) if finite else None


def compare_all_pairs(
    values: Mapping[str, np.ndarray], higher_is_better: bool, splits: bool = False
) -> list[Comparison]:
    """Every pair of methods once, corrected over all M (M - 1) / 2 tests."""
    return compare_pairs(values, list(combinations(values, 2)), higher_is_better, splits)


def compare_to_controls(
    values: Mapping[str, np.ndarray], controls: Sequence[str], higher_is_better: bool, splits: bool = False
) -> list[Comparison]:
    """Every method against each of `controls`, corrected over these tests alone; controls missing in `values` are left
    out.

    The controls are fixed before anyone sees scores, so this family may be small: with M methods and two controls it
    has 2 M - 3 tests (the two controls meet once) instead of M (M - 1) / 2.
    """
    present = [control for control in controls if control in values]
    pairs = [
        (name, control)
        for position, control in enumerate(present)
        for name in values
        if name not in present[: position + 1]
    ]
    return compare_pairs(values, pairs, higher_is_better, splits) if pairs else []


def leader_comparisons(pairs: Sequence[Comparison], best: str | None) -> list[Comparison]:
    """The comparisons of `best` with every other method, out of `compare_all_pairs` with their correction.

    The leader is chosen by the same scores. Corrected over the M - 1 tests of the leader alone, the best of sixteen
    equal methods would be called better than one of them in every sixth study.
    """
    return [c if c.method == best else c.swap() for c in pairs if best in (c.method, c.other)]


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
