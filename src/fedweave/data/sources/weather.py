"""TPT-48: monthly mean temperatures of the 48 contiguous states of the USA.

Sources: NOAA nClimDiv as collected in washingtonpost/data-2C-beyond-the-limit-usa; state borders of
Wang-ML-Lab/VDI.
"""

from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset


@dataset("tpt48", "series")
def tpt48(root: Path) -> Dataset:
    """Temperatures [48, 288] in degrees Fahrenheit, 1996 to 2019; month / 12; the graph of land borders."""
    return _load_dataset("tpt48", root / "TPT-48", range(1996, 2020))


@dataset("tpt48-2008", "series")
def tpt48_2008(root: Path) -> Dataset:
    """The months of 2008 to 2019 [48, 144], which Wang-ML-Lab/VDI has; else as `tpt48`."""
    return _load_dataset("tpt48-2008", root / "TPT-48", range(2008, 2020))


def _load_dataset(name: str, folder: Path, years: range) -> Dataset:
    import pandas as pd

    numbers = pd.read_csv(folder / "noaastate.txt")
    codes = pd.read_csv(folder / "state_abbreviations.csv", encoding="utf-8-sig").set_index("State")["Abbr"]
    code_of = {int(n): codes[s] for n, s in zip(numbers.iloc[:, 0], numbers["state"], strict=True) if s in codes}
    table = read_temperatures(folder / "climdiv-tmpcst-v1.0.0-20200106", years)
    states = sorted(code_of[n] for n in table if n in code_of)
    number_of = {code: n for n, code in code_of.items()}
    return Dataset(
        name,
        "series",
        np.stack([table[number_of[code]] for code in states]).astype(np.float32),
        None,
        classes=0,
        time=np.tile(np.arange(12) / 12, len(years)).astype(np.float32),
        relation=read_borders(folder / "usa_map.txt", states),
        names=tuple(states),
    )


def read_temperatures(path: Path, years: range) -> dict[int, np.ndarray]:
    """Months of `years` in time order for each state number, from NOAA's fixed-width file.

    A line is: state (3 digits), division (1), element (2, mean temperature is 02), year (4), twelve values.
    """
    rows: dict[int, dict[int, list[float]]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        number, division, element, year = int(line[:3]), line[3], line[4:6], int(line[6:10])
        if division == "0" and element == "02" and year in years:
            rows.setdefault(number, {})[year] = [float(value) for value in line[10:].split()]
    return {n: np.concatenate([row[y] for y in years]) for n, row in rows.items() if len(row) == len(years)}


def read_borders(path: Path, states: list[str]) -> np.ndarray:
    """Borders [2, R] between `states`, both directions, from lines of two codes; others (DC) are left out."""
    position = {code: i for i, code in enumerate(states)}
    pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
    neighbours = [(position[a], position[b]) for a, b in pairs if a in position and b in position]
    return symmetrise_edges(np.array(neighbours, dtype=np.int64).T, len(states))
