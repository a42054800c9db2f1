"""Notes on how the columns of a delivery are read: codes and dates as numbers, the decimal mark, numbers as texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedweave.lifecycle.schema import Schema
from fedweave.own_data import data_warnings
from fedweave.own_data.column_encoding import MAX_ONE_HOT_LEVELS, Column
from fedweave.own_data.user_files import CODES, NOTES

if TYPE_CHECKING:
    import pandas as pd


def find_notes(
    read: Mapping[Any, Any],
    table: "pd.DataFrame",
    schema: Schema,
    columns: Sequence[tuple[str, str]],
    said: Iterable[str] | None,
    earlier: "pd.DataFrame",
) -> list[str]:
    """A line for each column that models see and that may be misread, and of names that are nearly the same.

    Args:
        read: attributes of the table that the reader of a file gave.
        table: its conformed rows.
        columns: (option, name) of the columns that "features" and "exclude" name.
        said: notes of earlier deliveries: a column that one is about has no further note. None before the first
            delivery, which settles what all columns hold.
        earlier: rows of earlier deliveries.
    """
    named = {option: {name for other, name in columns if other == option} for option in ("features", "exclude")}
    hidden = {schema.client, schema.label, *schema.key, *named["exclude"]}
    kinds = {column.name: column.kind for column in schema.columns if column.name not in hidden}
    kinds = {name: kind for name, kind in kinds.items() if name in (named["features"] or kinds)}
    lines = [*read.get(NOTES, ()), *data_warnings.find_codes(read.get(CODES, {}), kinds)]
    if said is not None:
        known = {_subject(line) for line in said}
        lines = [line for line in lines if _subject(line) not in known]
        for name in (name for name, kind in kinds.items() if kind == "text"):
            old = {*earlier[name].dropna()}
            if len(old) <= MAX_ONE_HOT_LEVELS:
                new = sorted({*table[name].dropna()} - old)
                lines += data_warnings.find_similar_names(f"values of column {name!r}", new, sorted(old))
        return lines
    found = [
        Column(name, levels=(*map(str, table[name].dropna().unique()),) if kind == "text" else ())
        for name, kind in kinds.items()
        if kind in ("text", "whole", "number")
    ]
    clients = data_warnings.find_similar_names("clients", sorted(table[schema.client].unique()))
    return [*clients, *lines, *data_warnings.find_misread_columns(table, found, len(table))]


def _subject(line: str) -> str:
    return line.partition(":")[0]
