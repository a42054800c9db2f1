"""Rows that have several inputs, such as an image and a vector, as one vector: one input after the other."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import InputError
from .pixels import divide_bytes, scale_pixels
from .values import as_plain


def has_inputs(columns: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether `columns` of a data set describe several inputs: "input", "shape" and "pixels" of each, in their order.

    "input" is a name, or a number where they have an order and no names.
    """
    return bool(columns) and "input" in (columns or ())[0]


def describe_inputs(columns: Sequence[Mapping[str, Any]]) -> str:
    """What rows must look like, such as "{'image': [M, 1, 8, 8], 'table': [M, 5]}"."""
    shapes = {one["input"]: f"[M, {', '.join(map(str, one['shape']))}]" for one in columns}
    if isinstance(columns[0]["input"], int):
        return f"({', '.join(shapes.values())})"
    return "{" + ", ".join(f"{name!r}: {shape}" for name, shape in shapes.items()) + "}"


def join_inputs(rows: Any, columns: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Vectors [M, F] of rows whose inputs are {name: values}, or are in the order of `columns`.

    Raises:
        InputError: an input is missing, unknown or of another shape or scale, or their numbers of rows differ.
    """
    if isinstance(rows, list | tuple) and len(rows) == len(columns):
        rows = {one["input"]: part for one, part in zip(columns, rows, strict=True)}
    by_name = {str(name): part for name, part in rows.items()} if isinstance(rows, Mapping) else {}
    if by_name.keys() != {str(one["input"]) for one in columns}:
        raise InputError(f"x: give all inputs of the training: {describe_inputs(columns)}")
    parts = [_as_vectors(by_name[str(one["input"])], one) for one in columns]
    if len({*map(len, parts)}) > 1:
        raise InputError(f"x: its inputs have {', '.join(str(len(part)) for part in parts)} rows; give each the same")
    return np.concatenate(parts, axis=1)


def _as_vectors(values: Any, column: Mapping[str, Any]) -> np.ndarray:
    """One input [M, ...] as vectors; images on the scale of the training's."""
    place, shape = f"x[{column['input']!r}]", list(column["shape"])
    try:
        array = as_plain(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{place}: cannot be read as rows of numbers ({error})") from error
    if array.dtype.kind not in "biuf" or [*array.shape[1:]] != shape:
        raise InputError(f"{place}: {array.dtype} {[*array.shape]}; give numbers [M, {', '.join(map(str, shape))}]")
    if column["pixels"]:
        array = scale_pixels(array, column["pixels"])
        array = divide_bytes(array) if array.dtype == np.uint8 else array
    return array.reshape(len(array), math.prod(shape)).astype(np.float64)
