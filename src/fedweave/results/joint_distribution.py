"""Correction of paired tests by the joint distribution of their statistics over new seeds and new clients.

If no method differs, a client could equally have the opposite difference, in all pairs at once: the signs of clients
are flipped (Westfall and Young, "Resampling-Based Multiple Testing", 1993). Effects of seeds are too few to flip; they
are drawn from normal distributions whose variances are those of the moderated model, as uncertain as it knows them.
Each draw gives one value of Student's t for every pair, made comparable by the degrees of freedom of the pair; the
largest one corrects all pairs of a family. So pairs whose variance is hardly known do not hide the others.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fedweave.results.paired_model import Floats, PairedModel
from fedweave.tensors.random_streams import stream

DRAWS = 10_000
MOST_ENUMERATED = 13  # up to so many clients, all sign flips are used
BLOCK = 1000  # draws at a time: 1000 draws of 1000 pairs take 8 MB
TIE = 1e-6  # relative; closer statistics are equal, as those of flips that change nothing


@dataclass(frozen=True)
class JointDistribution:
    """The statistics of the pairs of one family, as if no method differed.

    Attributes:
        model: of the pairs.
        draws: how many; fewer than `DRAWS` in simulations alone.
    """

    model: PairedModel
    draws: int = DRAWS

    def adjust(self, statistic: Floats, signs: Floats) -> Floats:
        """Corrected p [K] of `statistic` [K], Student's t: each is compared with the largest of those not above it.

        Args:
            signs: direction of each pair's test, ±1, or 0 for both directions [K].
        """
        size = self._normalise(statistic)
        order = np.argsort(size, kind="stable")
        threshold = size[order] * (1 - TIE) - TIE
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
        signs = self._numbers[0]
        null = np.empty((len(signs), len(self.model.pairs)), dtype=np.float32)
        for start in range(0, len(signs), BLOCK):
            part = slice(start, start + BLOCK)
            null[part] = self._normalise(self._draw(part))
        return null

    @property
    def _numbers(self) -> tuple[Floats, Floats, Floats, NDArray[np.float32]]:
        model = self.model
        return _draws(self.draws, model.clients, len(model.scores), model.seeds, model.freedom, model.prior_known)

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
        signs, pool, normals, chi_squared = (numbers[part] for numbers in self._numbers)
        cells = model.seeds * model.clients
        means = signs @ model.scores.T / model.clients
        mean = means[:, first] - model.factors * means[:, second]
        # The sum of squares is the same under every flip.
        between_clients = (model.squares - cells * mean**2) / (model.clients - 1)
        if model.varies.any():
            # The true mean squares between seeds that would explain the moderated ones.
            common = model.prior_freedom * model.prior_between_seeds * pool
            squares = common + (model.seeds - 1) * model.own_between_seeds
            excess = np.maximum(squares / chi_squared[:, first, second] - model.rest, 0.0) * model.varies
            mean = mean + (normals[:, first] - normals[:, second]) * np.sqrt(excess / (2 * cells))
        return model.student(mean, between_clients)


@lru_cache(maxsize=2)
def _draws(
    draws: int, clients: int, methods: int, seeds: int, freedom: int, prior_known: int
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
    count = len(signs)
    pool = prior_known / generator.chisquare(prior_known, size=(count, 1))
    normals = generator.standard_normal((count, methods))
    # The differences of so many virtual seeds between independent methods.
    virtual = generator.standard_normal((count, methods, max(1, freedom)), dtype=np.float32)
    products = virtual @ virtual.transpose(0, 2, 1)
    own = np.diagonal(products, axis1=1, axis2=2)
    chi_squared = (own[:, :, None] + own[:, None, :] - 2 * products) / 2
    return signs.astype(np.float64, copy=False), pool, normals, np.maximum(chi_squared, np.float32(1e-6))
