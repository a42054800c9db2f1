"""Columns of a table by their names: who owns a row, what is predicted, what models see."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.api.reading import read_table
from fedweave.api.splits import RULES
from fedweave.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

PER_ROW = ("split", "time", "recording", "group")  # options that may be names of columns


def named_columns(table: "pd.DataFrame", options: Any) -> dict[str, str]:
    """Options that are names of columns of `table`; the name of a rule is none, unless a column has it."""
    names = {key: getattr(options, key) for key in PER_ROW if isinstance(getattr(options, key), str)}
    named = {key: name for key, name in names.items() if key != "split" or name in table}
    for name in named.values():
        check_column(table, name)
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
    for column in used:
        check_column(table, column)
    for column in (client, *(labels if least else ())):  # a series may lack a value
        if table[column].isna().any():
            raise BadInput(
                f"table: column {column!r} is missing in {int(table[column].isna().sum())} rows; drop them first"
            )
    chosen = [str(column) for column in table.columns if column not in used] if features is None else list(features)
    if len(chosen) < least or {*chosen} & {client, *labels}:
        others = " and ".join(map(repr, (client, *labels)))
        raise BadInput(f"features: {chosen} must name columns other than {others}, at least {least}")
    for column in chosen:
        check_column(table, column)
    if len({*chosen}) < len(chosen):
        raise BadInput(f"features: {chosen} names a column twice; name each once")
    return chosen


def check_column(table: "pd.DataFrame", column: str) -> None:
    """Refuse a column that is not there, or there twice."""
    if column not in table:
        raise BadInput(f"table: no column {column!r}; it has {', '.join(map(str, table.columns))}")
    if getattr(table[column], "ndim", 1) != 1:
        raise BadInput(f"table: two columns have the name {column!r}; rename one")


def column_values(table: "pd.DataFrame", column: str) -> Any:
    """The values of a column: an array where they are numbers or times, else a list of Python objects."""
    values = table[column].to_numpy()
    return values if values.dtype.kind in "iufbM" else table[column].tolist()


def read_used(path: Path | str, client: str, label: str | Sequence[str], options: Mapping[str, Any]) -> "pd.DataFrame":
    """The table of a file; only the columns that are used, where features are named."""
    features = options.get("features")
    if not features or options.get("split") in RULES:
        return read_table(path)
    named = [options[key] for key in PER_ROW if isinstance(options.get(key), str)]
    return read_table(
        path, [*dict.fromkeys([client, *([label] if isinstance(label, str) else label), *features, *named])]
    )
