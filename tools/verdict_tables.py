"""Writes the tables of docs/comparison.md on false claims and power, from docs/verdicts/*.csv.

`python -m benchmarks.verdicts` makes the files but for clients-alone.csv, whose test is not in the code.
`python -m tools.verdict_tables` puts them into the page.
"""

from pathlib import Path

import pandas as pd

from benchmarks.verdicts import FACTORS, INTERVALS, POWERS, breaks
from tools.pages import join_cells, rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "comparison.md"
FOLDER = ROOT / "docs" / "verdicts"
TITLES = {"differences": "intervals of differences", "means": "intervals of means"}


def main() -> None:
    """Rewrite the page."""
    rewrite(PAGE, verdicts=table)


def table(name: str) -> str:
    """One table as Markdown: the cell, and shares of its studies in percent."""
    rows = pd.read_csv(FOLDER / f"{name}.csv")
    studies = int(rows["studies"].iloc[0])
    factors = [factor for factor in FACTORS if rows[factor].nunique() > 1]
    measured = [column for column in rows.columns if column not in (*FACTORS, "studies")]
    lines = [[*factors, *(TITLES.get(column, column) for column in measured)]]
    lines.append(["--:" if pd.api.types.is_numeric_dtype(rows[column]) else "---" for column in (*factors, *measured)])
    for row in rows.to_dict("records"):
        levels = [f"{row[factor]:g}" if isinstance(row[factor], float) else str(row[factor]) for factor in factors]
        shares = [_share(row[column], studies, column not in INTERVALS and name not in POWERS) for column in measured]
        lines.append([*levels, *shares])
    return join_cells(lines)


def _share(value: float, studies: int, is_claim: bool) -> str:
    return f"{100 * value:.1f} %" + (" (!)" if is_claim and breaks(value, studies) else "")


if __name__ == "__main__":
    main()
