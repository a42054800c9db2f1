"""False promotions of nightly challengers, by simulation: `python -m benchmarks.promotions [--years 2000]`.

A year has 365 deliveries and as many challengers in turn as the default plan allows. None differs from the champion:
every promotion is false. The difference on a row is the sum of an effect of the client, drawn for each challenger and
the same in all deliveries, and of the row. *Effect* is the standard deviation over clients divided by that of a
client's mean in one delivery. A cell fails if a one-sided binomial test rejects "at most 5 % of years" at 0.1 %.

- `normal`: effects and rows are normal. `binary`: the models are right or wrong, and disagree on 10 % of the rows. Only
  binary scores come with the variance of their rows; the test finds that of the others between deliveries.
- `skewed`: effects and rows of both models are exponential, so that their difference is symmetric with heavy tails.
- `lopsided`: the difference itself is exponential: most clients gain a little, a few lose a lot. `two groups`: half of
  the clients gain what the other half loses. These two show the limits of a test of few clients, and no cell of them
  fails.

The tables are written to docs/promotions/*.csv, which docs/promotions.md shows. It takes about 3 minutes of one core.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from fedweave.files.atomic import write_atomic
from fedweave.results.sequential import ChallengePlan, Floats, Uncrossed, spending, student
from fedweave.tensors.random_streams import stream

FOLDER = Path("docs/promotions")
LIMIT = 0.001  # of the test that finds a cell above the level
DISAGREEMENT = 0.1  # share of rows on which binary scores differ
DEVIATION = 100 * DISAGREEMENT**0.5  # of the difference on a row, in points
GAIN = 1.0  # points, and the margin of equivalence
PLAN = ChallengePlan()
PATIENCES = (30, 90, 365)
BATCH = 50  # years at a time: 2 MB
LIMITS = ("lopsided", "two groups")
SCORES = ("normal", "binary", "skewed", *LIMITS)


@dataclass(frozen=True)
class Site:
    """One line of a table: how differences are drawn."""

    scores: str
    clients: int
    effect: float
    rows: int

    def draw(self, count: int, deliveries: int, gain: float, generator: np.random.Generator) -> tuple[Floats, Floats]:
        """Challengers that are better by `gain`: mean difference of every client after each delivery, in points, and
        its variance by the rows alone, [count, deliveries, N] each.
        """
        shape = (count, deliveries, self.clients)
        noise = DEVIATION / self.rows**0.5
        effects = gain + self.effect * noise * self._effects(count, generator)
        within, known = np.zeros(1), 0
        if self.scores == "binary":
            favour = np.clip((1 + effects / (100 * DISAGREEMENT)) / 2, 0, 1)
            differing = generator.binomial(self.rows, DISAGREEMENT, shape)
            means = (2 * generator.binomial(differing, favour) - differing) * (100 / self.rows)
            within, known = differing * 1e4 - self.rows * means**2, self.rows - 1
        elif self.scores in ("skewed", "lopsided"):
            means = effects + noise * self._exponential(generator, shape)
        else:
            means = effects + noise * generator.standard_normal(shape)
        looks = np.arange(1, deliveries + 1)[:, None]
        mean = np.cumsum(means, 1) / looks
        squares = self.rows * (np.cumsum(means**2, 1) - looks * mean**2) + np.cumsum(within, min(1, within.ndim - 1))
        freedom = looks * known + looks - 1
        return mean, np.maximum(squares, 0) / np.maximum(freedom, 1) / (self.rows * looks)

    def _effects(self, count: int, generator: np.random.Generator) -> Floats:
        """Effects of clients with variance 1 [count, 1, N]."""
        shape = (count, 1, self.clients)
        if self.scores == "two groups":
            return generator.choice([-1.0, 1.0], shape)
        if self.scores == "lopsided":
            return 1 - generator.standard_exponential(shape)
        if self.scores == "skewed":
            return (generator.standard_exponential(shape) - generator.standard_exponential(shape)) / 2**0.5
        return generator.standard_normal(shape)

    def _exponential(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Standardised means of `rows` skewed differences."""
        if self.scores == "lopsided":
            return (self.rows - generator.standard_gamma(self.rows, shape)) / self.rows**0.5
        first, second = generator.standard_gamma(self.rows, (2, *shape))
        return (first - second) / (2 * self.rows) ** 0.5


NULL_CELLS = [
    *(
        Site(*cell)
        for cell in product(("normal", "binary"), (6, 10, 48), (0.0, 0.2, 1.0), (5, 50))
        if cell[::2] != ("binary", 1.0) or cell[3] == 50
    ),  # with 5 rows an effect of 1 is more than they disagree
    *(Site("skewed", clients, *cell) for clients, cell in product((6, 10, 48), ((0.2, 50), (1.0, 5)))),
    *(Site(scores, clients, 1.0, 50) for scores, clients in product(LIMITS, (6, 10, 20, 48))),
]
GAIN_CELLS = [cell for cell in NULL_CELLS if cell.scores == "binary"]


@cache
def bounds(plan: ChallengePlan) -> Floats:
    """The p value that each look of a challenger must not exceed, if every delivery has as many rows."""
    uncrossed, found = Uncrossed(), []
    for delivery in range(1, plan.patience + 1):
        chance = spending(delivery, plan.patience) - spending(delivery - 1, plan.patience)
        found.append(uncrossed.bound(delivery, plan.share * chance))
        uncrossed = uncrossed.move(delivery, found[-1])
    return np.array(found)


def batches(cell: Site, count: int, *key: int) -> Iterator[tuple[int, np.random.Generator]]:
    """(size, generator) of each batch of `count` years."""
    levels = (SCORES.index(cell.scores), cell.clients, round(10 * cell.effect), cell.rows)
    for start in range(0, count, BATCH):
        yield min(BATCH, count - start), stream(53, *key, *levels, start)


def false_promotions(cell: Site, years: int) -> dict[str, float]:
    """Share of years that promote: by our rule, by an uncorrected test every night, and by rows alone; and share of
    challengers that are rightly called equivalent.
    """
    columns = ("promotions", "every night at 5 %", "rows alone")
    promoted = dict.fromkeys(columns, 0)
    equivalent = 0
    for size, generator in batches(cell, years):
        years_with = {name: np.zeros(size, dtype=bool) for name in columns}
        for _ in range(PLAN.challengers):
            mean, row_variance = cell.draw(size, PLAN.patience, 0.0, generator)
            _, better, _, near = student(mean, row_variance, GAIN)
            years_with["promotions"] |= (better <= bounds(PLAN)).any(1)
            years_with["every night at 5 %"] |= (better <= PLAN.level).any(1)
            years_with["rows alone"] |= _rows_alone(mean, cell).any(1)
            equivalent += int(((near <= bounds(PLAN)) & (better > bounds(PLAN))).any(1).sum())
        for name in columns:
            promoted[name] += int(years_with[name].sum())
    shares = {name: count / years for name, count in promoted.items()}
    return {**shares, "equivalent": equivalent / years / PLAN.challengers}


def _rows_alone(mean: Floats, cell: Site) -> np.ndarray:
    """Whether the asymptotic confidence sequence of Waudby-Smith et al. (Annals of Statistics, 2024) over rows, which
    takes clients for no source of variance, is above 0 after each delivery [..., T].
    """
    rows = cell.rows * cell.clients * np.arange(1, PLAN.patience + 1)
    chance = 2 * PLAN.share
    width = (2 * np.log(1 / chance) + np.log(2 * np.log(1 / chance)) + 1) / (rows[-1] / 3) * rows + 1
    return mean.mean(-1) > DEVIATION * np.sqrt(2 * width / (width - 1) / rows * np.log(np.sqrt(width) / chance))


def gain(cell: Site, challengers: int) -> dict[str, float]:
    """How often, and after how many nights, a real gain of one point is found; how often it is called equivalent,
    which is false, as the gain is the margin.
    """
    nights: dict[int, list[np.ndarray]] = {patience: [] for patience in PATIENCES}
    equivalent = 0
    for size, generator in batches(cell, challengers, 1):
        mean, row_variance = cell.draw(size, max(PATIENCES), GAIN, generator)
        _, better, _, near = student(mean, row_variance, GAIN)
        for patience in PATIENCES:
            plan = ChallengePlan(patience)
            shown = better[:, :patience] <= bounds(plan)
            first = np.where(shown.any(1), shown.argmax(1) + 1, np.inf)
            nights[patience].append(first)
            if plan == PLAN:
                close = near[:, :patience] <= bounds(plan)
                equivalent += int((close.any(1) & (close.argmax(1) + 1 < first)).sum())
    of = {patience: np.concatenate(parts) for patience, parts in nights.items()}
    medians = {f"nights, patience {patience}": float(np.median(of[patience])) for patience in PATIENCES}
    found = {f"found, patience {patience}": float(np.isfinite(of[patience]).mean()) for patience in PATIENCES}
    return {**found, **medians, "equivalent": equivalent / challengers}


def breaks(share: float, years: int) -> bool:
    """Whether a share of years is significantly above the level."""
    return bool(binom.sf(round(share * years) - 1, years, PLAN.level) < LIMIT)


def main() -> None:
    """Write the tables; exit with 1 if a cell fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--years", type=int, default=2000, help="years of a cell (default %(default)s)")
    years = parser.parse_args().years
    start, failed = time.process_time(), 0
    for name, cells, function in (("false", NULL_CELLS, false_promotions), ("gain", GAIN_CELLS, gain)):
        lines = []
        for cell in cells:
            count = years if name == "false" else years // 4
            lines.append({**asdict(cell), **function(cell, count), "years": count})
            print(name, lines[-1], flush=True)
            if name == "false" and cell.scores not in LIMITS:
                failed += breaks(lines[-1]["promotions"], years)
        frame = pd.DataFrame(lines).round(4)
        write_atomic(FOLDER / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
    print(f"{(time.process_time() - start) / 60:.1f} core-minutes; cells above {PLAN.level:.0%}: {failed}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
