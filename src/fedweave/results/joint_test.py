"""Paired tests of many methods at once, corrected by their joint distribution over new seeds and new clients.

If no method differs, a client could equally have the opposite difference, in all pairs at once: the signs of clients
are flipped (Westfall and Young, "Resampling-Based Multiple Testing", 1993). Effects of seeds are too few to flip; they
are drawn from normal distributions whose variances are those of the moderated model, as uncertain as it knows them.
Each draw gives one value of Student's t for every pair, made comparable by the degrees of freedom of the pair; the
largest one corrects all pairs of a family. So tests with similar results cost little power, and pairs whose variance is
hardly known do not hide the others.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fedweave.results.paired_model import Floats, PairedModel
from fedweave.tensors.random_streams import stream

DRAWS = 10_000
MOST_ENUMERATED = 13  # up to so many clients, all sign flips are used
LEAST_CLIENTS = 6  # with fewer, not even agreement of all clients has a p below 0.05
MOST_SEEDS = 100  # further seeds are not proposed
BLOCK = 1000  # draws at a time: 1000 draws of 1000 pairs take 8 MB
TIE = 1e-6  # relative; closer statistics are equal, as those of flips that change nothing


@dataclass(frozen=True)
class JointTest:
    """The tests of the pairs of one family.

    Attributes:
        model: of the pairs.
        draws: of the joint distribution; fewer than `DRAWS` in simulations alone.
    """

    model: PairedModel
    draws: int = DRAWS

    @cached_property
    def statistic(self) -> Floats:
        """Student's t of each pair, signed [K]."""
        return self._student(self.model.mean, self.model.between_clients)

    def _student(self, mean: Floats, between_clients: Floats) -> Floats:
        """Student's t of mean differences [..., K] with mean squares between clients [..., K]."""
        model = self.model
        # What rounding may leave of a sum of squares around the mean: a smaller one is that of equal differences.
        least = 1e-9 * self._squares / (model.clients - 1)
        variance = (np.maximum(between_clients, least) + model.seed_excess) / (model.seeds * model.clients)
        return _ratio(mean, np.sqrt(variance), model.equal)

    @cached_property
    def _squares(self) -> Floats:
        """Sum of squares of each pair's client differences, times S [K]."""
        first, second = self.model.pairs.T
        return self.model.seeds * ((self.model.scores[first] - self.model.scores[second]) ** 2).sum(1)

    @cached_property
    def p(self) -> Floats:
        """Two-sided p of each pair alone, by Student's distribution [K]; 1 where no score differs.

        Differences without any spread have the p of clients that agree by chance.
        """
        from scipy.special import stdtr

        spread = self.model.error > 1e-9 * np.abs(self.model.mean)
        freedom = np.where(spread, self.model.error_freedom, 1.0)
        p = np.where(spread, 2 * stdtr(freedom, -np.abs(self.statistic)), 2.0 ** (1 - self.model.clients))
        return np.where(self.model.equal, 1.0, p)

    @cached_property
    def interval(self) -> tuple[Floats, Floats]:
        """95 % interval of each difference, dual to `p`: (low [K], high [K])."""
        from scipy.special import stdtrit

        margin = stdtrit(np.fmax(self.model.error_freedom, 1.0), 0.975) * self.model.error
        margin = np.where((self.model.error > 0) & ~self.model.equal, margin, 0.0)
        return self.model.mean - margin, self.model.mean + margin

    @cached_property
    def p_adjusted(self) -> Floats:
        """p of each pair [K], so that the chance of any false result in the family is at most p (step-down maximum)."""
        size = self._normalise(np.abs(self.statistic))
        return np.maximum(self.p, self._step_down(size, np.zeros(len(size))))

    def p_equivalent(self, margins: Floats) -> Floats:
        """p [K] of the claim that a difference is within its margin: two one-sided tests, corrected like `p_adjusted`.

        Args:
            margins: at least 0 [K].
        """
        if not margins.any():
            return np.ones(len(margins))
        distance = margins - np.abs(self.model.mean)
        statistic = np.where(self.model.equal & (margins > 0), np.inf, _ratio(distance, self.model.error))
        return self._step_down(self._normalise(statistic), np.where(self.model.mean >= 0, 1.0, -1.0))

    def seeds_needed(self, margins: Floats) -> Floats:
        """How many seeds would decide each pair at the mean and the variances seen [K]; NaN where 100 would not.

        Decided is a pair that is different or equivalent. The critical value is that of the present seeds.
        """
        counts = np.arange(self.model.seeds + 1, MOST_SEEDS + 1, dtype=np.float64)
        size = np.abs(self.model.mean)
        statistic = np.maximum(size, margins - size) / np.maximum(self.model.error_with(counts), 1e-300)
        reached = self._normalise(statistic) > self._critical_value
        first = np.append(counts, np.nan)[np.where(reached.any(0), reached.argmax(0), len(counts))]
        return np.where(self.model.varies, first, np.nan)

    @cached_property
    def _critical_value(self) -> float:
        return float(np.quantile(np.abs(self._null_statistics).max(1), 0.95))

    def _step_down(self, statistic: Floats, signs: Floats) -> Floats:
        """Corrected p [K] of `statistic` [K]: each is compared with the largest of those that are not above it.

        Args:
            signs: direction of each pair's test, ±1, or 0 for both directions [K].
        """
        order = np.argsort(statistic, kind="stable")
        threshold = statistic[order] * (1 - TIE) - TIE
        null = self._null_statistics[:, order]
        # The distribution is symmetric, so a draw counts with both signs where a test has one direction.
        drawn = [np.abs(null)] if not signs.any() else [null * signs[order], -null * signs[order]]
        p = np.empty(len(statistic))
        exceeded = [(np.maximum.accumulate(part, axis=1) >= threshold).mean(0) for part in drawn]
        p[order] = np.maximum.accumulate(np.mean(exceeded, axis=0)[::-1])[::-1]
        return p

    @cached_property
    def _null_statistics(self) -> NDArray[np.float32]:
        """Normalised t of every pair as if no method differed [B, K]; single precision, as 1000 pairs take 40 MB."""
        signs = _draws(self.draws, self.model.clients, self.model.methods, self.model.seeds, self.model.freedom)[0]
        null = np.empty((len(signs), len(self.model.pairs)), dtype=np.float32)
        for start in range(0, len(signs), BLOCK):
            part = slice(start, start + BLOCK)
            null[part] = self._normalise(self._draw(part))
        return null

    def _normalise(self, statistic: Floats) -> Floats:
        """Student's t [..., K] on the scale of a normal variable, by Wallace (1959); monotone in t.

        Without it, a pair of few degrees of freedom would have the largest value of most draws.
        """
        freedom = np.fmax(np.where(np.isfinite(self.model.error_freedom), self.model.error_freedom, 1.0), 1.0)
        scale = (8 * freedom + 1) / (8 * freedom + 3)
        with np.errstate(over="ignore"):
            return np.sign(statistic) * scale * np.sqrt(freedom * np.log1p(statistic**2 / freedom))

    def _draw(self, part: slice) -> Floats:
        """The rows `part` of `_null_statistics`."""
        model = self.model
        first, second = model.pairs.T
        signs, pool, normals, chi_squared = (
            numbers[part] for numbers in _draws(self.draws, model.clients, model.methods, model.seeds, model.freedom)
        )
        cells = model.seeds * model.clients
        means = signs @ model.scores.T / model.clients
        mean = means[:, first] - means[:, second]
        # The sum of squares is the same under every flip.
        between_clients = (self._squares - cells * mean**2) / (model.clients - 1)
        if model.varies.any():
            # The true mean squares between seeds that would explain the moderated ones.
            common = model.prior_freedom * model.prior_between_seeds * pool
            squares = common + (model.seeds - 1) * model.own_between_seeds
            excess = np.maximum(squares / chi_squared[:, first, second] - model.rest, 0.0) * model.varies
            mean = mean + (normals[:, first] - normals[:, second]) * np.sqrt(excess / (2 * cells))
        return self._student(mean, between_clients)


@lru_cache(maxsize=2)
def _draws(
    draws: int, clients: int, methods: int, seeds: int, freedom: int
) -> tuple[Floats, Floats, Floats, NDArray[np.float32]]:
    """Random numbers of B draws, the same for all tasks of one size.

    Returns:
        signs of clients [B, N], uncertainty of the common variance [B, 1], effects of seeds [B, M], and for every pair
        of methods χ² with `freedom` degrees of freedom [B, M, M]; pairs with a common method are alike.
    """
    generator = stream(draws, clients, methods, seeds, freedom)
    if clients <= MOST_ENUMERATED:
        half = 2 ** (clients - 1)  # the other half has the opposite signs
        signs = 1.0 - 2.0 * ((np.arange(half)[:, None] >> np.arange(clients)) & 1)
        signs = np.tile(signs, (-(-draws // half), 1))
    else:
        signs = generator.choice([-1.0, 1.0], size=(draws, clients))
        signs[0] = 1.0  # the observed signs
    count, pool_freedom = len(signs), max(1, (methods - 1) * (seeds - 1))
    pool = pool_freedom / generator.chisquare(pool_freedom, size=(count, 1))
    normals = generator.standard_normal((count, methods))
    # The differences of so many virtual seeds between independent methods.
    virtual = generator.standard_normal((count, methods, max(1, freedom)), dtype=np.float32)
    products = virtual @ virtual.transpose(0, 2, 1)
    own = np.diagonal(products, axis1=1, axis2=2)
    chi_squared = (own[:, :, None] + own[:, None, :] - 2 * products) / 2
    return signs.astype(np.float64, copy=False), pool, normals, np.maximum(chi_squared, np.float32(1e-6))


def _ratio(numerator: Floats, error: Floats, is_zero: NDArray[np.bool_] | bool = False) -> Floats:
    """numerator / error, ±inf for an error of 0, and 0 where `is_zero`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(numerator == 0, 0.0, numerator / error)
    return np.where(is_zero, 0.0, ratio)
