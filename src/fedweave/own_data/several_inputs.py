"""Arrays of several inputs of a row, such as an image and a vector, as vectors that a model takes apart again."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.errors import BadInput, format_value, relocate
from fedweave.exported_model import divide_bytes
from fedweave.own_data.features import as_features, find_pixels

Inputs = Mapping[Any, Any]


def find_inputs(x: Any, y: Any) -> Inputs:
    """Name or number -> array, where `x` is {name: array}, or a tuple of arrays with a row for each of `y`; else empty.

    Names are sorted, so that their order does not matter.

    Raises:
        BadInput: a name is no text, or there is only one input.
    """
    if isinstance(x, tuple):
        count = len(y) if hasattr(y, "__len__") else -1
        are_arrays = all(len(getattr(part, "shape", ())) > 1 and len(part) == count for part in x)
        return dict(enumerate(x)) if len(x) > 1 and are_arrays else {}
    if not isinstance(x, Mapping):
        return {}
    if wrong := [name for name in x if not isinstance(name, str)]:
        raise BadInput(f"x: {format_value(wrong[0])} is no name of an input; give {{name: array}}, such as image=...")
    if len(x) < 2:
        raise BadInput(f"x: has {len(x)} inputs; give the array alone, or two inputs or more")
    return dict(sorted(x.items()))


def read_inputs(inputs: Inputs, name: str, scaling: Any) -> tuple[Inputs, tuple[str, ...]]:
    """The inputs as `as_features` gives each alone, and warnings.

    Raises:
        BadInput: as `as_features`, inputs with other numbers of rows, or a scaling of images.
    """
    if scaling == "unit":
        raise BadInput("normalize: 'unit' is of images alone, and x has several inputs; leave it out")
    stored: dict[Any, np.ndarray] = {}
    notes: tuple[str, ...] = ()
    for key, part in inputs.items():
        with relocate({"x": f"x[{key!r}]"}):
            stored[key], lines = as_features(part, name, scaling != "none")
        notes += lines
    if len({*map(len, stored.values())}) > 1:
        counts = ", ".join(f"{key!r} has {len(part)}" for key, part in stored.items())
        raise BadInput(f"x: its inputs have different numbers of rows: {counts}; give each the same rows")
    return stored, notes


def as_vectors(stored: Inputs) -> np.ndarray:
    """All inputs as vectors [M, F], one after the other; bytes are divided by 255."""
    parts = [divide_bytes(part) if part.dtype == np.uint8 else part for part in stored.values()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def describe_inputs(stored: Inputs, train: Sequence[np.ndarray]) -> tuple[dict[str, Any], ...]:
    """Name or number, shape and scale of each input, as `exported_model.join_inputs` reads them.

    Args:
        train: training rows of each client, see `find_pixels`.
    """
    return tuple(
        {"input": key, "shape": [*part.shape[1:]], "pixels": find_pixels(part, train)} for key, part in stored.items()
    )
