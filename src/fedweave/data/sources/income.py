"""Yearly income per head in the 48 contiguous states of the USA, and the borders between the states.

Source: Regional Economic Information System, Bureau of Economic Analysis, U.S. Department of Commerce (public domain),
as the example `us_income` of libpysal 4.14.1 (BSD 3-Clause). Incomes relative to the national mean are the usual
measure of regional convergence: S. Rey, B. Montouri, "US Regional Income Convergence: A Spatial Econometric
Perspective" (Regional Studies, 1999).
"""

import csv
from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files

DIVISIONS = {
    "N Eng": "New England",
    "Mid Atl": "Middle Atlantic",
    "E N Cen": "East North Central",
    "W N Cen": "West North Central",
    "S Atl": "South Atlantic",
    "E S Cen": "East South Central",
    "W S Cen": "West South Central",
    "Mtn": "Mountain",
    "Pacific": "Pacific",
}


@dataset("us-income", "series")
def us_income(root: Path) -> Dataset:
    """Log of a state's income over the mean of all states in that year [48, 81], 1929 to 2009.

    The states' borders are the given relation, the census divisions the groups. `root` is not used.
    """
    del root
    table, borders, states = packaged_files("us-income")
    names, years, income = read_incomes(table)
    division = read_divisions(states)
    return Dataset(
        "us-income",
        "series",
        np.log(income / income.mean(0)).astype(np.float32),
        None,
        classes=0,
        time=((years - years[0]) / (years[-1] - years[0])).astype(np.float32),
        relation=symmetrise_edges(read_neighbours(borders), len(names)),
        names=names,
        group=np.array([[*DIVISIONS].index(division[name]) for name in names]),
        group_names=tuple(DIVISIONS.values()),
    )


def read_incomes(path: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names of the states, years [T], and dollars a head [N, T], of a table with a line per state."""
    with path.open(encoding="ascii", newline="") as file:
        header, *rows = csv.reader(file)
    names = tuple(row[0] for row in rows)
    return names, np.array(header[2:]).astype(np.int64), np.array([row[2:] for row in rows]).astype(np.float64)


def read_neighbours(path: Path) -> np.ndarray:
    """Pairs [2, R] of a GAL file.

    Its first line is the number of regions. Each region has two lines: its number and how many neighbours it has, then
    their numbers.
    """
    _, *lines = path.read_text(encoding="ascii").splitlines()
    regions = zip(lines[::2], lines[1::2], strict=True)
    pairs = [(line.split()[0], near) for line, others in regions for near in others.split()]
    return np.array(pairs).astype(np.int64).T


def read_divisions(path: Path) -> dict[str, str]:
    """Census division of every state, from the dBase III table of the map.

    Such a file has the lengths of its header and of a record at byte 8, and from byte 32 on 32 bytes per field (name,
    width at 16). Then come records of fixed width; the first byte of a record says whether it is deleted.
    """
    raw = path.read_bytes()
    start, width = (int.from_bytes(raw[at : at + 2], "little") for at in (8, 10))
    fields = [raw[at : at + 32] for at in range(32, start - 1, 32)]
    ends = np.cumsum([1, *(field[16] for field in fields)])
    columns = {field[:11].rstrip(b"\0").decode(): slice(*ends[i : i + 2]) for i, field in enumerate(fields)}
    records = [raw[at : at + width].decode("ascii") for at in range(start, len(raw) - width + 1, width)]
    return {record[columns["STATE_NAME"]].strip(): record[columns["SUB_REGION"]].strip() for record in records}
