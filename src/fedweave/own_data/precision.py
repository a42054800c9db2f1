"""In which type numbers are stored: models see float32, which has few digits where values are far from 0."""

from typing import Any

import numpy as np

from fedweave.errors import BadInput

MOST_ERROR = 1e-5  # of the spread of a column: a larger change by rounding could be seen in a score
ROUNDING = {2: 2.0**-11, 4: 2.0**-24, 8: 2.0**-53}  # bytes of a float -> its largest relative error


def as_stored(values: np.ndarray) -> np.ndarray:
    """Float64 numbers [M, F], [M, T, C] or [M, C, H, W] as float32, or unchanged where that would round too much.

    Those in float64 are centred and scaled in float64, and become float32 after that.
    """
    largest, spread = _extent(values)
    return values if (largest * ROUNDING[4] > MOST_ERROR * spread)[spread > 0].any() else values.astype(np.float32)


def refuse_lost(values: np.ndarray, dtype: np.dtype[Any], name: str) -> None:
    """Refuse numbers whose differences were lost before they came here.

    Args:
        values: float64, axes as in `as_stored`.
        dtype: the type in which they came.
    """
    if i := find_lost(values, dtype):
        largest, spread = (part[i - 1] for part in _extent(values))
        raise BadInput(
            f"{name}: numbers up to {largest:.6g} with a spread of {spread:.2g} are below the resolution of "
            f"{dtype if dtype.kind == 'f' else 'float64'}; subtract a number such as their minimum before they get "
            "this type"
        )


def find_lost(values: np.ndarray, dtype: np.dtype[Any]) -> int:
    """1 + the first column whose spread is below the resolution of the type `dtype`; 0 if there is none."""
    largest, spread = _extent(values)
    size = min(dtype.itemsize, 8) if dtype.kind == "f" else 8
    is_lost = (spread > 0) & (spread < 2 * ROUNDING[size] * largest)
    return int(is_lost.argmax()) + 1 if is_lost.any() else 0


def _extent(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest size and the standard deviation of the finite values of each column or channel."""
    axes = {2: (0,), 3: (0, 1), 4: (0, 2, 3)}[values.ndim]
    finite = np.isfinite(values)
    values = values if finite.all() else np.where(finite, values, np.nan)
    with np.errstate(invalid="ignore"):
        low, high = (np.nan_to_num(end.reduce(values, axes, keepdims=True)) for end in (np.fmin, np.fmax))
    count = np.maximum(finite.sum(axes), 1)
    centred = np.nan_to_num(values - (low + high) / 2)
    low, high = low.ravel(), high.ravel()
    mean = centred.sum(axes) / count
    spread = np.sqrt(np.maximum(np.square(centred).sum(axes) / count - np.square(mean), 0))
    return np.maximum(np.abs(low), np.abs(high)), np.where(high > low, spread, 0.0)
