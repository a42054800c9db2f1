"""Columns of a table by their names: the client of a row, the labels, and the features."""

import difflib
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import MAX_VALUE_LENGTH, BadInput, format_count, format_value
from fedweave.own_data.argument_checks import as_names
from fedweave.own_data.user_files import read_folder, read_table

if TYPE_CHECKING:
    import pandas as pd

MOST_LISTED = 20  # most names of columns in a message
ONE_COLUMN_ADVICE = "separate the fields of a CSV file by commas, semicolons or tabs, and those of a TSV file by tabs"
COLUMN_OPTIONS = ("split", "time", "recording", "group", "unit")  # options that may be names of columns

ID_OPTIONS = ("recording", "group", "unit", "split")  # options that may be columns of names
CLIENT_OPTIONS = ("group", "unit")  # options that describe a client, so that they may name its column


def named_columns(table: "pd.DataFrame", options: Any) -> dict[str, str]:
    """Option -> column of `table` that it names; the name of a rule counts only if a column has it."""
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        what, way = format_value(table), "or use Federation.from_file"
        if isinstance(table, Mapping):
            what, way = "{client: table}", "as pd.concat(tables, names=['client']).reset_index('client') does"
        elif hasattr(table, "to_pandas"):
            what, way = type(table).__name__, "such as its to_pandas()"
        raise BadInput(f"table: {what} is not a pandas table; give one, {way}")
    if not len(table):
        raise BadInput("table: has no rows; give one row for each example")
    names = {key: getattr(options, key) for key in COLUMN_OPTIONS if isinstance(getattr(options, key), str)}
    option_columns = {key: name for key, name in names.items() if key != "split" or name in table}
    for key, name in option_columns.items():
        check_column(table, name, key)
    return option_columns


def feature_columns(
    table: "pd.DataFrame",
    client: str,
    labels: Sequence[str],
    features: Sequence[str] | None,
    option_columns: Mapping[str, str],
    least: int = 1,
    exclude: Sequence[str] = (),
    labelled: bool = True,
) -> list[str]:
    """The columns that are features, at least `least`; where `features` is None, all others but `exclude`.

    Args:
        labelled: whether every row needs a label.

    Raises:
        BadInput: a column is not there, is the client or the label, or has missing entries where there must be none.
    """
    used = [client, *labels, *option_columns.values()]
    roles = [("client", client), *(("label", label) for label in labels), *option_columns.items()]
    for role, column in roles:
        check_column(table, column, role)
    check_roles(client, labels, option_columns)
    for column in (client, *(labels if least and labelled else ())):  # a series may lack a value
        if missing := int(_is_missing(table[column]).sum()):
            raise BadInput(
                f"table: column {column!r} is missing in {format_count(missing, 'row')}; drop them first "
                "(in a file, NA and null count as missing; rename what has such a name)"
            )
    excluded = _excluded_columns(table, features, exclude)
    columns = [name for name in table.columns if name not in (*used, *excluded)] if features is None else features
    selected = as_names(columns, "features", 0)
    if features is None and len(selected) < least:
        raise BadInput(f"table: no column is left as a feature; it has {', '.join(map(str, table.columns))} alone")
    if len(selected) < least or {*selected} & {client, *labels}:
        others = " and ".join(map(repr, (client, *labels)))
        raise BadInput(f"features: {selected} must name columns other than {others}, at least {least}")
    for column in selected:
        check_column(table, column, "features")
    if len({*selected}) < len(selected):
        raise BadInput(f"features: {selected} names a column twice; name each once")
    return selected


def _excluded_columns(table: "pd.DataFrame", features: Sequence[str] | None, exclude: Sequence[str]) -> list[str]:
    names = as_names(exclude, "exclude", 0)
    if names and features is not None:
        raise BadInput(f"exclude: {names} and features are both given; give one of them")
    for name in names:
        check_column(table, name, "exclude")
    return names


def check_roles(client: str, labels: Sequence[str], option_columns: Mapping[str, str]) -> None:
    """Refuse one column for two roles that exclude each other."""
    for position, label in enumerate(labels):
        if label == client:
            raise BadInput(f"label: {label!r} is also the column of client; name another column to predict")
        if label in labels[:position]:
            raise BadInput(f"label: {label!r} is named twice; name each column once")
    for role, column in option_columns.items():
        other = "label" if column in labels else "client" if column == client and role not in CLIENT_OPTIONS else ""
        if other:
            raise BadInput(f"{role}: {column!r} is also the column of {other}; name another, or leave {role} out")


def check_column(table: "pd.DataFrame", column: Any, option: str) -> None:
    """Refuse a name that no column has, or that two columns have; `option` is the option that gives it."""
    if not isinstance(column, Hashable) or column not in table:
        names = [*map(str, table.columns)]
        if isinstance(column, str) and column in table.index.names:
            raise BadInput(f"{option}: {column!r} is the index of the table; make it a column with reset_index()")
        matches = difflib.get_close_matches(str(column)[:MAX_VALUE_LENGTH], names, n=1)
        hint = f"did you mean {matches[0]!r}? " if matches else ""
        rest = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
        listed = ", ".join(names[:MOST_LISTED]) if len(names) > 1 else f"one column, {names[0]!r}; {ONE_COLUMN_ADVICE}"
        raise BadInput(f"{option}: no column {format_value(column)}; {hint}the table has {listed}{rest}")
    if getattr(table[column], "ndim", 1) != 1:
        raise BadInput(f"table: two columns have the name {column!r}; rename one")


def _is_missing(column: "pd.Series[Any]") -> "pd.Series[bool]":
    """Whether each row has no value, or a text of spaces alone [M]."""
    missing = column.isna()
    if column.dtype.kind != "O":
        return missing
    try:
        values = column.unique()
    except TypeError:  # lists, which are refused later
        return missing
    return missing | column.isin([value for value in values if isinstance(value, str) and not value.strip()])


def column_values(table: "pd.DataFrame", column: str) -> Any:
    """The values of a column: an array where they are numbers or times, else a list of Python objects."""
    values = table[column].to_numpy()
    return values if values.dtype.kind in "iufbM" else table[column].tolist()


def read_rows(
    path: Path | str, client: str, label: str | Sequence[str], options: Mapping[str, Any], encoding: str = ""
) -> "pd.DataFrame":
    """The table of a file, or those of all files in a folder."""
    labels = as_names(label, "label", 0)
    names = name_columns(options, client, *(labels if options.get("target") == "classes" else ()))
    if Path(path).is_dir():
        return read_folder(Path(path), client, names, encoding, labels)
    return read_table(path, names, encoding, labels)


def read_named(source: Any, options: Mapping[str, Any], names: Sequence[Any], label: Any) -> "pd.DataFrame":
    """A table, or that of a file, where columns of names stay texts: `names`, and those that `options` name."""
    are_names = options.get("target") == "classes"
    labels = [label] if isinstance(label, str) else []
    return read_table(source, name_columns(options, *names, *(labels if are_names else ())), labels=labels)


def name_columns(options: Mapping[str, Any], *names: Any) -> tuple[str, ...]:
    """The columns whose values are names: `names`, and those that `options` name."""
    chosen = (*names, *(options.get(key) for key in ID_OPTIONS))
    return tuple(name for name in chosen if isinstance(name, str))
