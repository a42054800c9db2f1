"""Features as arrays of numbers, and the scale of images: bytes are divided by 255, other numbers are as they are."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedweave.data import Dataset, Partition, check_finite
from fedweave.data.normalisation import to_float32
from fedweave.errors import BadInput
from fedweave.exported_model import WHITE, scale_pixels
from fedweave.own_data.array_checks import as_array, as_plain, check_size, convert_input_errors
from fedweave.own_data.data_warnings import find_marks
from fedweave.own_data.precision import as_stored, find_lost

MOST_CHANNELS = 4  # of images as files have them
LEAST_SIDE = 8  # of images that come as vectors or windows
DARK = 32  # whole numbers up to here are hardly the gray values of images from 0 to 255


def as_features(x: Any, name: str, scaled: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers as they are stored, and warnings: vectors [M, F], windows [M, T, C] or images [M, C, H, W].

    Bytes in the shape of images are uint8, which is divided by 255; other numbers are as `precision.as_stored` gives
    them.

    Args:
        scaled: whether training rows scale the numbers; else vectors and windows are no bytes.

    Raises:
        BadInput: another shape, values that are not finite, or that float32 cannot tell apart if nothing scales them.
    """
    plain = as_plain(x, "x")
    values, given = check_features(plain, name), plain.dtype
    if values.dtype == np.uint8:
        return values, ()
    if scaled and are_pixels(plain):
        shape = " x ".join(map(str, plain.shape[1:]))
        line = f"x: rows of {shape} whole numbers from 0 to 255 are taken as images, so they are divided by 255"
        return plain.astype(np.uint8), (f"{line}; normalize='none' leaves them as they are",)
    stored, notes = as_stored(values), find_marks(values, "x")
    if stored.dtype == np.float64 and not scaled:
        raise BadInput(
            "normalize: 'none' leaves numbers so far from 0 that float32, in which models see them, loses their "
            "differences; leave it out, or subtract a constant"
        )
    if i := find_lost(values, given):
        notes += (
            f"x: the values of column {i - 1} differ by no more than the resolution of {given}; if they should, "
            "subtract a number such as their minimum before they get this type",
        )
    return stored, notes


def check_features(x: Any, name: str) -> np.ndarray:
    """Finite numbers, float64 or of images uint8, of the shapes of `as_features`."""
    values = _numbers_of_objects(as_array(x, "x", "give each row the same number of values"))
    if hasattr(x, "toarray") or (values.ndim == 0 and hasattr(values.item(), "toarray")):
        raise BadInput("x: is a sparse matrix; give x.toarray()")
    if values.dtype.kind not in "biuf" or values.ndim not in (2, 3, 4) or not values.size:
        raise BadInput(
            f"x: shape {list(values.shape)}; give vectors [M, F], windows [M, T, C] or images [M, C, H, W] of numbers"
        )
    is_last = values.ndim == 4 and (
        values.shape[3] <= MOST_CHANNELS < min(values.shape[1:3])
        or values.shape[1] == values.shape[2] > values.shape[3] > 1
    )
    if is_last:
        raise BadInput(
            f"x: shape {list(values.shape)} has the channels of images last; give [M, C, H, W]: x.transpose(0, 3, 1, 2)"
        )
    check_size(values, "x")
    values = to_bytes(values)
    if values.dtype != np.uint8 or values.ndim != 4:
        values = values.astype(np.float64)
    check_finite(values, f"x of {name}", "drop these rows, or fill them in")
    return values


def _numbers_of_objects(values: np.ndarray) -> np.ndarray:
    """An array of numbers and truth values as objects, as a table of several types gives it, as float64."""
    are_numbers = values.dtype == object and all(isinstance(one, int | float | np.number) for one in values.flat)
    return values.astype(np.float64) if are_numbers and values.size else values


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether rows of a shape are images; vectors [F, 1, 1] and windows [C, 1, T] are none."""
    return len(shape) == 3 and min(shape[1:]) > 1


def are_pixels(x: np.ndarray) -> bool:
    """Whether vectors or windows have the type and the shape of images: bytes [H, W], or as many as a square has."""
    if x.dtype.kind not in "iu" or x.ndim not in (2, 3) or x.min() < 0 or not DARK < x.max() <= WHITE:
        return False
    if x.ndim == 3:
        return min(x.shape[1:]) >= LEAST_SIDE and (x.dtype == np.uint8 or x.shape[1] == x.shape[2])
    sides = (math.isqrt(x.shape[1]), math.isqrt(x.shape[1] // 3))
    return min(sides) >= LEAST_SIDE // 2 and x.shape[1] in (sides[0] ** 2, 3 * sides[1] ** 2) and sides[0] >= LEAST_SIDE


def to_bytes(x: np.ndarray) -> np.ndarray:
    """Images of whole numbers of any type as uint8 if all are from 0 to 255; other arrays as they are."""
    whole = is_image(x.shape[1:]) and x.dtype.kind in "iu"
    return x.astype(np.uint8) if whole and x.min() >= 0 and x.max() <= WHITE else x


def describe_pixels(dataset: Dataset, partition: Partition) -> dict[str, float] | None:
    """`find_pixels` of a data set; None where it is no table of rows."""
    return find_pixels(dataset.x, partition.train) if dataset.kind == "images" else None


def find_pixels(x: np.ndarray, train: Sequence[np.ndarray]) -> dict[str, float] | None:
    """How images become inputs: "divisor", 255 or 1, and "low" and "high" of the training rows; None for other rows.

    Args:
        x: all rows [M, ...], as they are stored.
    """
    if x.dtype == np.uint8:
        return {"divisor": WHITE, "low": 0, "high": WHITE}
    if not is_image(x.shape[1:]):
        return None
    parts = [x[rows] for rows in train if len(rows)]
    return {
        "divisor": 1,
        "low": min(float(part.min()) for part in parts),
        "high": max(float(part.max()) for part in parts),
    }


def state_scale(dataset: Dataset, partition: Partition) -> str:
    """`describe_pixels` as a sentence; empty for other rows."""
    about = describe_pixels(dataset, partition)
    if about is None:
        return ""
    if about["divisor"] == WHITE:
        return "Images have whole numbers from 0 to 255, which are divided by 255."
    return f"Images have numbers from {about['low']:g} to {about['high']:g} in training, which are not divided by 255."


def like_training(x: np.ndarray, old: Dataset, partition: Partition) -> np.ndarray:
    """Rows `x` of newcomers in the type of those of `old`, on the same scale.

    Raises:
        BadInput: images on another scale, or that may be, or fractions where those of training have whole numbers.
    """
    if x.shape[1:] != old.x.shape[1:] or not (is_image(x.shape[1:]) or old.x.dtype == np.uint8):
        return x.astype(old.x.dtype, copy=False) if old.x.dtype == np.float64 else to_float32(x)
    with convert_input_errors():
        scaled = scale_pixels(x, describe_pixels(old, partition))
    if old.x.dtype != np.uint8:
        return to_float32(scaled) if old.x.dtype == np.float32 else scaled.astype(np.float64)
    if (x != x.round()).any():
        raise BadInput("join: images have fractions, but training had whole numbers from 0 to 255; give x.round()")
    return x.astype(np.uint8)


def find_unscaled(x: np.ndarray, scaled: bool) -> tuple[str, ...]:
    """A line if images of training are likely to be on another scale than their type says.

    Args:
        scaled: whether the training rows scale the numbers, so that their range matters little.
    """
    if not is_image(x.shape[1:]) or scaled:
        return ()
    low, high = float(x.min()), float(x.max())
    if x.dtype == np.uint8 and 0 < high <= DARK:
        return (
            f"x: images of whole numbers are divided by 255, but the largest is {high:g}; if that is white, give "
            f"x / {high:g}",
        )
    if x.dtype != np.uint8 and low >= 0 and DARK < high <= WHITE:
        return (
            f"x: images have fractions (floats) from {low:g} to {high:g}, which are not divided by 255; "
            "give x.astype('uint8') if 255 is white",
        )
    return ()
