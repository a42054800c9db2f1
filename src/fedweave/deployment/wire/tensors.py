"""Trees as flat dictionaries of named tensors, as messages carry them, and their check against the specification."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from fedweave.errors import BadInput, format_value
from fedweave.tensors.trees import Tree

SEPARATOR = "|"  # between keys of nested dictionaries; names of model parameters have dots and slashes
EMPTY = torch.empty(0, dtype=torch.uint8)  # stands for a dictionary without entries


class UndeclaredTensor(BadInput):
    """Tensors that are not what the specification declares."""


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """{"model": {"0.weight": w}} -> {"model|0.weight": w}; a bare tensor has the empty name."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    if not isinstance(tree, dict):
        raise BadInput(
            "message", f"{prefix or 'the tree'} is a {type(tree).__name__}; dictionaries of tensors can be sent"
        )
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        if SEPARATOR in str(name):
            raise BadInput("message", f"the name {name!r} has a {SEPARATOR}; rename it")
        full_name = f"{prefix}{SEPARATOR}{name}" if prefix else str(name)
        if isinstance(value, dict) and not value:
            flat[full_name + SEPARATOR] = EMPTY
        else:
            flat.update(flatten(value, full_name))
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """The inverse of `flatten`."""
    if [*flat] == [""]:
        return flat[""]
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(SEPARATOR)
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        if leaf:
            node[leaf] = value
    return tree


def form_of(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """Name -> [shape, type] of every tensor of a flat tree."""
    return {name: [[*value.shape], str(value.dtype).removeprefix("torch.")] for name, value in flat.items()}


def nbytes(form: Mapping[str, Any]) -> int:
    """Bytes of the tensors of a form."""
    return sum(math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in form.values())


def check(form: Mapping[str, Any], declared: Mapping[str, Any], who: str) -> None:
    """Refuse tensors that are missing, not declared, or of another shape or type; `who` begins the error message."""
    for name in {**form, **declared}:
        if name not in declared:
            raise UndeclaredTensor(who, f"the tensor {name!r} is not declared in spec.json; it is not sent")
        if name not in form:
            raise UndeclaredTensor(who, f"the tensor {name!r} is missing")
        if [*map(_as_list, form[name])] != [*map(_as_list, declared[name])]:
            raise UndeclaredTensor(who, f"{name!r} has shape and type {form[name]}, but {declared[name]} is declared")


def _as_list(value: Any) -> Any:
    return [*value] if isinstance(value, list | tuple) else value


def decode(data: bytes, shape: Sequence[int], dtype: str, name: str) -> np.ndarray:
    """The array of a .npy file in memory.

    Args:
        shape, dtype: the declared ones, such as [2, 3] and "float32".
        name: of the tensor, for error messages.

    Raises:
        UndeclaredTensor: `data` is not a .npy file, ends too early, or is of another shape or type.
    """
    declared, file = (tuple(shape), np.dtype(dtype)), io.BytesIO(data)
    try:
        npy.read_magic(file)
        actual_shape, _, actual_dtype = npy.read_array_header_1_0(file)
        # Before the array is read: a header of a terabyte would take a terabyte.
        if (actual_shape, actual_dtype) == declared:
            return npy.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # a header of another author can raise nearly anything
        raise UndeclaredTensor(
            "upload", f"{format_value(name)} cannot be read ({type(error).__name__}: {error})"
        ) from error
    actual = f"{format_value([*actual_shape])} {actual_dtype.str}"
    raise UndeclaredTensor(
        "upload", f"{format_value(name)} has shape and type {actual}, but {[*shape]} {dtype} is declared"
    )
