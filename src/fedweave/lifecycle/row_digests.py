"""Names of rows: a digest of the key, and one of the values."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput
from fedweave.lifecycle.schema import Schema, as_texts

if TYPE_CHECKING:
    import pandas as pd

ID, ROW = "fedweave_id", "fedweave_row"


def identify(table: "pd.DataFrame", schema: Schema) -> "pd.DataFrame":
    """The rows, each once, with the digest of its key and that of its values.

    Raises:
        BadInput: a key is there twice with different values.
    """
    rows = _digests(table, schema.values)
    if schema.key:
        named = table.assign(**{ID: _digests(table, schema.key), ROW: rows})
        named = named.drop_duplicates([ID, ROW])
        if named[ID].duplicated().any():
            values = named.loc[named[ID].duplicated(), [*schema.key]].iloc[0].tolist()
            raise BadInput(f"key {', '.join(map(str, values))} is there twice with different values")
        return named
    copies = table.assign(row=rows).groupby("row").cumcount()
    names = [row if not copy else f"{row}-{copy}" for row, copy in zip(rows, copies, strict=True)]
    return table.assign(**{ID: names, ROW: rows})


def identify_keys(table: "pd.DataFrame", key: Sequence[str]) -> list[str]:
    """The `ID` of rows that need only the columns of the key: the same for 7 and "7", as names are texts."""
    return _digests(table.assign(**{name: as_texts(table[name]) for name in key}), key)


def _digests(table: "pd.DataFrame", columns: Sequence[str]) -> list[str]:
    """A digest of each row's values, the same for 1 and 1.0."""
    values = [_canonical(table[name]) for name in columns]
    return [
        hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        for row in zip(*values, strict=True)
    ]


def _canonical(values: "pd.Series[Any]") -> list[Any]:
    plain = values.astype(object).where(values.notna(), None).tolist()
    if values.dtype.kind == "M":
        return [value and value.isoformat() for value in plain]
    return [int(value) if isinstance(value, float) and value.is_integer() else value for value in plain]
