"""Writes the tables of docs/promotions.md from docs/promotions/*.csv.

`python -m benchmarks.promotions` and `python -m benchmarks.drift` make the files, and `python -m
tools.promotion_tables` puts them into the page.
"""

from pathlib import Path

import pandas as pd

from benchmarks import drift, promotions
from tools.pages import join_cells, rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "promotions.md"
FOLDER = ROOT / "docs" / "promotions"
# Columns that are counts or names; all others are shares, but for medians of nights.
PLAIN = ("scores", "clients", "effect", "rows")
TAKEN = {"false": ("promotions", promotions.breaks, "years"), "drift": ("test at 5 %", drift.breaks, "deliveries")}


def main() -> None:
    """Rewrite the page."""
    rewrite(PAGE, promotions=table)


def table(name: str) -> str:
    """One table as Markdown; (!) marks a share that is significantly above 5 %."""
    rows = pd.read_csv(FOLDER / f"{name}.csv")
    columns = [
        column for column in rows.columns if column not in ("years", "deliveries") and rows[column].nunique() > 1
    ]
    lines = [columns, ["---" if column == "scores" else "--:" for column in columns]]
    lines += [[_cell(name, column, row) for column in columns] for row in rows.to_dict("records")]
    return join_cells(lines)


def _cell(name: str, column: str, row: dict[str, float]) -> str:
    value = row[column]
    if column in PLAIN:
        return f"{value:g}" if isinstance(value, float) else str(value)
    if column.startswith("nights"):
        return "–" if value == float("inf") else f"{value:.0f}"
    measured, breaks, count = TAKEN.get(name, ("", None, ""))
    mark = " (!)" if column == measured and breaks and breaks(value, int(row[count])) else ""
    return f"{100 * value:.1f} %{mark}"


if __name__ == "__main__":
    main()
