"""The ledger of the five papers: every printed number once, with ours beside it and how far it was run.

ledger.csv has one row for each row of `published.rows`; `python -m tools.docs.ledger` makes it.
"""

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.errors import BadInput, choose
from fedweave.results import published

CSV = Path(__file__).with_suffix(".csv")
FULL, ONE_SEED, OTHER, SIZE, REDUCED, ABSENT, NOT_RUN = (
    "full budget, several seeds",
    "full budget, one seed",
    "full budget, set-up of public code",
    "size or count",
    "reduced budget",
    "data not at hand",
    "not run",
)
STATES = (FULL, ONE_SEED, OTHER, SIZE, REDUCED, ABSENT, NOT_RUN)  # the first that applies is the state of a number
MARKS = {ONE_SEED: "¹", OTHER: "ᶜ", REDUCED: " r", ABSENT: " –"}  # behind a number
DIFFERS = "differs"
SCORES = tuple(metric for pairs in published.UNITS.values() for metric, _ in pairs)


class PrintedNumber(NamedTuple):
    """One printed number and ours. Scores are in the printed unit; NaN where there is none.

    `core_minutes` were trained, for all seeds. `estimate` are core-minutes of one seed that was not trained.
    """

    paper: str
    table: str
    dataset: str
    setting: str
    method: str
    metric: str
    printed: float
    printed_std: float
    state: str
    ours: float
    ours_std: float
    seeds: float
    verdict: str
    core_minutes: float
    estimate: float
    study: str

    @property
    def numbers(self) -> tuple[str, str, str]:
        """The printed number; ours, empty unless the whole budget was run; and the mark behind the last of the two."""
        ours = f"{self.ours:.4g}" if math.isfinite(self.ours) else ""
        return f"{self.printed:g}", ours, MARKS.get(self.state, "")


def read(paper: str, table: str = "") -> list[PrintedNumber]:
    """The stored entries of a paper, or of one of its tables, in the order of print.

    Raises:
        BadInput: no such paper or table.
    """
    choose(paper, published.PAPERS, "paper")
    with CSV.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
    tables = dict.fromkeys(row["table"] for row in rows)
    if table and table not in tables:
        raise BadInput(f"{published.PAPERS[paper]}: no table {table!r}; choices: {', '.join(tables)}")
    return [_parse(row) for row in rows if row["table"] == (table or row["table"])]


def _parse(row: dict[str, str]) -> PrintedNumber:
    kinds = PrintedNumber.__annotations__
    values: dict[str, Any] = {
        name: (float(text) if text else math.nan) if kinds[name] is float else text for name, text in row.items()
    }
    return PrintedNumber(**values)


def arrange(entries: Iterable[PrintedNumber]) -> tuple[list[str], dict[str, dict[str, PrintedNumber]]]:
    """A table as printed: (columns, row -> column -> entry), methods in rows, data sets and settings in columns.

    Where quantities are printed that are no scores, a row is a method and a quantity.
    """
    entries = [*entries]
    has_quantities = any(entry.metric not in SCORES for entry in entries)
    cells: dict[str, dict[str, PrintedNumber]] = {}
    for entry in entries:
        column = ", ".join(filter(None, (entry.dataset, entry.setting)))
        row = " ".join(filter(None, (entry.method, entry.metric if has_quantities else ""))).replace("_", " ")
        cells.setdefault(row, {})[column] = entry
    return [*dict.fromkeys(column for row in cells.values() for column in row)], cells
