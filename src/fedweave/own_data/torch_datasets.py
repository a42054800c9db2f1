"""Data sets of PyTorch, one of each client: their rows as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, describe_error, format_value
from fedweave.own_data import arrays, image_files
from fedweave.own_data.foreign_folders import ForeignRows, join_parts
from fedweave.own_data.splits import PARTS, part_name

READ_TWICE = 16  # rows, to find random transforms; those that change few rows may be missed


def read(datasets: Any, x: Any = 0, y: Any = 1) -> ForeignRows:
    """The rows of {client: data set}, or of {client: {part: data set}}, where the data sets are the split.

    Args:
        datasets: a list has no names of clients.
        x, y: the position, or the key, of the input and the label in a row.
    """
    named = _name_clients(datasets)
    given = {client: tuple(value) if isinstance(value, Mapping) else ("",) for client, value in named.items()}
    parts = next(iter(given.values()), ())
    if other := next((client for client, own in given.items() if {*own} != {*parts}), None):
        raise BadInput(f"datasets: {next(iter(given))!r} has {_show(parts)}, and {other!r} {_show(given[other])}")
    if unknown := [part for part in parts if part and part_name(part) not in PARTS]:
        raise BadInput(f"datasets: {unknown[0]!r} is no part; choices: {', '.join(PARTS)}")
    if len({*map(part_name, parts)}) < len(parts):
        raise BadInput(f"datasets: of {', '.join(parts)} two are the same part; give each part one data set")
    if any(parts) and "test" not in map(part_name, parts):
        raise BadInput(
            f"datasets: {next(iter(given))!r} has {_show(parts)}, and no test; give it, or one data set in place of "
            "parts, which is split here"
        )
    if not parts:
        raise BadInput("datasets: has no data set; give one of each client, as {'Ann': dataset}")
    rows = {part_name(part): [*_read_part(named, part, x, y)] for part in parts}
    return join_parts(rows, "datasets")


def _name_clients(datasets: Any) -> dict[str, Any]:
    """Name of the client -> its data set, or its data sets by part."""
    if not isinstance(datasets, Mapping | list | tuple):
        raise BadInput(f"datasets: {format_value(datasets)} is not a list or a mapping of one data set of each client")
    return arrays.name_clients(datasets, "datasets")


def _show(parts: Sequence[str]) -> str:
    return f"the parts {', '.join(parts)}" if any(parts) else "one data set"


def _read_part(named: Mapping[str, Any], part: str, x: Any, y: Any) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """(client, inputs, labels) of a part."""
    for client, value in named.items():
        dataset, title = (value[part], f"{part} of {client!r}") if part else (value, f"{client!r}")
        yield client, *_read_rows(dataset, f"datasets: {title}", x, y)


def _read_rows(dataset: Any, title: str, x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    """The inputs and the labels of a data set."""
    if hasattr(dataset, "batch_sampler"):
        raise BadInput(f"{title} is a DataLoader; give its data set, as a Subset where its sampler chooses rows")
    if isinstance(dataset, list | tuple) and all(hasattr(part, "shape") for part in dataset):
        raise BadInput(f"{title} is {len(dataset)} arrays; give TensorDataset(x, y), or arrays with from_arrays")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(f"{title} is {type(dataset).__name__}; give a data set with a length and rows by number")

    def entries(i: int) -> tuple[Any, Any]:
        try:
            row = dataset[i]
            return _as_row(row[x]), _as_label(row[y])
        except Exception as error:  # the user's code can raise anything
            names = f"x={x!r} and y={y!r} say where a row has its input and its label"
            raise BadInput(f"{title}: row {i} cannot be read ({describe_error(error)}); {names}") from error

    rows = [entries(i) for i in range(len(dataset))]
    if any(_differ(rows[i][0], entries(i)[0]) for i in range(min(READ_TWICE, len(rows)))):
        raise BadInput(
            f"{title} draws its rows anew at each reading; give it without random transforms "
            "(`augment` of the training has some)"
        )
    inputs, labels = ([row[j] for row in rows] for j in (0, 1))
    return inputs, labels


def _differ(first: Any, second: Any) -> bool:
    """Whether two readings of an input differ. Missing numbers are equal."""
    is_number = isinstance(first, np.ndarray) and first.dtype.kind == "f"
    return not np.array_equal(first, second, equal_nan=is_number)


def _as_row(value: Any) -> Any:
    """An input as an array, or a text; an image of PIL is grey or of three colours, with its channels first."""
    if isinstance(value, str):
        return value
    if not hasattr(value, "getbands"):
        return np.array(exported_model.as_plain(value))  # a copy, as the data set may use one buffer for all rows
    if value.mode in image_files.DEEP_MODES:  # numbers, which bytes would cut off
        return np.asarray(value)[None]
    return image_files.load([value], Path(), None)[0]


def _as_label(value: Any) -> Any:
    """A label as a plain value."""
    label = exported_model.as_plain(value)
    return label.item() if label.size == 1 else label
