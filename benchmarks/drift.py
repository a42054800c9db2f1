"""False alarms of drift, and shifts that are found, by simulation: `python -m benchmarks.drift [--deliveries 200]`.

Each client has 500 rows that the model knows and a delivery of new ones, in six columns: two normal ones, one of
counts, one with missing values, and two of categories, one of which has rare ones. Without drift all rows of a client
have one distribution. The shift is planted in one column of one client.

The table is written to docs/promotions/drift.csv, which docs/promotions.md shows. It takes about 5 minutes of one core.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from fedweave.files.atomic import write_atomic
from fedweave.lifecycle.drift import Drift, DriftSettings, find_drift
from fedweave.tensors.random_streams import stream

FILE = Path("docs/promotions/drift.csv")
KNOWN = 500  # rows of a client that the model knows
COLUMNS = [f"x{i}" for i in range(6)]
CELLS = ((6, 5), (6, 50), (6, 500), (48, 50))  # (clients, rows of a delivery)
SHIFTS = (0.5, 1.0, 2.0)  # of one column, in standard deviations
LEVEL, LIMIT = 0.05, 0.001  # most deliveries with a false alarm, and level of the test of that


def draw(clients: int, rows: int, generator: np.random.Generator) -> pd.DataFrame:
    """Rows of clients whose columns have different means and shares."""
    count = clients * rows
    client = np.repeat(np.arange(clients), rows)
    numbers = generator.standard_normal((4, count))
    numbers[2] = generator.poisson(2, count)
    numbers[3, generator.random(count) < 0.1] = np.nan
    table = pd.DataFrame((numbers + client).T, columns=COLUMNS[:4])
    table["x4"] = generator.choice(list("abc"), count, p=[0.5, 0.3, 0.2])
    table["x5"] = generator.choice(list("abcdefgh"), count, p=[0.6, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01])
    return table.assign(client=[f"c{i}" for i in client])


def alarm(clients: int, rows: int, shift: float, settings: DriftSettings, *key: int) -> Drift:
    """The drift found in one delivery."""
    generator = stream(54, clients, rows, *key)
    before, after = draw(clients, KNOWN, generator), draw(clients, rows, generator)
    after.loc[after["client"] == "c1", "x0"] += shift
    return find_drift(before, after, "client", COLUMNS, settings=settings)


def measure(clients: int, rows: int, deliveries: int) -> dict[str, float]:
    """Share of deliveries with a false alarm, with the default settings and of the test alone; and where each
    shift is found.
    """
    numbers = range(deliveries)
    usual = DriftSettings()
    alone = [alarm(clients, rows, 0.0, DriftSettings(LEVEL, 1e-9), i).groups for i in numbers]
    shifts = [[shift for group in groups for shift in group.shifts] for groups in alone]
    line = {
        "false alarms": np.mean(
            [any(one.p <= usual.level and one.size >= usual.least_shift for one in part) for part in shifts]
        ),
        "test at 5 %": np.mean([len(part) > 0 for part in shifts]),
    }
    for shift in SHIFTS:
        found = [alarm(clients, rows, shift, usual, i, 1).groups for i in range(deliveries // 4)]
        columns = [[(one.client, one.column) for group in groups for one in group.shifts] for groups in found]
        right = [("c1", "x0") in part for part in columns]
        line[f"shift of {shift:g}"] = np.mean(right)
    return {name: float(value) for name, value in line.items()}


def breaks(share: float, deliveries: int) -> bool:
    """Whether a share of deliveries is significantly above the level."""
    return bool(binom.sf(round(share * deliveries) - 1, deliveries, LEVEL) < LIMIT)


def main() -> None:
    """Write the table; exit with 1 if a cell has too many false alarms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, default=200, help="deliveries of a cell (default %(default)s)")
    deliveries = parser.parse_args().deliveries
    lines = []
    for clients, rows in CELLS:
        line = {"clients": clients, "rows": rows, **measure(clients, rows, deliveries), "deliveries": deliveries}
        lines.append(line)
        print(line, flush=True)
    write_atomic(FILE, pd.DataFrame(lines).round(3).to_csv(index=False, lineterminator="\n"))
    raise SystemExit(any(breaks(line["test at 5 %"], deliveries) for line in lines))


if __name__ == "__main__":
    main()
