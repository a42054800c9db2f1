"""The test of one method against another, in numbers and in words."""

from dataclasses import dataclass

import numpy as np

from fedweave.errors import format_count
from fedweave.metrics import AFTER_RESULTS
from fedweave.results import statistics
from fedweave.results.formats import describe_change, format_amount, format_change_interval
from fedweave.results.marks import reason_without_verdict
from fedweave.results.statistics import TestedPair


@dataclass(frozen=True, kw_only=True)
class PairedTest(TestedPair):
    """A paired comparison of two methods over the same seeds and clients: the verdict of the leaderboard.

    Attributes:
        tests: how many tests the correction is for; 1 if two methods alone were compared.
        metric: of the scores, for the words.
        clients, seeds, splits: how many; with several splits, clients of each.
        counted: which clients count as one, and how many they are; empty where each counts alone.
        margin_after_results: whether the margin was chosen when the scores were there.
    """

    tests: int
    metric: str
    clients: int
    seeds: int
    splits: int = 1
    counted: str = ""
    margin_after_results: bool = False

    __test__ = False  # no test of pytest

    def __str__(self) -> str:
        has_seeds = self.over in (statistics.SEEDS_AND_CLIENTS, statistics.TWO_SEEDS)
        over = statistics.SEEDS_AND_CLIENTS if has_seeds else statistics.CLIENTS
        if self.splits > 1:
            over = f"{self.splits} splits and their clients"
        corrected = f", {self.p_adjusted:.3g} corrected for {self.tests} tests" if self.tests > 1 else ""
        numbers = f", p = {self.p:.3g}{corrected}" if np.isfinite(self.p_adjusted) else ""
        return (
            f"{self.method} against {self.other}: {describe_change(self.difference, self.metric)} (95 % interval "
            f"{format_change_interval(self.low, self.high, self.metric)} over {over}){numbers}: {self._words}"
            + (f"; {self.counted}" if self.counted else "")
        )

    @property
    def _words(self) -> str:
        """The verdict in words."""
        if self.better:
            return f"{self.better} is better"
        if self.verdict == statistics.EQUIVALENT:
            margin = format_amount(self.margin, self.metric) + f", {AFTER_RESULTS}" * self.margin_after_results
            return f"equivalent (within {margin}; p = {self.p_equivalent:.3g})"
        if self.verdict != statistics.OPEN:
            return reason_without_verdict(self.over)
        if np.isfinite(self.seeds_needed):
            return f"open; {format_count(int(self.seeds_needed), 'seed')} would decide at the variance seen"
        return "open; more seeds alone would not decide, more clients may"
