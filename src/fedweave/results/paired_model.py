"""The model of paired differences between methods, in which seeds, clients and single cells vary.

The difference of two methods with seed s on client c is δ + A_s + B_c + E_sc. A comparison is about new seeds and new
clients, so the mean over S seeds and N clients has the variance σ_A² / S + σ_B² / N + σ_E² / (S N): that of a linear
mixed model, as in the quasi-F test of Clark, "The language-as-fixed-effect fallacy" (1973).

Few seeds say little about σ_A. The methods of a task say more together: the mean square between seeds of each pair is
moderated by those of all pairs, as in Smyth, "Linear models and empirical Bayes methods" (2004), with fixed weights.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 4 * 2.0**-23  # of scores, relative to the largest one; they are computed in float32
# The degrees of freedom that all pairs together add to those of a pair. Some methods vary up to twenty times as much
# between seeds as others, and three seeds may hide it: with more than one, such a method makes false claims in more
# than 5 % of studies, also where all other methods are alike (docs/comparison.md).
PRIOR_FREEDOM = 1


@dataclass(frozen=True)
class PairedModel:
    """The differences of K pairs of methods over S seeds and N clients.

    Attributes:
        scores: of every method, averaged over seeds [M, N].
        pairs: numbers of the two methods of each pair [K, 2].
        factors: of the second method's scores in each difference; other than 1 at the edge of a margin alone [K].
        seeds, clients: S and N.
        mean: difference of each pair [K].
        between_clients: mean square of each pair between clients, with N − 1 degrees of freedom [K].
        between_seeds: mean square between seeds, moderated, with `freedom` degrees of freedom [K].
        own_between_seeds: the same without moderation, with S − 1 degrees of freedom [K].
        rest: mean square of single cells, with (S − 1) (N − 1) degrees of freedom [K].
        prior_freedom: d₀, the degrees of freedom that all pairs together add to those of one; 0 with fewer than three
            sources.
        prior_between_seeds: s₀², the mean square between seeds of all pairs.
        sources: of how many methods `prior_between_seeds` is; those that change alike with the seed count once.
        varies: whether the scores of one of the two methods depend on the seed [K].
        equal: whether no score of the two methods differs by more than rounding [K].
    """

    scores: Floats
    pairs: NDArray[np.int64]
    factors: Floats
    seeds: int
    clients: int
    mean: Floats
    between_clients: Floats
    between_seeds: Floats
    own_between_seeds: Floats
    rest: Floats
    prior_freedom: int
    prior_between_seeds: float
    sources: int
    varies: NDArray[np.bool_]
    equal: NDArray[np.bool_]

    @property
    def freedom(self) -> int:
        """Degrees of freedom of a moderated mean square between seeds."""
        return max(1, self.prior_freedom + self.seeds - 1)

    @property
    def prior_known(self) -> int:
        """Degrees of freedom of `prior_between_seeds`."""
        return max(1, (self.sources - 1) * (self.seeds - 1))

    @property
    def seed_excess(self) -> Floats:
        """N σ_A² of each pair [K]; a negative estimate counts as zero."""
        return np.maximum(self.between_seeds - self.rest, 0.0)

    @cached_property
    def statistic(self) -> Floats:
        """Student's t of each pair, signed [K]."""
        return self.student(self.mean, self.between_clients)

    def student(self, mean: Floats, between_clients: Floats) -> Floats:
        """Student's t of mean differences [..., K] with mean squares between clients [..., K]."""
        # What rounding may leave of a sum of squares around the mean: a smaller one is that of equal differences.
        least = 1e-9 * self.squares / (self.clients - 1)
        variance = (np.maximum(between_clients, least) + self.seed_excess) / (self.seeds * self.clients)
        return np.where(self.equal, 0.0, ratio(mean, np.sqrt(variance)))

    @cached_property
    def squares(self) -> Floats:
        """Sum of squares of each pair's client differences, times S [K]."""
        return self.seeds * (subtract(self.scores, self.pairs, self.factors) ** 2).sum(1)

    @property
    def error(self) -> Floats:
        """Standard error of each mean difference [K]."""
        return np.sqrt((self.between_clients + self.seed_excess) / (self.seeds * self.clients))

    @property
    def error_freedom(self) -> Floats:
        """Degrees of freedom of `error`, by Satterthwaite's rule, but no fewer than those of its parts [K].

        The common mean square s₀² is itself known with `prior_known` degrees of freedom only. Where the rest that is
        subtracted is nearly as large as the mean square between seeds, the rule alone gives less than one degree.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            common = self.prior_freedom * self.prior_between_seeds / (self.freedom * self.between_seeds)
            per_seed = 1 / self.freedom + common**2 / self.prior_known
            per_cell = 1 / max(1, (self.seeds - 1) * (self.clients - 1))
            spread = self.between_clients**2 / (self.clients - 1)
            has_excess = self.seed_excess > 0
            spread += np.where(has_excess, self.between_seeds**2 * per_seed + self.rest**2 * per_cell, 0.0)
            satterthwaite = (self.between_clients + self.seed_excess) ** 2 / spread
        return np.maximum(satterthwaite, min(self.freedom, self.clients - 1))

    def error_with(self, seeds: Floats) -> Floats:
        """The standard error that each pair would have with other numbers of seeds [T]; [T, K]."""
        of_seeds = self.seed_excess / self.clients
        of_clients = np.maximum(self.between_clients - self.rest, 0.0) / self.seeds
        return np.sqrt((of_seeds + self.rest / self.clients) / seeds[:, None] + of_clients / self.clients)


def ratio(numerator: Floats, error: Floats) -> Floats:
    """numerator / error; ±inf for an error of 0, and 0 for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numerator == 0, 0.0, numerator / error)


def subtract(scores: Floats, pairs: NDArray[np.int64], factors: Floats) -> Floats:
    """Differences [K, ...] of the two methods of each pair in `scores` [M, ...]; the second one times its factor."""
    first, second = pairs.T
    return scores[first] - factors.reshape(-1, *(1,) * (scores.ndim - 1)) * scores[second]


def fit_edge(values: Floats, pairs: NDArray[np.int64], share: float) -> PairedModel:
    """The model of `pairs` at the edge of a margin that is this share of the smaller mean, in absolute value.

    The first method of each pair is the one with the larger mean, and the difference is that to 1 + share times the
    other. It is 0 at the edge, and varies with the mean that the margin is a share of (Fieller, "Some problems in
    interval estimation", JRSS B 16, 1954).
    """
    size = np.abs(values.mean((1, 2)))
    larger_first = np.where((size[pairs[:, 0]] < size[pairs[:, 1]])[:, None], pairs[:, ::-1], pairs)
    return fit(values, larger_first, 1 + share)


def fit(values: Floats, pairs: NDArray[np.int64], factor: float = 1.0) -> PairedModel:
    """The model of `pairs` of the methods in `values` [M, S, N], finite, S and N at least 2; or S = 1.

    One seed leaves the variance between clients: nothing is known of seeds.

    Args:
        pairs: [K, 2].
        factor: of the scores of the second method of every pair.
    """
    _, seeds, clients = values.shape
    rounding = ROUNDING * np.abs(values).max(initial=0.0)
    depends_on_seed = np.ptp(values, axis=1).max(axis=1) > rounding
    scores = values.mean(1)
    factors = np.full(len(pairs), factor)
    first, second = pairs.T
    differences = subtract(scores, pairs, factors)
    mean = differences.mean(1)
    between_clients = seeds * ((differences - mean[:, None]) ** 2).sum(1) / (clients - 1)
    varies = depends_on_seed[first] | depends_on_seed[second]
    of_seeds = values.mean(2) - values.mean((1, 2))[:, None]
    own, rest = _between_seeds(of_seeds, clients, pairs, factors), _rest(values, of_seeds, pairs, factors)
    squares = (seeds - 1) * own + (clients - 1) * (between_clients + (seeds - 1) * rest) + seeds * clients * mean**2
    sources = find_sources(np.where(depends_on_seed[:, None, None], values, 0.0), rounding)
    every_pair = np.array(list(combinations(sources, 2)), dtype=np.int64).reshape(-1, 2)
    pool = _between_seeds(of_seeds, clients, every_pair, np.ones(len(every_pair)))
    moderated, weight, prior = moderate(own, pool, seeds - 1)
    return PairedModel(
        scores,
        pairs,
        factors,
        seeds,
        clients,
        mean,
        between_clients,
        np.where(varies, moderated, 0.0),
        own,
        rest,
        weight,
        prior,
        len(sources),
        varies,
        squares <= seeds * clients * rounding**2,
    )


def moderate(squares: Floats, pool: Floats, freedom: int) -> tuple[Floats, int, float]:
    """Mean squares [K] of `freedom` degrees each, moderated by the mean of `pool`: (them [K], d₀, s₀²).

    d₀ is 0 where the pool has fewer than two mean squares, which say no more than those of `squares`.
    """
    weight, prior = (PRIOR_FREEDOM, float(pool.mean())) if len(pool) > 1 else (0, 0.0)
    return (weight * prior + freedom * squares) / max(1, weight + freedom), weight, prior


def find_sources(values: Floats, rounding: float) -> list[int]:
    """Of the methods in `values` [M, S, N], the first one of each that differ in what seeds do to them.

    Seeds do nothing to methods without randomness, and the same to copies of one training. The pairs of all of these
    with another method have one mean square between seeds, and many equal ones say no more than one.
    """
    of_seeds = values - values.mean(1, keepdims=True)
    sources: list[int] = []
    for method, effects in enumerate(of_seeds):
        if not any(np.abs(effects - of_seeds[source]).max(initial=0.0) <= rounding for source in sources):
            sources.append(method)
    return sources


def _between_seeds(of_seeds: Floats, clients: int, pairs: NDArray[np.int64], factors: Floats) -> Floats:
    """Mean squares between seeds of the differences of pairs [K], from the effects of seeds on every method [M, S]; 0
    for one seed.
    """
    return clients * (subtract(of_seeds, pairs, factors) ** 2).sum(1) / max(1, of_seeds.shape[1] - 1)


def _rest(values: Floats, of_seeds: Floats, pairs: NDArray[np.int64], factors: Floats) -> Floats:
    """Mean squares of single cells of the differences of pairs [K]; 0 for one seed."""
    methods, seeds, clients = values.shape
    cells = values - values.mean(1, keepdims=True) - of_seeds[:, :, None]
    flat = cells.reshape(methods, -1)
    products = flat @ flat.T  # of all pairs at once: K differences [S, N] would be large
    own, (first, second) = np.diag(products), pairs.T
    squares = own[first] + factors**2 * own[second] - 2 * factors * products[first, second]
    return np.maximum(squares, 0.0) / max(1, (seeds - 1) * (clients - 1))
