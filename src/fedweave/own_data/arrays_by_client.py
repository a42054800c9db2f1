"""Arrays of each client, joined into arrays with one entry per row."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data.array_checks import as_array, as_plain, concatenate
from fedweave.own_data.row_options import DataOptions

BY_ROW = ("split", "time", "recording")  # options that may be {client: one entry per row}, too
Rows = Mapping[Hashable, Any]


def join_clients(x: Any, y: Any, client: Any, options: DataOptions) -> tuple[Any, Any, Any, DataOptions]:
    """(x, y, client, options) with one entry per row; x and y may be {client: rows} if `client` is None.

    Raises:
        BadInput: no client is named or each twice, or the arrays of a client do not fit each other or those of others.
    """
    if client is not None:
        if isinstance(y, Mapping):
            raise BadInput("client: x or y is {client: rows}, which names the clients; leave client out")
        return x, y, client, options
    if not isinstance(y, Mapping) or not (x is None or isinstance(x, Mapping)):
        raise BadInput("client: is missing; give the client of each row, or x and y as {client: rows}")
    if not y:
        raise BadInput("y: {} has no client; give {client: rows}")
    counts = {name: _count(rows, "y", name) for name, rows in y.items()}
    owners = [name for name, count in counts.items() for _ in range(count)]
    changes: dict[str, Any] = {
        name: _join(value, name, counts)
        for name in BY_ROW
        if isinstance(value := getattr(options, name), Mapping) and value.keys() == counts.keys()
    }
    joined_x = None if x is None else _join_inputs(x, counts) or _join(x, "x", counts)
    return joined_x, _join(y, "y", counts), owners, replace(options, **changes)


def _join_inputs(x: Rows, counts: Mapping[Hashable, int]) -> dict[str, np.ndarray]:
    """The inputs of the rows of all clients, where each has {name: rows}; empty where none has."""
    if not any(isinstance(rows, Mapping) for rows in x.values()):
        return {}
    first = next(iter(x.values()))
    other = [client for client, rows in x.items() if not isinstance(rows, Mapping) or rows.keys() != first.keys()]
    if other:
        raise BadInput(f"x: client {other[0]!r} has other inputs than the first client; give all the same names")
    return {name: _join({c: rows[name] for c, rows in x.items()}, f"x[{name!r}]", counts) for name in first}


def _count(rows: Any, option: str, client: Hashable) -> int:
    """The number of rows of a client, at least one."""
    if not hasattr(rows, "__len__") or isinstance(rows, str):
        raise BadInput(f"{option}: client {client!r} has {format_value(rows)}; give its rows, as a list or an array")
    if not len(rows):
        raise BadInput(f"{option}: client {client!r} has no rows; leave it out")
    return len(rows)


def _join(rows_of: Rows, option: str, counts: Mapping[Hashable, int]) -> np.ndarray:
    """The rows of all clients, in the order of `counts`."""
    unpaired = [name for name in [*counts, *rows_of] if name not in rows_of or name not in counts]
    if unpaired:
        owner, other = (option, "y") if unpaired[0] in rows_of else ("y", option)
        raise BadInput(f"{other}: has no client {unpaired[0]!r}, but {owner} has; give both the same clients")
    parts = {name: _as_array(rows_of[name], option, name) for name in counts}
    _check_parts(parts, option, counts)
    try:
        return concatenate([*parts.values()])
    except TypeError:  # times of several types
        return np.concatenate([part.astype(object) for part in parts.values()])


def _as_array(rows: Any, option: str, client: Hashable) -> np.ndarray:
    advice = f"look at client {client!r}; give each row the same number of values"
    if option in ("x", "y"):
        return as_array(rows, option, advice)
    return as_plain(rows, option, f"the rows have different lengths; {advice}")  # times may be dates


def _check_parts(parts: Mapping[Hashable, np.ndarray], option: str, counts: Mapping[Hashable, int]) -> None:
    """Each client has its number of rows, and all have rows of one shape; bytes are not mixed with other numbers."""
    first, example = next(iter(parts.items()))
    for name, part in parts.items():
        if _count(part, option, name) != counts[name]:
            raise BadInput(
                f"{option}: client {name!r} has {format_count(len(part), 'row')}, but y has "
                f"{counts[name]}; give one for each"
            )
        if part.shape[1:] != example.shape[1:] or (part.dtype == np.uint8) != (example.dtype == np.uint8):
            pair = ((first, example), (name, part))
            words = [f"client {one!r} has {rows.dtype} {[*rows.shape[1:]]}" for one, rows in pair]
            raise BadInput(f"{option}: {' and '.join(words)} in a row; give all clients rows of one shape and type")
