"""False claims and power of the verdicts, by simulation: `python -m benchmarks.verdicts [--studies 2000] [--jobs 2]`.

A study has M methods, S seeds and N clients. The score of a method is the sum of effects of the client, of the seed, of
the method's client, cell and seed; all are drawn anew for every study, and the methods do not differ. *Ratio* is the
standard deviation over seeds divided by that over clients and cells together. Every call of a better method is false,
and so is every call of an equivalent one where half of the methods differ from the others by the margin. A cell of the
table fails if a one-sided binomial test rejects "at most 5 %" at 0.1 %.

The tables are written to docs/verdicts/*.csv, which docs/comparison.md shows. It takes about an hour on two cores.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr
from scipy.stats import binom

from fedweave.files.atomic import write_atomic
from fedweave.metrics import Margin
from fedweave.results import holm, statistics
from fedweave.results.marks import CONTROLS
from fedweave.results.repetitions import interval, mean_squares
from fedweave.tensors.random_streams import stream

FOLDER = Path("docs/verdicts")
LEVEL, LIMIT = 0.05, 0.001  # of a false claim, and of the test that finds a cell in breach of it
DRAWS = 1000  # of the joint distribution; a p value near 0.05 has a standard error of 0.007
FACTORS = {
    "ratio": (0.0, 0.05, 0.1, 0.2, 0.35, 0.7),
    "seeds": (3, 5, 10),
    "clients": (6, 10, 20, 48, 100),
    "methods": (4, 12, 30),
    "effects": ("normal", "skewed", "heavy tails"),
    "variances": ("equal", "factor 4"),
}
# Of one method alone: factors of its effects of seeds, and of all its effects.
UNSTABLE = {
    "seeds of one, 9": (3.0, 1.0),
    "seeds of one, 36": (6.0, 1.0),
    "seeds of one, 400": (20.0, 1.0),
    "one, 36": (1.0, 6.0),
}
# What seeds do to several methods alike: one effect for each half of them, or one to which each method responds by a
# factor of its own.
SHARED = ("seeds of two groups", "one effect of seeds")
CELLS = 60
INTERVALS = ("differences", "means")  # whose coverage a table has beside false claims
EQUIVALENT = 2.0  # margin in points, of scores around 50
LARGE_EFFECT = 1.2  # in standard deviations of a pair's difference on a client, averaged over seeds
GAINS = {"half": 0.5, "one": 1.0, "two": 2.0}
POWER_CELLS = tuple(product((4, 12), (0.0, 0.2, 0.35), (3, 5), (20, 48)))
SEED_CELLS = tuple(product((2, 4, 12), (6, 10, 20, 50), (3, 4, 5, 7, 10)))


@dataclass(frozen=True)
class Cell:
    """One line of a table: how the studies are drawn."""

    ratio: float
    seeds: int
    clients: int
    methods: int
    effects: str = "normal"
    variances: str = "equal"

    def study(self, generator: np.random.Generator) -> np.ndarray:
        """Scores [M, S, N] of methods that do not differ."""
        methods, seeds, clients = self.methods, self.seeds, self.clients
        scale, of_seeds = np.ones((2, methods))
        if self.variances == "factor 4":
            scale[1::2] = 2.0
        elif self.variances in UNSTABLE:
            of_seeds[-1], scale[-1] = UNSTABLE[self.variances]
        draws: dict[str, Callable[..., Any]] = {
            "normal": generator.standard_normal,
            "skewed": lambda size: generator.standard_exponential(size) - 1,
            "heavy tails": lambda size: generator.standard_t(4, size) / 2**0.5,
        }
        draw = draws[self.effects]
        of_method = draw((methods, 1, clients)) + draw((methods, seeds, clients))
        if self.variances == SHARED[0]:
            effects = draw((2, seeds, 1))[np.arange(methods) % 2]
        elif self.variances == SHARED[1]:
            effects = draw((methods, 1, 1)) * draw((1, seeds, 1))
        else:
            effects = of_seeds[:, None, None] * draw((methods, seeds, 1))
        of_method += self.ratio * 2**0.5 * effects
        return 50 + draw((1, seeds, 1)) + 2 * draw((1, 1, clients)) + scale[:, None, None] * of_method

    @property
    def difference_deviation(self) -> float:
        """Standard deviation of the difference of two methods on a client, averaged over seeds."""
        return (2 + 2 / self.seeds) ** 0.5


def design(count: int = CELLS) -> list[Cell]:
    """A fraction of all combinations in which all pairs of levels occur about equally often; the same at every call.

    Each next cell is, of all combinations, the one whose pairs of levels have occurred least.
    """
    levels = list(product(*FACTORS.values()))
    order = stream(46).permutation(len(levels))
    numbers: dict[tuple[int, int, object, object], int] = {}
    pairs = np.array([[numbers.setdefault(pair, len(numbers)) for pair in _pairs(level)] for level in levels])
    seen = np.zeros(len(numbers), dtype=int)
    cells = []
    for _ in range(count):
        costs = (seen**2 + seen)[pairs].sum(1)  # of each combination
        best = order[costs[order].argmin()]
        cells.append(levels[best])
        seen[pairs[best]] += 1
    return [Cell(**dict(zip(FACTORS, cell, strict=True))) for cell in sorted(cells, key=str)]


def _pairs(levels: Sequence[object]) -> Iterator[tuple[int, int, object, object]]:
    for i, j in combinations(range(len(levels)), 2):
        yield i, j, levels[i], levels[j]


def name_methods(count: int) -> list[str]:
    """Names of the methods; the first two are controls."""
    return [*CONTROLS, *(f"method {number}" for number in range(2, count))]


def false_claims(cell: Cell, studies: int, draws: int = DRAWS) -> dict[str, float]:
    """Share of studies with a false "better" in each family, and the coverage of intervals."""
    generator, names = _generator(cell), name_methods(cell.methods)
    wrong = dict.fromkeys(("all pairs", "controls", "leader"), 0)
    covered = dict.fromkeys(("differences", "means"), 0.0)
    for _ in range(studies):
        values = dict(zip(names, cell.study(generator), strict=True))
        pairs = statistics.compare_all_pairs(values, True, draws=draws)
        leading = statistics.leader_comparisons(pairs, statistics.leader(values, True))
        wrong["all pairs"] += any(c.better for c in pairs)
        wrong["leader"] += any(c.better for c in leading)
        wrong["controls"] += any(c.better for c in statistics.compare_to_controls(values, CONTROLS, True, draws=draws))
        covered["differences"] += float(np.mean([c.low <= 0 <= c.high for c in pairs]))
        low, high = interval(values[names[0]])
        covered["means"] += low <= 50 <= high
    return {name: count / studies for name, count in (wrong | covered).items()}


def other_families(cell: Cell, studies: int, draws: int = DRAWS) -> dict[str, float]:
    """The same for the families of graphs, ablations, the last comparison of `recommend` and single pairs."""
    generator, names = _generator(cell), name_methods(cell.methods)
    graphs = [pair for a, b, c in zip(*[iter(names)] * 3, strict=False) for pair in ((a, b), (a, c))]
    ablation = [(name, names[0]) for name in names[1:]]
    wrong = dict.fromkeys(("graphs", "ablation", "last comparison", "one pair", "two methods", "fixed models"), 0)
    for _ in range(studies):
        values = dict(zip(names, cell.study(generator), strict=True))
        families = {"graphs": graphs, "ablation": ablation, "one pair": [(names[2], names[3])]}
        families["last comparison"] = [(name, "Local") for name in names if name != "Local"]
        for family, pairs in families.items():
            wrong[family] += any(c.better for c in statistics.compare_pairs(values, pairs, True, draws=draws))
        two = {name: values[name] for name in names[2:4]}
        wrong["two methods"] += any(c.better for c in statistics.compare_all_pairs(two, True, draws=draws))
        # Given models have no seeds: what a seed did to them is a part of their quality.
        given = dict(zip(names, replace(cell, ratio=0.0, seeds=1).study(generator), strict=True))
        one_pair = statistics.compare_pairs(given, [(names[2], names[3])], True, fixed=True, draws=draws)
        wrong["fixed models"] += bool(one_pair[0].better)
    return {name: count / studies for name, count in wrong.items()}


def false_equivalence(cell: Cell, studies: int, draws: int = DRAWS) -> dict[str, float]:
    """Share of studies that call two methods equivalent which differ by the margin: in points, and in percent of
    an error that differs between clients as much as its mean is large.
    """
    generator, names, share = _generator(cell), name_methods(cell.methods), EQUIVALENT / 50
    above = np.isin(range(cell.methods), range(0, cell.methods, 2))[:, None, None]
    wrong = dict.fromkeys(("equivalent", "percent"), 0)
    sizes = stream(2, cell.clients)
    for _ in range(studies):
        scores = cell.study(generator)
        errors = sizes.standard_exponential(cell.clients) * scores * (1 + share * above)
        for kind, values, margin in (
            ("equivalent", scores + EQUIVALENT * above, Margin(points=EQUIVALENT)),
            ("percent", errors, Margin(share=share)),
        ):
            pairs = statistics.compare_all_pairs(dict(zip(names, values, strict=True)), True, margin, draws)
            differ = [(names.index(c.method) + names.index(c.other)) % 2 for c in pairs]
            wrong[kind] += any(c.verdict == "equivalent" and d for c, d in zip(pairs, differ, strict=True))
    return {name: count / studies for name, count in wrong.items()}


def power(cell: Cell, studies: int, draws: int = DRAWS) -> dict[str, float]:
    """How often a method that is better than all others is called better than a control."""
    generator, names = _generator(cell), name_methods(cell.methods)
    found = dict.fromkeys(("controls", "all pairs", "plain mixed model, Holm"), 0)
    for _ in range(studies):
        scores = cell.study(generator)
        scores[2] += LARGE_EFFECT * cell.difference_deviation
        values = dict(zip(names, scores, strict=True))
        tests = statistics.compare_to_controls(values, CONTROLS, True, draws=draws)
        found["controls"] += _finds(tests, names[2], names[0])
        found["all pairs"] += _finds(statistics.compare_all_pairs(values, True, draws=draws), names[2], names[0])
        plain = holm.adjust([_plain_p(values[c.method] - values[c.other]) for c in tests])
        wanted = next(i for i, c in enumerate(tests) if {c.method, c.other} == {names[2], names[0]})
        found["plain mixed model, Holm"] += bool(plain[wanted] < LEVEL)
    return {name: count / studies for name, count in found.items()}


def power_by_seeds(cell: Cell, studies: int, draws: int = DRAWS) -> dict[str, float]:
    """How often a method that is better than all others is called better than another one, in the family of all pairs,
    by its gain in standard deviations of a pair's difference on a client with one seed.
    """
    generator, names = stream(3, cell.seeds, cell.clients, cell.methods), name_methods(cell.methods)
    found = dict.fromkeys(GAINS, 0)
    for _ in range(studies):
        scores = cell.study(generator)
        for name, gain in GAINS.items():
            better = np.concatenate([scores[:-1], scores[-1:] + gain * 2.0])  # the variance is 2 of clients, 2 of cells
            pairs = statistics.compare_all_pairs(dict(zip(names, better, strict=True)), True, draws=draws)
            found[name] += _finds(pairs, names[-1], names[0])
    return {name: count / studies for name, count in found.items()}


def _finds(tests: Sequence[statistics.TestedPair], method: str, other: str) -> bool:
    return any(c.better == method and {c.method, c.other} == {method, other} for c in tests)


def _plain_p(difference: np.ndarray) -> float:
    """Two-sided p of the mixed model of one pair alone: the quasi-F test with Satterthwaite's degrees of freedom."""
    squares = np.array(mean_squares(difference))
    seeds, clients = difference.shape
    freedoms = np.array([seeds - 1, clients - 1, (seeds - 1) * (clients - 1)])
    total = max(squares @ [1, 1, -1], *squares[:2])
    used = np.array([1, 1, 1]) if total == squares @ [1, 1, -1] else squares[:2].argmax() == np.arange(3)
    freedom = total**2 / (used * squares**2 / freedoms).sum()
    return float(2 * stdtr(freedom, -abs(difference.mean()) / np.sqrt(total / difference.size)))


def _generator(cell: Cell) -> np.random.Generator:
    levels = [(*FACTORS[name], *UNSTABLE, *SHARED).index(value) for name, value in asdict(cell).items()]
    return stream(1, *levels)


def breaks(share: float, studies: int) -> bool:
    """Whether a share of false claims is significantly above the level."""
    return bool(binom.sf(round(share * studies) - 1, studies, LEVEL) < LIMIT)


OTHER_CELLS = (
    Cell(0.2, 3, 20, 12),
    Cell(0.35, 5, 48, 12, "heavy tails", "factor 4"),
    Cell(0.7, 3, 100, 12, "skewed"),
    Cell(0.0, 3, 10, 12, "skewed", "factor 4"),
)
EQUIVALENCE_CELLS = (
    *OTHER_CELLS,
    Cell(0.05, 3, 6, 12, "skewed"),
    Cell(0.2, 3, 20, 12, "normal", "seeds of one, 36"),
    Cell(0.7, 3, 20, 4, "normal", "seeds of one, 400"),
    Cell(0.1, 5, 10, 30, "heavy tails", "factor 4"),
    Cell(0.2, 10, 20, 12, "skewed"),
)
TABLES = {
    "false-claims": (false_claims, design()),
    "other-families": (other_families, OTHER_CELLS),
    "unstable": (
        false_claims,
        [
            Cell(ratio, seeds, 20, methods, "normal", kind)
            for kind, ratio, seeds, methods in product(UNSTABLE, (0.2, 0.7), (3, 5, 10), (4, 12))
        ],
    ),
    "shared": (
        false_claims,
        [
            Cell(0.2, seeds, clients, methods, "normal", kind)
            for kind, seeds, clients, methods in product(SHARED, (3, 5), (20, 100), (4, 12))
        ],
    ),
    "equivalence": (false_equivalence, EQUIVALENCE_CELLS),
    "power": (power, [Cell(ratio, seeds, clients, methods) for methods, ratio, seeds, clients in POWER_CELLS]),
    "seeds": (power_by_seeds, [Cell(0.2, seeds, clients, methods) for methods, clients, seeds in SEED_CELLS]),
}
POWERS = ("power", "seeds")  # tables of true claims


def measure(task: tuple[str, int, int]) -> tuple[dict[str, float], float]:
    """(numbers of one line of a table, processor seconds)."""
    table, number, studies = task
    function, cells = TABLES[table]
    start = time.process_time()
    return function(cells[number], studies), time.process_time() - start


def write_table(name: str, lines: Sequence[dict[str, float]], studies: int) -> int:
    """Write one table; returns how many of its numbers are above the level."""
    rows = [{**asdict(cell), **numbers} for cell, numbers in zip(TABLES[name][1], lines, strict=True)]
    frame = pd.DataFrame(rows).assign(studies=studies)
    shares = frame.columns[len(FACTORS) : -1]
    frame[shares] = frame[shares].round(3)
    write_atomic(FOLDER / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
    claims = [] if name in POWERS else [column for column in shares if column not in INTERVALS]
    return sum(breaks(share, studies) for column in claims for share in frame[column])


def main() -> None:
    """Write the tables; exit with 1 if a cell fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=[*TABLES], help="names of tables (default: all)")
    parser.add_argument("--studies", type=int, default=2000, help="studies of a cell (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default %(default)s)")
    options = parser.parse_args()
    seconds, failed = 0.0, 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for table in options.tables:
            cells, lines = TABLES[table][1], []
            tasks = [(table, number, options.studies) for number in range(len(cells))]
            for cell, (numbers, spent) in zip(cells, pool.map(measure, tasks), strict=True):
                seconds += spent
                lines.append(numbers)
                about = ", ".join(f"{name} {share:.3f}" for name, share in numbers.items())
                print(f"{table}: {cell}: {about} ({spent:.0f} s)", flush=True)
            failed += write_table(table, lines, options.studies)
    print(f"{seconds / 60:.0f} core-minutes; cells above {LEVEL:.0%}: {failed}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
