"""Graphs in text files: weights alone, or in a table whose rows and columns have the names of the clients."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.errors import BadInput, choose, format_value

WAY = "write numbers with commas between them, and no names or the name of every client in the first line and column"


def read_csv(path: Path) -> dict[str, Any]:
    """`weights`, and the `names` of their rows and columns in the order of the rows; () where the file has none.

    Raises:
        ValueError: no matrix, or names that are not the same for rows and columns.
    """
    text = path.read_text(encoding="utf-8-sig")
    rows = csv.reader(io.StringIO(text))
    header = next((row for row in rows if row), [])
    if _is_header(header):
        return _parse_named_rows(header[1:], [row for row in rows if row])
    numbers = [line for line in text.splitlines() if line.partition("#")[0].strip()]  # numpy warns if there are none
    return {"weights": np.loadtxt(numbers, delimiter=",", ndmin=2) if numbers else np.empty((0, 0)), "names": ()}


def reorder(weights: np.ndarray, names: Sequence[str], clients: Sequence[str], where: str) -> np.ndarray:
    """`weights`, whose rows and columns have `names`, in the order of `clients`.

    Raises:
        BadInput: the first name that is not a client, or the first client without a row.
    """
    for name in names:
        choose(name, clients, f"{where}: the name of a client")
    place = {name: i for i, name in enumerate(names)}
    missing = next((client for client in clients if client not in place), None)
    if missing is not None:
        raise BadInput(where, f"the client {format_value(missing)} is missing; add its row and its column")
    order = [place[client] for client in clients]
    return weights[np.ix_(order, order)]


def _is_header(row: Sequence[str]) -> bool:
    """Whether `row` is the header of a table with names. In a table of pandas, its first cell is empty or a name."""
    return len(row) > 1 and not row[0].lstrip().startswith("#") and not _is_number(row[0])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parse_named_rows(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    rows = [line[0] for line in lines]
    _check_names(rows, columns)
    for name, *cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"the row {format_value(name)} has {len(cells)} of {len(columns)} weights")
        bad = next((i for i, cell in enumerate(cells) if not _is_number(cell)), None)
        if bad is not None:
            raise ValueError(
                f"row {format_value(name)}, column {format_value(columns[bad])} is {format_value(cells[bad])}, "
                "no number"
            )
    place = {name: i for i, name in enumerate(columns)}
    weights = np.array([[float(cell) for cell in cells] for _, *cells in lines])
    return {"weights": weights[:, [place[name] for name in rows]], "names": tuple(rows)}


def _check_names(rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse rows and columns that do not have the same names, each one once."""
    if {*rows}.isdisjoint(columns):
        raise ValueError("the first line has names, and no other line begins with one of them")
    for kind, other, names, other_names in (("row", "column", rows, columns), ("column", "row", columns, rows)):
        duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
        if duplicate is not None:
            raise ValueError(f"the {kind} {format_value(duplicate)} occurs twice")
        unmatched = next((name for name in names if name not in {*other_names}), None)
        if unmatched is not None:
            raise ValueError(f"the {kind} {format_value(unmatched)} has no {other} of this name")
