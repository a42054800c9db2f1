"""Arrays of users as those of NumPy, and checks of what they hold."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, first_line, format_count

KINDS = {"c": "complex numbers", "M": "dates", "m": "durations"}  # kinds of arrays that cannot be features or targets
COMPLEX_ADVICE = "give the real and the imaginary part as two columns"
TIME_ADVICE = "give numbers, such as days or hours since the first"
# The square of a number above this one is more than float32 can hold.
LARGEST = 1.8e19


@contextmanager
def convert_input_errors() -> Iterator[None]:
    """Turn an InputError of the exported code into BadInput."""
    try:
        yield
    except exported_model.InputError as error:
        raise BadInput(str(error)) from error


def as_array(values: Any, name: str, advice: str) -> np.ndarray:
    """An array of `values`.

    Raises:
        BadInput: its rows differ in length, or it holds complex numbers, dates or durations.
    """
    array = as_plain(values, name, f"the rows have different lengths; {advice}")
    check_kind(array, name)
    return array


def as_plain(values: Any, name: str, ragged: str = "the rows have different lengths") -> np.ndarray:
    """An array of any values, see `exported_model.as_plain`.

    Raises:
        BadInput: the rows differ in length, or cannot be read.
    """
    torch_data = sys.modules.get("torch.utils.data")  # slow to import, and loaded where anyone has such a data set
    if torch_data and isinstance(values, torch_data.Dataset | torch_data.DataLoader):
        raise BadInput(
            f"{name}: is a {type(values).__name__} of PyTorch; give its rows as arrays, for a data set by "
            "x, y = next(iter(DataLoader(dataset, len(dataset))))"
        )
    try:
        return exported_model.as_plain(values)
    except ValueError as error:
        raise BadInput(f"{name}: {ragged}") from error
    except (RuntimeError, TypeError) as error:  # PyTorch refuses lists of tensors with a gradient, and some types
        raise BadInput(f"{name}: cannot be read as an array ({first_line(error)})") from error


def check_kind(values: np.ndarray, name: str) -> None:
    """Refuse values that a conversion to float32 would change without an error."""
    kind = values.dtype.kind
    if kind == "O" and any(isinstance(one, complex) for one in values.ravel()[:1000].tolist()):
        kind = "c"
    if kind in KINDS:
        raise BadInput(f"{name}: holds {KINDS[kind]}; {COMPLEX_ADVICE if kind == 'c' else TIME_ADVICE}")


def is_missing(values: np.ndarray) -> np.ndarray:
    """Whether each value is missing [M]: None, NaN and pandas' own marks."""
    import pandas as pd

    return np.asarray(pd.isna(values.astype(object)))


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays, one behind the other; numbers beside texts stay numbers, so that 1 does not become "1"."""
    if len({part.dtype.kind in "OUS" for part in parts if len(part)}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def check_missing(values: Any, name: str) -> None:
    """Refuse names of rows of which one is missing, as its text "nan" would be taken for a name.

    Args:
        values: one per row, as they were given.
    """
    missing = is_missing(as_plain(values, name))
    if missing.any():
        raise BadInput(
            f"{name}: is missing in {format_count(int(missing.sum()), 'row')}, first in row "
            f"{int(missing.argmax())}; drop them first"
        )


def check_size(values: np.ndarray, name: str) -> None:
    """Refuse finite numbers whose square is more than float32 can hold; infinite numbers are checked elsewhere."""
    if values.dtype.kind != "f" or not values.size:
        return
    large = np.isfinite(values) & (np.abs(values) > LARGEST)
    if large.any():
        index = np.argwhere(large)[0]
        raise BadInput(
            f"{name}: {values[tuple(index)]:.6g} in row {int(index[0])} is too large to train with (at most "
            f"{LARGEST:g}, whose square float32 holds); divide the values by a power of ten, or drop that row"
        )
