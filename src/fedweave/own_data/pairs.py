"""Lists of pairs of names, from files and tables: edges between nodes, and a given graph of the clients."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, format_value
from fedweave.own_data.user_files import read_names

if TYPE_CHECKING:
    import pandas as pd

OF_PAIRS = {"edges": "node", "relation": "client", "--relation": "client"}  # what an option joins


def read_pairs(source: Any, option: str, known: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of names of a list, of a table of two columns, or of its file, with or without a header.

    Args:
        known: names that a pair may have.

    Raises:
        BadInput: it holds no pairs, or more than these; or its first line may be a header or a pair.
    """
    if hasattr(source, "shape") and not hasattr(source, "columns"):
        source = _pairs_of_array(exported_model.as_plain(source), option)
    if isinstance(source, str | Path) or hasattr(source, "columns"):
        table = source if hasattr(source, "columns") else read_names(source)
        if table.shape[1] > 2:
            raise BadInput(
                f"{option}: has the columns {', '.join(map(str, table.columns[:5]))}, and pairs have no weights or "
                "other values; give two columns, such as source and target"
            )
        if table.shape[1] < 2 or table.iloc[:, :2].isna().to_numpy().any():
            raise BadInput(f"{option}: needs two columns without missing entries, such as source and target")
        pairs: Any = [*zip(table.iloc[:, 0].tolist(), table.iloc[:, 1].tolist(), strict=True)]
        pairs = _first_line(source, table, option, known) + pairs
    else:
        pairs = [*source] if isinstance(source, Iterable) else [source]
    invalid = next((pair for pair in pairs if not isinstance(pair, Collection) or len(pair) != 2), None)
    if invalid is not None:
        raise BadInput(f"{option}: {format_value(invalid)} is not a pair; for example [('a', 'b'), ('b', 'c')]")
    return [(_match(first, option, known), _match(second, option, known)) for first, second in pairs]


def _pairs_of_array(array: np.ndarray, option: str) -> list[Any]:
    """The rows [R, 2] of an array."""
    if array.ndim == 2 and len(array) == 2:
        raise BadInput(
            f"{option}: shape {[*array.shape]} has a pair in each column, as an edge_index has, or in each row; give "
            "a list of pairs, such as array.T.tolist()"
        )
    return list(array.tolist())


def _match(value: Any, option: str, known: Collection[str]) -> str:
    """The name in `known` that a value of a pair is; a missing value elsewhere makes pandas write 1 as 1.0."""
    name = exported_model.name_of(value)
    names = (name, name.strip(), name.removesuffix(".0"), f"{name}.0")
    if found := next((one for one in names if one in known), ""):
        return found
    noun = OF_PAIRS[option]
    examples = ", ".join(map(repr, [*known][:5])) + (", ..." if len(known) > 5 else "")
    raise BadInput(f"{option}: {format_value(value)} is not a {noun}; add it, or drop its pairs ({noun}s: {examples})")


def _first_line(source: Any, table: "pd.DataFrame", option: str, known: Collection[str]) -> list[tuple[str, str]]:
    """The pair that a file without a header has in its first line, or none."""
    titles = [str(title).strip() for title in table.columns]
    if isinstance(source, str | Path) and titles[1] == f"{titles[0]}.1":  # how pandas repeats a name
        titles[1] = titles[0]
    found = [title in known for title in titles]
    if not any(found) or not all(isinstance(title, str) for title in table.columns):
        return []
    if not isinstance(source, str | Path) or not all(found):
        line = ",".join(titles)
        raise BadInput(
            f"{option}: the first line {line!r} may be a header or a pair; write a header such as source,target above "
            "the pairs, or read the file with header=None"
        )
    return [(titles[0], titles[1])]
