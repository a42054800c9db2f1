"""Conversion of arrays of users into the form that data sets have, with checks.

Every function raises `BadInput`, one line that names the argument and how to fix it.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np

from fedweave import exported_model
from fedweave.data import Dataset, Partition
from fedweave.data.base import symmetrise_edges
from fedweave.data.partitions.splits import PARTS
from fedweave.data.raw_rows import digest_rows
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data.array_checks import as_plain, check_missing, convert_input_errors, is_missing

LABELS = (str, bool, int, float, np.generic, Decimal, date)  # types of labels


def as_column(values: Any, name: str, count: int) -> np.ndarray:
    """One value per row [M]."""
    column = as_plain(values, name, "the entries have different lengths; give one value for each row")
    if column.ndim == 2 and column.shape == (count, 1):
        column = column[:, 0]  # as Keras has labels
    if column.ndim > 1 and len(column) == count and column.size > count:
        several = "; several labels are for forecasts, with window and horizon" if name == "y" else ""
        is_flag = name == "y" and column.ndim == 2 and column.dtype.kind in "biuf" and np.isin(column, (0, 1)).all()
        if is_flag and (column.sum(1) == 1).all():
            raise BadInput(f"y: shape {list(column.shape)} has a 1 for the class of each row; give y.argmax(1)")
        values = f"shape {list(column.shape)} has {column.size // count} values for each row"
        raise BadInput(f"{name}: {values}; give one, such as {name}[:, 0]{several}")
    if column.shape != (count,):
        raise BadInput(
            f"{name}: shape {list(column.shape)}, but x has {format_count(count, 'row')}; give one value for each"
        )
    return column


def as_recordings(values: Any, count: int) -> np.ndarray:
    """The recording of each row [M].

    Raises:
        BadInput: it is missing for a row, so that rows of one recording could get into two parts.
    """
    column = as_column(values, "recording", count)
    check_missing(values, "recording")
    return column


def as_times(values: Any, count: int) -> np.ndarray:
    """A time per row [M], see `exported_model.as_times`.

    Raises:
        BadInput: a time is missing, a text cannot be read as a time or can be read in two ways, or only some of the
            times have a time zone.
    """
    column = as_column(values, "time", count)
    with convert_input_errors():
        return exported_model.as_times(column)


def as_classes(column: np.ndarray, least: int = 2) -> tuple[np.ndarray, tuple[str, ...], str]:
    """Class numbers [M], the sorted names of the classes, and the type of the labels, see `exported_model.as_labels`.

    Args:
        column: labels [M], none of which is missing.
        least: classes that there must be.
    """
    if column.dtype == object:
        column = _as_one_type(column)
    kind = exported_model.KINDS.get(column.dtype.kind, "")
    if kind == "float":
        if not np.isfinite(column).all() or (column != column.round()).any():
            raise BadInput("y: has numbers that are not classes; use target='numbers', or give whole numbers or names")
        _check_exact(column, "y")
        column = column.astype(np.int64)
    names, labels = np.unique(column, return_inverse=True)
    if len(names) < least:
        raise BadInput(f"y: only one class, {str(names[0])!r}; there is nothing to learn")
    return labels.astype(np.int64), tuple(map(str, names.tolist())), kind


def _as_one_type(column: np.ndarray) -> np.ndarray:
    """Labels of Python as an array of numbers or of texts."""
    kinds = {type(label) for label in column.tolist()}
    if other := next((kind for kind in kinds if not issubclass(kind, LABELS) or issubclass(kind, Enum)), None):
        raise BadInput(f"y: has labels of the type {other.__name__}; give texts or numbers, such as str(label) of each")
    if len(kinds) == 1 or kinds <= {int, float}:
        return column if kinds == {int} else np.array(column.tolist())
    names = np.array([exported_model.name_of(label) for label in column.tolist()])
    if len(np.unique(names)) < len({(type(label), label) for label in column.tolist()}):
        raise BadInput("y: two labels of several types have the same name, such as 1 and '1'; give them one type")
    return names


def _check_exact(numbers: np.ndarray, name: str) -> None:
    """Refuse names as fractions above 2^53, or 2^24 of float32: several whole numbers have become one."""
    if numbers.dtype.kind != "f":
        return
    bits = min(np.finfo(numbers.dtype).nmant, 52) + 1
    if (large := np.abs(numbers) > 2.0**bits).any():
        kind = numbers.dtype if bits < 53 else "float"
        raise BadInput(
            f"{name}: {numbers[large][0]:.17g} is a {kind} above 2^{bits}, which has lost its last digits; "
            "give names as texts or whole numbers"
        )


def _entries(values: Any) -> Any:
    """One entry per row as a list of Python objects: dates as such, and not their nanoseconds."""
    if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if getattr(getattr(values, "dtype", None), "kind", "") in "mM" and isinstance(values, np.ndarray):
        import pandas as pd

        return pd.Series(values).tolist()
    return values.tolist() if hasattr(values, "tolist") else [*values] if isinstance(values, Iterable) else values


def as_clients(client: Any, count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Position of each row's client [M], and the clients' names in their own order."""
    import pandas as pd

    ids = _entries(client)
    if not isinstance(ids, list) or not all(isinstance(one, Hashable) for one in ids):
        raise BadInput(f"client: {format_value(client)} is not a list of names; give the name of a client for each row")
    if len(ids) != count:
        given, rows = format_count(len(ids), "id"), format_count(count, "row")
        raise BadInput(f"client: {given}, but x has {rows}; give one for each")
    ids = [exported_model.as_text(one) for one in ids]
    distinct = list(dict.fromkeys(ids))
    if pd.Series(distinct, dtype=object).isna().any():
        raise BadInput("client: is missing in some rows; drop them first")
    if isinstance(client, np.ndarray):
        _check_exact(client, "client")
    _check_exact(np.array([one for one in distinct if isinstance(one, float)]), "client")
    with suppress(TypeError):  # ids of several types keep the order in which they come
        distinct.sort()
    names = tuple(map(exported_model.name_of, distinct))
    if len({*names}) < len(names) or {bool, int} <= {*map(type, ids)}:  # Python takes True for 1
        raise BadInput("client: two ids have the same name, such as 1 and '1'; give them one type")
    position = {one: i for i, one in enumerate(distinct)}
    return np.array([position[one] for one in ids], dtype=np.int64), names


def as_groups(group: Any, owner: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Number of each client's group [N] and the groups' names."""
    if group is None:
        return None, ()
    _check_complete(group, "group", "name one for each client")
    group_of = _names_by_client(group, "group", owner, names)
    group_names = tuple(sorted({*group_of}))
    return np.array([group_names.index(name) for name in group_of], dtype=np.int64), group_names


def as_units(unit: Any, owner: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    """Name of each client's unit, such as a person; empty without units."""
    if unit is None:
        return ()
    _check_complete(unit, "unit", "give every client a unit, its own one if it shares none")
    return tuple(_names_by_client(unit, "unit", owner, names))


def _check_complete(values: Any, option: str, remedy: str) -> None:
    """Refuse a missing name: its text "nan" would be taken for a name."""
    entries = as_plain([*values.values()] if isinstance(values, Mapping) else values, option).astype(object)
    missing = int((is_missing(entries) | (entries == "")).sum())
    if missing:
        raise BadInput(f"{option}: {missing} of {entries.size} entries are missing; {remedy}")


def _names_by_client(values: Any, option: str, owner: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """One name for each client [N], from a mapping or from one value a row."""
    if isinstance(values, Mapping):
        name_of = {exported_model.name_of(key): exported_model.name_of(value) for key, value in values.items()}
    else:
        column = _entries(as_column(values, option, len(owner)))
        pairs = {(names[i], exported_model.name_of(value)) for i, value in zip(owner, column, strict=True)}
        name_of = dict(pairs)
        if len(pairs) > len(name_of):
            client = min(name for name, value in pairs if name_of[name] != value)
            two = " and ".join(repr(value) for value in sorted(value for name, value in pairs if name == client)[:2])
            raise BadInput(
                f"{option}: client {client!r} is in two {option}s, {two}; give all rows of a client the same"
            )
    missing = [name for name in names if name not in name_of]
    if missing:
        raise BadInput(f"{option}: client {missing[0]!r} has none; name one for each client")
    return [name_of[name] for name in names]


def as_relation(pairs: list[tuple[str, str]], names: tuple[str, ...]) -> np.ndarray:
    """Edges [2, R] of a given client graph in both directions, from pairs of names."""
    position = {name: i for i, name in enumerate(names)}
    if not pairs:
        raise BadInput("relation: has no pair; for example [('a', 'b')], or leave it out")
    if all(first == second for first, second in pairs):
        raise BadInput("relation: no pair has two clients; for example [('a', 'b')], or leave it out")
    return symmetrise_edges(np.array([[position[one] for one in pair] for pair in pairs]).T, len(names))


def name_clients(given: Any, argument: str) -> dict[str, Any]:
    """Name of the client -> what is given of it, in a mapping or in a list, which has no names.

    Args:
        argument: its name in messages.
    """
    of_client = dict(given) if isinstance(given, Mapping) else {f"client {i}": one for i, one in enumerate(given)}
    named = {exported_model.name_of(client): one for client, one in of_client.items()}
    if len(named) < len(of_client):
        raise BadInput(f"{argument}: two clients have the same name, such as 1 and '1'; give them one type")
    return named


def partition_block(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """The partition block of a task with given rows: it has a hash in place of the rows."""
    rows = (client_rows for part in PARTS for client_rows in getattr(partition, part))
    relation = [] if partition.relation is None else [partition.relation]
    targets = dataset.labels if dataset.targets is None else dataset.targets
    units = [np.array(partition.units)] if partition.units else []
    raw = [] if dataset.raw is None else [digest_rows(dataset.raw)]
    content = digest([dataset.x, targets, *rows, *(partition.edges or ()), *relation, *units, *raw])
    return {"name": "given", "clients": partition.clients, "seed": 0, "content": content}


def digest(arrays: Iterable[np.ndarray]) -> str:
    """A hash of the types, shapes and values of arrays."""
    hasher = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        hasher.update(str((values.dtype, values.shape)).encode())
        hasher.update(values.data if values.size else b"")
    return hasher.hexdigest()[:16]
