"""Columns of a table by their names: who owns a row, what is predicted, what models see."""

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.api.arguments import as_names
from fedweave.api.reading import read_table
from fedweave.api.splits import RULES
from fedweave.errors import LONGEST_VALUE, BadInput, format_value

if TYPE_CHECKING:
    import pandas as pd

LISTED = 20  # names of columns in a message
PER_ROW = ("split", "time", "recording", "group", "unit")  # options that may be names of columns

OF_CLIENTS = ("group", "unit")  # options that say something of a client, which may be its name


def named_columns(table: "pd.DataFrame", options: Any) -> dict[str, str]:
    """Options that are names of columns of `table`; the name of a rule is none, unless a column has it."""
    if not hasattr(table, "columns"):
        raise BadInput(f"table: {format_value(table)} is no pandas table; give one, or use Federation.from_file")
    if not len(table):
        raise BadInput("table: has no rows; give one row for each example")
    names = {key: getattr(options, key) for key in PER_ROW if isinstance(getattr(options, key), str)}
    named = {key: name for key, name in names.items() if key != "split" or name in table}
    for key, name in named.items():
        check_column(table, name, key)
    return named


def feature_columns(
    table: "pd.DataFrame",
    client: str,
    labels: Sequence[str],
    features: Sequence[str] | None,
    named: Mapping[str, str],
    least: int = 1,
) -> list[str]:
    """The columns that models see, `least` or more.

    Raises:
        BadInput: a column is not there, is the client or the label, or has missing entries where there must be none.
    """
    used = [client, *labels, *named.values()]
    roles = [("client", client), *(("label", label) for label in labels), *named.items()]
    for role, column in roles:
        check_column(table, column, role)
    check_roles(client, labels, named)
    for column in (client, *(labels if least else ())):  # a series may lack a value
        if table[column].isna().any():
            raise BadInput(
                f"table: column {column!r} is missing in {int(table[column].isna().sum())} rows; drop them first"
            )
    given = () if features is None else as_names(features, "features", 0)
    chosen = [str(column) for column in table.columns if column not in used] if features is None else [*given]
    if len(chosen) < least or {*chosen} & {client, *labels}:
        others = " and ".join(map(repr, (client, *labels)))
        raise BadInput(f"features: {chosen} must name columns other than {others}, at least {least}")
    for column in chosen:
        check_column(table, column, "features")
    if len({*chosen}) < len(chosen):
        raise BadInput(f"features: {chosen} names a column twice; name each once")
    return chosen


def check_roles(client: str, labels: Sequence[str], named: Mapping[str, str]) -> None:
    """Refuse one column for two roles that exclude each other.

    Raises:
        BadInput: naming both options and the column.
    """
    for place, label in enumerate(labels):
        if label == client:
            raise BadInput(f"label: {label!r} is also the column of client; name another column to predict")
        if label in labels[:place]:
            raise BadInput(f"label: {label!r} is named twice; name each column once")
    for role, column in named.items():
        other = "label" if column in labels else "client" if column == client and role not in OF_CLIENTS else ""
        if other:
            raise BadInput(f"{role}: {column!r} is also the column of {other}; name another, or leave {role} out")


def check_column(table: "pd.DataFrame", column: Any, option: str) -> None:
    """Refuse a column that is not there, or there twice; `option` names it."""
    if not isinstance(column, Hashable) or column not in table:
        names = [*map(str, table.columns)]
        near = difflib.get_close_matches(str(column)[:LONGEST_VALUE], names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        raise BadInput(
            f"{option}: no column {format_value(column)}; {hint}the table has {', '.join(names[:LISTED])}{rest}"
        )
    if getattr(table[column], "ndim", 1) != 1:
        raise BadInput(f"table: two columns have the name {column!r}; rename one")


def column_values(table: "pd.DataFrame", column: str) -> Any:
    """The values of a column: an array where they are numbers or times, else a list of Python objects."""
    values = table[column].to_numpy()
    return values if values.dtype.kind in "iufbM" else table[column].tolist()


def read_used_columns(
    path: Path | str, client: str, label: str | Sequence[str], options: Mapping[str, Any]
) -> "pd.DataFrame":
    """The table of a file; only the columns that are used, where features are named."""
    features = options.get("features")
    if not features or options.get("split") in RULES:
        return read_table(path)
    named = [options[key] for key in PER_ROW if isinstance(options.get(key), str)]
    return read_table(
        path, [*dict.fromkeys([client, *as_names(label, "label"), *as_names(features, "features"), *named])]
    )
