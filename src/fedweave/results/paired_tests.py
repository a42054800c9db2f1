"""The tests of one family of pairs: p, interval, correction for the whole family, equivalence, seeds to decide.

The joint distribution of all pairs corrects. It is drawn as if variances between seeds were hardly known, and may then
correct by more than the number of tests. Holm's procedure assumes nothing of how pairs depend on each other, so no
correction need be larger than its own. It needs a p that holds alone. That of two methods does not, nor that of one
beside copies of another: no other pair tells how much they vary between seeds.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedweave.results import holm
from fedweave.results.formats import ALPHA
from fedweave.results.joint_distribution import DRAWS, JointDistribution
from fedweave.results.paired_model import Floats, PairedModel, ratio

LEAST_CLIENTS = 6  # with fewer, not even agreement of all clients has a p below 0.05
LEAST_SEEDS = 3  # two say so little about the variance between seeds that nearly every comparison would be open
MOST_SEEDS = 100  # further seeds are not proposed


@dataclass(frozen=True)
class PairedTests:
    """The tests of the pairs of one family.

    Attributes:
        model: of the pairs.
        draws: of the joint distribution; fewer than `DRAWS` in simulations alone.
        chosen_from: of how many pairs those of the model were chosen by earlier scores of the same clients; 0: of none.
        edge: model of the pairs at the edge of margins that are shares of a mean; None: margins are numbers.
    """

    model: PairedModel
    draws: int = DRAWS
    chosen_from: int = 0
    edge: PairedModel | None = None

    @cached_property
    def p(self) -> Floats:
        """Two-sided p of each pair alone [K]; 1 where no score differs."""
        return np.where(self.model.equal, 1.0, 2 * self._one_sided(np.abs(self.model.statistic)))

    def _one_sided(self, statistic: Floats) -> Floats:
        """Chance of a larger t [..., K], by Student's distribution; without any spread that of clients that agree."""
        from scipy.special import stdtr

        model = self.model
        spread = model.error > 1e-9 * np.abs(model.mean)
        freedom = np.where(spread, model.error_freedom, 1.0)
        return np.where(spread, stdtr(freedom, -statistic), np.where(statistic > 0, 0.5**model.clients, 1.0))

    @cached_property
    def interval(self) -> tuple[Floats, Floats]:
        """95 % interval of each difference, dual to `p`: (low [K], high [K])."""
        from scipy.special import stdtrit

        model = self.model
        margin = stdtrit(np.fmax(model.error_freedom, 1.0), 1 - ALPHA / 2) * model.error
        margin = np.where((model.error > 0) & ~model.equal, margin, 0.0)
        return model.mean - margin, model.mean + margin

    @cached_property
    def p_adjusted(self) -> Floats:
        """p of each pair [K], so that the chance of any false result in the family is at most p."""
        size = np.abs(self.model.statistic)
        return np.maximum(self.p, self._adjust(size, np.zeros(len(size)), self.p))

    def p_equivalent(self, margins: Floats) -> Floats:
        """p [K] of the claim that a difference is within its margin: two one-sided tests, corrected like `p_adjusted`.

        Args:
            margins: at least 0 [K].
        """
        if not margins.any():
            return np.ones(len(margins))
        model, edge = self.model, self._at_edge
        equal = model.equal & (margins > 0)
        statistic = np.where(equal, np.inf, ratio(margins - np.abs(model.mean), edge.model.error))
        p = np.where(equal, 0.0, edge._one_sided(statistic))
        turned = edge.model.pairs[:, 0] != model.pairs[:, 0]
        return edge._adjust(statistic, np.where((model.mean >= 0) != turned, 1.0, -1.0), p)

    @cached_property
    def _at_edge(self) -> "PairedTests":
        """The tests whose model is that of the edge of margins; these tests where margins are numbers."""
        return self if self.edge is None else replace(self, model=self.edge, edge=None)

    def _adjust(self, statistic: Floats, signs: Floats, p: Floats) -> Floats:
        """Corrected p [K] of the tests with `statistic` and, alone, `p`; signs as of `JointDistribution.adjust`."""
        adjusted = self._joint.adjust(statistic, signs)
        holds_alone = self.model.seeds >= LEAST_SEEDS and self.model.sources != 2
        adjusted = np.minimum(adjusted, holm.adjust(p)) if holds_alone else adjusted
        return self._correct_for_choice(adjusted, statistic) if self.chosen_from > len(p) else adjusted

    def _correct_for_choice(self, adjusted: Floats, statistic: Floats) -> Floats:
        """Corrected p [K] for all pairs of which these were chosen: after r tests that are shown, K - r of these and
        N - r of all are left.
        """
        order = np.lexsort((-statistic, adjusted))
        left = np.arange(len(adjusted))
        factor = (self.chosen_from - left) / (len(adjusted) - left)
        corrected = np.empty_like(adjusted)
        corrected[order] = np.minimum(np.maximum.accumulate(adjusted[order] * factor), 1.0)
        return corrected

    @cached_property
    def _joint(self) -> JointDistribution:
        return JointDistribution(self.model, self.draws)

    def seeds_needed(self, margins: Floats) -> Floats:
        """How many seeds would decide each pair at the mean and the variances seen [K]; NaN where 100 would not.

        Decided is a pair that is different or equivalent. The degrees of freedom are those of the present seeds.
        """
        counts = np.arange(self.model.seeds + 1, MOST_SEEDS + 1, dtype=np.float64)
        size = np.abs(self.model.mean)
        reached = self._is_shown(size, counts) | self._at_edge._is_shown(margins - size, counts)
        first = np.append(counts, np.nan)[np.where(reached.any(0), reached.argmax(0), len(counts))]
        return np.where(self.model.varies, first, np.nan)

    def _is_shown(self, size: Floats, seeds: Floats) -> NDArray[np.bool_]:
        """Whether other numbers of seeds [T] would show that a mean as seen differs from 0, or is inside of a margin,
        by `size` [K]; [T, K].
        """
        statistic = size / np.maximum(self.model.error_with(seeds), 1e-300)
        return 2 * self._one_sided(statistic) < ALPHA / max(len(size), self.chosen_from)
