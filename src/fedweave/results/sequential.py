"""Champion against challenger: two fixed models, looked at after every delivery, on rows that neither has seen.

The difference on a row of client c is δ + B_c + ε. The same clients come with every delivery, so that rows average ε
away and never B_c: each look is a Student test of the means of N clients, with N − 1 degrees of freedom.

A nightly test promotes by chance sooner or later. So each look may spend a part of the chance of a false claim (Lan and
DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983), nearly the same part of what is left
at every look (Pocock's form). The critical value of a look follows by numerical integration over all looks before it
(Armitage, McPherson and Rowe, JRSS A 132, 1969), as if rows alone varied: effects of clients correlate the looks more,
and the chance that any of them crosses its bound is then smaller (Slepian's inequality). Each challenger of a year has
an equal share of the chance, used or not: what a challenger that is given up has not spent is not handed on, because it
is given up where its scores are bad.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedweave.errors import BadInput, format_count, format_value
from fedweave.results.formats import ALPHA, format_gain
from fedweave.results.paired_tests import LEAST_CLIENTS
from fedweave.results.statistics import BETTER, EQUIVALENT, OPEN, WORSE

Floats = NDArray[np.float64]

LEAST_GAIN = 0.005  # of rows, relative: a look with fewer new ones spends nothing and leaves its part to the next
LEAST_ROWS = 0.1  # of the median client: one with fewer does not count yet, as its noise would hide all others
POINTS = 401  # of the integration, odd; the bounds change by less than 0.1 % with twice as many
LOWEST = -8.0  # of a normal variable


@dataclass(frozen=True)
class ChallengePlan:
    """How long a challenger is tested, and how often a year may promote one by chance.

    Attributes:
        patience: deliveries after which an open challenger is given up.
        per_year: deliveries of a year.
        level: chance that a year without any real difference promotes a challenger; so it is for "equivalent".
    """

    patience: int = 90
    per_year: int = 365
    level: float = ALPHA

    def __post_init__(self) -> None:
        if not 1 <= self.patience <= self.per_year:
            raise BadInput("patience", f"{self.patience} is not between 1 and per_year, {self.per_year} deliveries")
        if not 0 < self.level < 1:
            raise BadInput("level", f"{self.level} is not between 0 and 1")

    @property
    def challengers(self) -> int:
        """How many challengers may begin within a year."""
        return self.per_year // self.patience

    @property
    def share(self) -> float:
        """The chance of a false claim that one challenger has."""
        return self.level / self.challengers

    def next_start(self, starts: Sequence[int], delivery: int) -> int:
        """The first delivery, `delivery` or a later one, with which another challenger may begin.

        They begin `patience` deliveries apart, so that one that is given up early leaves the others of the year to it.

        Args:
            starts: the deliveries with which all challengers so far began.
        """
        if not (recent := sorted(starts)[-self.challengers :]):
            return delivery
        after_a_year = recent[0] + self.per_year if len(recent) == self.challengers else delivery
        return max(delivery, recent[-1] + self.patience, after_a_year)


@dataclass(frozen=True)
class ClientDifference:
    """What one delivery says of one client.

    Attributes:
        difference: mean over its rows of the challenger's score minus the champion's; positive is better.
        rows: how many they are.
        variance: sample variance of the differences of single rows; None if the score is none of single rows, such as
            the area under a curve.
    """

    difference: float
    rows: int
    variance: float | None = None


@dataclass(frozen=True)
class ClientSum:
    """The rows of one client so far.

    Attributes:
        rows: how many.
        difference: mean difference.
        squares: sum of squares around it, within deliveries where their variance is known and between deliveries.
        freedom: degrees of freedom of `squares`.
    """

    rows: int = 0
    difference: float = 0.0
    squares: float = 0.0
    freedom: int = 0

    def add(self, new: ClientDifference) -> "ClientSum":
        """This client with the rows of a further delivery."""
        rows, shift = self.rows + new.rows, new.difference - self.difference
        squares, freedom = self.squares + shift**2 * self.rows * new.rows / rows, self.freedom + bool(self.rows)
        if new.variance is not None:
            squares, freedom = squares + new.variance * (new.rows - 1), freedom + new.rows - 1
        return ClientSum(rows, self.difference + shift * new.rows / rows, squares, freedom)

    @property
    def row_variance(self) -> float:
        """Variance of the mean difference by the rows alone; 0 where nothing is known of it."""
        return self.squares / self.freedom / self.rows if self.freedom else 0.0


@dataclass(frozen=True)
class Look:
    """One look at a challenger.

    Attributes:
        clients: N, those that count.
        rows: of all clients so far.
        difference: mean over clients.
        p_better, p_worse: one-sided p values of this look alone.
        p_equivalent: of the claim that the difference is within the margin.
        bound: what a p value of this look must not exceed.
        spent: chance of a false claim so far, at most `ChallengePlan.share`.
    """

    clients: int
    rows: int
    difference: float
    p_better: float
    p_worse: float
    p_equivalent: float
    bound: float
    spent: float


@dataclass(frozen=True)
class Challenge:
    """A challenger under test: the state after every look so far.

    Attributes:
        plan: fixed before the first look.
        sums: client -> its rows so far.
        looks: in order.
        verdict: "better", "worse" or "equivalent" for the challenger, or "open"; the first one that is shown stays.
        margin: of equivalence at the last look, in the unit of the score.
    """

    plan: ChallengePlan = field(default_factory=ChallengePlan)
    sums: Mapping[str, ClientSum] = field(default_factory=dict)
    looks: tuple[Look, ...] = ()
    verdict: str = OPEN
    margin: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether there is a verdict, or no patience left."""
        return self.verdict != OPEN or len(self.looks) >= self.plan.patience

    def describe(self, metric: str) -> str:
        """The state in one sentence."""
        if not self.looks:
            return f"Open: no delivery yet of {format_count(self.plan.patience, 'delivery')}."
        last = self.looks[-1]
        seen = (
            f"{format_gain(last.difference, metric)} over "
            f"{format_count(last.clients, 'client')} after {format_count(len(self.looks), 'delivery')}"
        )
        if self.verdict != OPEN:
            p = {BETTER: last.p_better, WORSE: last.p_worse, EQUIVALENT: last.p_equivalent}[self.verdict]
            return f"{self.verdict.capitalize()}: {seen} (p {p:.2g}; this look allows {last.bound:.2g})."
        if last.clients < LEAST_CLIENTS:
            return f"Open: {seen}; it takes {LEAST_CLIENTS} clients or more."
        left = self.plan.patience - len(self.looks)
        rest = f"{left} left" if left else "given up"
        return f"Open: {seen} (p {last.p_better:.2g}, where {last.bound:.2g} shows a gain; {rest})."


def look(challenge: Challenge, delivery: Mapping[str, ClientDifference], margin: float = 0.0) -> Challenge:
    """The state after a further delivery.

    Args:
        delivery: client -> its difference. Clients that count as one, such as those of one unit, come as one; those
            without rows, or without a defined score, are left out.
        margin: of equivalence, in the unit of the score; 0: nothing is equivalent.

    Raises:
        BadInput: the challenge is over, or a difference is not finite.
    """
    if challenge.is_over:
        raise BadInput("challenge", f"it is over ({challenge.verdict}); begin another one")
    for client, new in delivery.items():
        if not (math.isfinite(new.difference) and 0 <= (new.variance or 0.0) < math.inf and new.rows > 0):
            raise BadInput(f"client {client}", f"{format_value(new)} is no finite difference of one or more rows")
    sums = {**challenge.sums}
    for client, new in delivery.items():
        sums[client] = sums.get(client, ClientSum()).add(new)
    new_look, verdict = _look(challenge, sums, margin)
    return replace(challenge, sums=sums, looks=(*challenge.looks, new_look), verdict=verdict, margin=margin)


def _look(challenge: Challenge, sums: Mapping[str, ClientSum], margin: float) -> tuple[Look, str]:
    """The look at `sums`, and its verdict."""
    plan, earlier = challenge.plan, challenge.looks
    rows = sum(one.rows for one in sums.values())
    usual = float(np.median([one.rows for one in sums.values()])) if sums else 0.0
    counted = [one for one in sums.values() if one.rows >= LEAST_ROWS * usual]
    spent = earlier[-1].spent if earlier else 0.0
    if len(counted) < 2:
        difference = counted[0].difference if counted else 0.0
        return Look(len(counted), rows, difference, 1.0, 1.0, 1.0, 0.0, spent), OPEN
    difference, better, worse, equivalent = (float(value) for value in student(*_columns(counted), margin))
    bound, tested = 0.0, [one for one in earlier if one.bound]
    if len(counted) >= LEAST_CLIENTS and rows > (1 + LEAST_GAIN) * (tested[-1].rows if tested else 0):
        allowed = plan.share * spending(len(earlier) + 1, plan.patience)
        bound = _uncrossed(*((one.rows, one.bound) for one in tested)).bound(rows, allowed - spent)
        spent = allowed
    shown = [word for word, p in ((BETTER, better), (WORSE, worse), (EQUIVALENT, equivalent)) if p <= bound]
    new = Look(len(counted), rows, difference, better, worse, equivalent, bound, spent)
    return new, shown[0] if shown else OPEN


def _columns(clients: Sequence[ClientSum]) -> tuple[Floats, Floats]:
    return np.array([one.difference for one in clients]), np.array([one.row_variance for one in clients])


def student(differences: Floats, row_variances: Floats, margin: float = 0.0) -> tuple[Floats, Floats, Floats, Floats]:
    """Student's test of the mean of N clients: the mean, and one-sided p values of better, worse and equivalent, [...].

    - The variance between clients contains that of the rows. Where it is smaller by chance, that of the rows replaces
      it: with few clients, one of many looks finds a small one.
    - Where clients lose more than others gain, t is that of Hall, "On the removal of skewness by transformation", JRSS
      B 54 (1992). Skewness to the other side changes nothing.
    - Without any spread, p is that of clients that agree by chance, and nothing is equivalent: with few rows, models
      that differ can give equal answers.

    Args:
        differences: mean difference of each client [..., N].
        row_variances: variance of each mean by the rows alone, 0 if not known [..., N].
        margin: of equivalence.
    """
    from scipy.special import stdtr

    clients = differences.shape[-1]
    mean = differences.mean(-1)
    centred = differences - mean[..., None]
    own = (centred**2).mean(-1)
    error = np.sqrt(np.maximum(own * clients / (clients - 1), row_variances.mean(-1)) / clients)
    agree = error <= 1e-9 * np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = np.where(own > 0, (centred**3).mean(-1) / own**1.5, 0.0)

    def one_sided(size: Floats, skewness: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            t, a = np.minimum(size / error, 1e6), np.minimum(skewness, 0.0) / (3 * math.sqrt(clients))
            t = t + a * t**2 + a**2 * t**3 / 3 + a / 2
        return np.where(agree, np.where(size > 0, 2.0**-clients, 1.0), stdtr(clients - 1, -t))

    near = np.maximum(one_sided(margin - mean, -skewness), one_sided(margin + mean, skewness))
    return mean, one_sided(mean, skewness), one_sided(-mean, -skewness), np.where(agree, 1.0, near)


def spending(looks: int, patience: int) -> float:
    """The part of a challenger's chance that may be spent up to this look: Pocock's form of Lan and DeMets (1983)."""
    return math.log1p((math.e - 1) * looks / patience)


@dataclass(frozen=True)
class Uncrossed:
    """The normal statistic at the last look if it has crossed no bound so far, without a difference.

    Attributes:
        rows: at that look; rows are the information of a Brownian motion.
        values: of the statistic [G].
        density: of these values, times the weights of the integration [G].
    """

    rows: float = 0.0
    values: Floats = field(default_factory=lambda: np.zeros(1))
    density: Floats = field(default_factory=lambda: np.ones(1))

    def bound(self, rows: float, chance: float) -> float:
        """The p value that is crossed first at the next look with the given chance."""
        from scipy.optimize import brentq
        from scipy.special import ndtr

        start, end, step = self.values * math.sqrt(self.rows), math.sqrt(rows), math.sqrt(rows - self.rows)

        def excess(critical: float) -> float:
            return float(ndtr((start - critical * end) / step) @ self.density) - chance

        return float(ndtr(-brentq(excess, LOWEST, -LOWEST)))

    def move(self, rows: float, bound: float) -> "Uncrossed":
        """The same at the next look, with the bound of that look."""
        from scipy.special import ndtri

        values = np.linspace(LOWEST, -ndtri(bound), POINTS)
        weights = np.full(POINTS, 2.0)
        weights[1::2], weights[[0, -1]] = 4.0, 1.0  # Simpson's rule
        step = math.sqrt(rows - self.rows)
        moved = values[:, None] * (math.sqrt(rows) / step) - self.values * (math.sqrt(self.rows) / step)
        arriving = (np.exp(-0.5 * moved * moved) @ self.density) * (math.sqrt(rows / (2 * math.pi)) / step)
        return Uncrossed(rows, values, arriving * weights * (values[1] - values[0]) / 3)


@lru_cache(maxsize=400)
def _uncrossed(*looks: tuple[float, float]) -> Uncrossed:
    """After looks with these rows and bounds; the next look takes one step more."""
    return _uncrossed(*looks[:-1]).move(*looks[-1]) if looks else Uncrossed()
