"""Comparison of methods: which differences, and which equalities, hold for new seeds and new clients.

One test decides (`paired_tests`): its model has the variance between seeds and that between clients.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from fedweave.errors import BadInput
from fedweave.metrics import Margin
from fedweave.results import paired_model
from fedweave.results.formats import ALPHA
from fedweave.results.joint_distribution import DRAWS
from fedweave.results.paired_tests import LEAST_CLIENTS, LEAST_SEEDS, PairedTests
from fedweave.results.repetitions import interval

BETTER, WORSE, EQUIVALENT, OPEN = "better", "worse", "equivalent", "open"
OPPOSITE = {BETTER: WORSE, WORSE: BETTER}
# What a comparison is over.
SEEDS_AND_CLIENTS, CLIENTS, ONE_SEED, TWO_SEEDS, FEW_CLIENTS, NOT_COMPARED = (
    "seeds and clients",
    "clients",
    "one seed",
    "two seeds",
    "too few clients",
    "no common scores",
)


@dataclass(frozen=True)
class TestedPair:
    """`method` against `other` on one task.

    Attributes:
        method, other: their names.
        difference: mean(method) − mean(other).
        low, high: 95 % interval of it, over what `over` names; over clients alone for one seed.
        margin: differences up to it are equivalent in practice; 0 if nothing is.
        p, p_adjusted: of the difference alone, and corrected for all tests of the family.
        p_equivalent: of the claim that the difference is within the margin, corrected alike.
        verdict: "better", "worse" or "equivalent" for `method`, "open" if nothing is shown, "" if nothing can be.
        over: "seeds and clients"; "clients" where neither method depends on the seed, or both are fixed models; or why
            there is no verdict: "one seed", "two seeds", "too few clients", "no common scores".
        seeds_needed: how many seeds would decide an open comparison at the variance seen; NaN if seeds alone would not.
    """

    method: str
    other: str
    difference: float
    low: float
    high: float
    margin: float
    p: float
    p_adjusted: float
    p_equivalent: float
    verdict: str
    over: str
    seeds_needed: float = float("nan")

    @property
    def better(self) -> str:
        """Name of the better method; empty where none is."""
        return {BETTER: self.method, WORSE: self.other}.get(self.verdict, "")

    def swap(self) -> "TestedPair":
        """The same test from the side of `other`."""
        return replace(
            self,
            method=self.other,
            other=self.method,
            difference=-self.difference,
            low=-self.high,
            high=-self.low,
            verdict=OPPOSITE.get(self.verdict, self.verdict),
        )


def compare_pairs(
    values: Mapping[str, np.ndarray],
    pairs: Sequence[tuple[str, str]],
    higher_is_better: bool,
    margin: Margin | None = None,
    fixed: bool = False,
    draws: int = DRAWS,
    chosen_from: int = 0,
) -> list[TestedPair]:
    """Compare `pairs` of methods, corrected over all of them.

    The variance between seeds is estimated with all methods in `values`, also those of no pair.

    Args:
        values: method -> [S, N], with the same seeds in the same rows and the same clients in the same columns. Where
            every seed has a split of its own, rows are splits.
        margin: of practical equivalence; None: nothing is equivalent.
        fixed: the models are given, and no others will be trained: scores are averaged over seeds, and clients alone
            vary.
        draws: of the joint distribution.
        chosen_from: of how many pairs earlier scores of the same clients chose `pairs`, if of more. Clients that suit a
            method by chance suited it then, too, so that the correction is for all of these.

    Raises:
        BadInput: methods with different numbers of clients.
    """
    arrays = {name: np.atleast_2d(np.asarray(v, dtype=np.float64)) for name, v in values.items()}
    if fixed:
        arrays = {name: array.mean(0, keepdims=True) for name, array in arrays.items()}
    if len({array.shape[1] for array in arrays.values()}) > 1:
        widths = sorted({array.shape[1] for array in arrays.values()})
        raise BadInput(f"values: methods have {widths} clients; pass the common ones")
    comparable = _find_comparable(arrays)
    tested = [pair for pair in pairs if {*pair} <= {*comparable}]
    margin = margin or Margin()
    found: dict[tuple[str, str], TestedPair] = {}
    if tested:
        numbers = {name: number for number, name in enumerate(comparable)}
        stacked = np.stack([arrays[name] for name in comparable])
        model = paired_model.fit(stacked, np.array([[numbers[a], numbers[b]] for a, b in tested]))
        edge = paired_model.fit_edge(stacked, model.pairs, margin.share) if margin.share else None
        test = PairedTests(model, draws, chosen_from, edge)
        found = _test(test, stacked.mean((1, 2)), tested, higher_is_better, margin, fixed)
    return [found.get(pair) or _describe_untested(arrays, *pair, margin) for pair in pairs]


def _find_comparable(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The methods with finite scores and as many seeds as most of them have, if there are two clients or more."""
    finite = [name for name, array in arrays.items() if np.isfinite(array).all() and array.shape[1] > 1]
    seeds = [len(arrays[name]) for name in finite]
    usual = max(seeds, key=lambda count: (seeds.count(count), count), default=0)
    return [name for name in finite if len(arrays[name]) == usual]


def _test(
    test: PairedTests,
    means: np.ndarray,
    pairs: Sequence[tuple[str, str]],
    higher_is_better: bool,
    margin: Margin,
    fixed: bool,
) -> dict[tuple[str, str], TestedPair]:
    """The tests of `pairs` of methods with these `means` [M]."""
    model = test.model
    margins = np.array([margin.of(means[a], means[b]) for a, b in model.pairs])
    over = _describe_basis(model, fixed)
    low, high = test.interval
    p_adjusted, p_equivalent, needed = np.full((3, len(pairs)), np.nan)
    if {*over} <= {SEEDS_AND_CLIENTS, CLIENTS}:
        p_adjusted, p_equivalent, needed = test.p_adjusted, test.p_equivalent(margins), test.seeds_needed(margins)
    verdicts = [
        _verdict(difference if higher_is_better else -difference, *p)
        for difference, *p in zip(model.mean, p_adjusted, p_equivalent, strict=True)
    ]
    more = np.where([verdict == OPEN for verdict in verdicts], needed, np.nan)
    columns = np.column_stack([model.mean, low, high, margins, test.p, p_adjusted, p_equivalent]).tolist()
    words = zip(verdicts, over, more.tolist(), strict=True)
    rows: Iterable[Sequence[Any]] = (
        (*pair, *row, *rest) for pair, row, rest in zip(pairs, columns, words, strict=True)
    )
    return {(row[0], row[1]): TestedPair(*row) for row in rows}


def name_few_seeds(seeds: int) -> str:
    """Why so many seeds, at least one, give no verdict; empty where they may give one."""
    return "" if seeds >= LEAST_SEEDS else ONE_SEED if seeds == 1 else TWO_SEEDS


def _describe_basis(model: paired_model.PairedModel, fixed: bool) -> list[str]:
    """What each pair is compared over, or why it has no verdict."""
    if model.clients < LEAST_CLIENTS:
        return [FEW_CLIENTS] * len(model.pairs)
    if fixed:
        return [CLIENTS] * len(model.pairs)
    if few := name_few_seeds(model.seeds):
        return [few] * len(model.pairs)
    return [SEEDS_AND_CLIENTS if varies else CLIENTS for varies in model.varies]


def _verdict(gain: float, p_adjusted: float, p_equivalent: float) -> str:
    """The outcome for the first method of a pair; a difference that is shown is one, also within the margin."""
    if np.isnan(p_adjusted):
        return ""
    if p_adjusted < ALPHA:
        return BETTER if gain > 0 else WORSE
    return EQUIVALENT if p_equivalent < ALPHA else OPEN


def _describe_untested(arrays: Mapping[str, np.ndarray], method: str, other: str, margin: Margin) -> TestedPair:
    """A pair without a test: scores are missing, there is one client, or the numbers of seeds differ."""
    first, second = arrays[method], arrays[other]
    paired = first - second if first.shape == second.shape else first.mean(0) - second.mean(0)
    nan, clients = float("nan"), first.shape[1]
    why = FEW_CLIENTS if clients < 2 else NOT_COMPARED
    size = margin.of(float(first.mean()), float(second.mean()))
    return TestedPair(method, other, float(paired.mean()), *interval(paired), size, nan, nan, nan, "", why)


def leader(values: Mapping[str, np.ndarray], higher_is_better: bool) -> str | None:
    """The method with the best mean over clients and seeds; None where every mean is NaN. Ties: the first name."""
    means = {name: float(np.mean(v)) * (1 if higher_is_better else -1) for name, v in values.items()}
    finite = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    return max(finite, key=finite.__getitem__) if finite else None


def compare_all_pairs(
    values: Mapping[str, np.ndarray], higher_is_better: bool, margin: Margin | None = None, draws: int = DRAWS
) -> list[TestedPair]:
    """Every pair of methods once, corrected over all M (M - 1) / 2 tests."""
    return compare_pairs(values, list(combinations(values, 2)), higher_is_better, margin, draws=draws)


def compare_to_controls(
    values: Mapping[str, np.ndarray],
    controls: Sequence[str],
    higher_is_better: bool,
    margin: Margin | None = None,
    draws: int = DRAWS,
) -> list[TestedPair]:
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
    return compare_pairs(values, pairs, higher_is_better, margin, draws=draws) if pairs else []


def leader_comparisons(pairs: Sequence[TestedPair], best: str | None) -> list[TestedPair]:
    """The comparisons of `best` with every other method, out of `compare_all_pairs` with their correction.

    The leader is chosen by the same scores. Corrected over the M - 1 tests of the leader alone, the best of sixteen
    equal methods would be called better than one of them in every sixth study.
    """
    return [c if c.method == best else c.swap() for c in pairs if best in (c.method, c.other)]
