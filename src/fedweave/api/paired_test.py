"""The test of one method against another, in numbers and in words."""

from dataclasses import dataclass

import numpy as np

from fedweave.errors import format_count
from fedweave.results.marks import MEANING
from fedweave.results.statistics import Comparison

# Of two methods alone, whose test needs no correction.
ALONE = {**MEANING, "undecided": MEANING["undecided"].replace("corrected ", "")}


@dataclass(frozen=True, kw_only=True)
class PairedTest(Comparison):
    """A paired comparison of two methods over the same clients.

    Attributes:
        method, other: their names.
        difference: mean of `method` minus mean of `other`.
        low, high: 95 % interval of it, over seeds and clients.
        p: of Wilcoxon's signed-rank test over clients, each averaged over its seeds; with several splits, of a mixed
            model over splits and clients.
        p_seeds: of the paired t test over seeds; NaN for one seed, and without a spread over seeds.
        p_adjusted, p_seeds_adjusted: the same, corrected for the tests of the leaderboard.
        better: the name of the better one, if `p_adjusted` is below 0.05 and the interval leaves out zero; else empty.
        undecided: whether only one of `p_adjusted` and the interval finds a difference.
        tests: how many tests the correction is for; 1 if two methods alone were compared.
        clients, seeds, splits: how many; with several splits, clients of each.
        counted: which clients count as one, and how many they are; empty where each counts alone.
    """

    tests: int
    clients: int
    seeds: int
    splits: int = 1
    counted: str = ""

    __test__ = False  # no test of pytest

    def __str__(self) -> str:
        # Where every split assigns rows to clients anew, the test is over splits.
        over = format_count(self.clients, "client") if self.splits == 1 else f"{self.splits} splits"
        corrected = f", {self.p_adjusted:.3g} corrected for {self.tests} tests" if self.tests > 1 else ""
        return (
            f"{self.method} - {self.other}: {self.difference:+.4g} "
            f"(95 % interval {self.low:+.4g} to {self.high:+.4g}), "
            f"p = {self.p:.3g} over {over}{corrected}: {self._verdict}" + (f"; {self.counted}" if self.counted else "")
        )

    @property
    def _verdict(self) -> str:
        """The result in words, by the rule of the leaderboard's marks."""
        if self.better:
            return f"{self.better} is significantly better"
        if np.isnan(self.p):
            return "undecided: no test was possible"
        return (MEANING if self.tests > 1 else ALONE)["undecided" if self.undecided else "same"]
