"""The scale of images: that of the training images, whatever the type of the array.

Training images of whole numbers from 0 to 255 are divided by 255; others are taken as they are. The range of the
training images says what new ones must be, so that no image is predicted on another scale.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import InputError

WHITE = 255  # the largest value of a byte
FAR = 8  # so many times the largest value of training is another scale


def scale_pixels(x: np.ndarray, pixels: Mapping[str, Any] | None) -> np.ndarray:
    """Images [M, C, H, W] on the scale of the training images: float32, or uint8, which inputs have divided by 255.

    Args:
        x: numbers of any type.
        pixels: "divisor" (255 or 1), "low" and "high" of the training images; None where they are not known.

    Raises:
        InputError: values that are on another scale, or may be.
    """
    if pixels is None or not x.size:
        return x if x.dtype == np.uint8 else x.astype(np.float32)
    if x.dtype.kind not in "iu":
        x = x.astype(np.float32)
    if not np.isfinite(x).all():  # refused later, with the other rows of numbers
        return x.astype(np.float32)
    if pixels["divisor"] == WHITE:
        return _as_bytes(x)
    if x.dtype.kind in "iu" and pixels["low"] >= 0 and pixels["high"] <= 1:
        return _as_fractions(x)
    largest, known = float(np.abs(x.astype(np.float32)).max()), max(abs(pixels["low"]), abs(pixels["high"]))
    if largest > FAR * known:
        scale = f"training had images with values from {pixels['low']:g} to {pixels['high']:g}"
        raise InputError(f"x: has values up to {largest:g}, but {scale}; give images on that scale")
    return x.astype(np.float32)


def divide_bytes(x: np.ndarray) -> np.ndarray:
    """Bytes as float32 from 0 to 1."""
    return (np.arange(256) / WHITE).astype(np.float32)[x]


def refuse_files(x: np.ndarray, shape: Sequence[int]) -> None:
    """Refuse texts and objects in place of images of `shape` [C, H, W]: an exported model opens no files."""
    if x.dtype.kind not in "OUS" or len(shape) != 3:
        return
    channels, height, width = shape
    way = "give such arrays"
    if channels in (1, 3):
        mode, axes = ("L", "[None, None]") if channels == 1 else ("RGB", ".transpose(2, 0, 1)[None]")
        photo = "PIL.ImageOps.exif_transpose(PIL.Image.open(file))"
        way = f"read a file by np.asarray({photo}.convert('{mode}').resize(({width}, {height}))){axes}"
    raise InputError(f"x: holds texts or objects, but the model reads arrays [M, {channels}, {height}, {width}]; {way}")


def _as_bytes(x: np.ndarray) -> np.ndarray:
    """Images for a model of bytes."""
    low, high, scale = float(x.min()), float(x.max()), "training had images with values from 0 to 255"
    if low < 0 or high > WHITE:
        raise InputError(f"x: has values from {low:g} to {high:g}, but {scale}; give images on that scale")
    if x.dtype.kind in "iu":
        return x.astype(np.uint8)
    if 0 < high <= 1:
        raise InputError(
            f"x: is an array of fractions (floats) up to {high:g}, but {scale}; give images on that scale: "
            "255 * x if 1 is white, x.astype('uint8') if 255 is"
        )
    return (x.astype(np.float64) / WHITE).astype(np.float32)


def _as_fractions(x: np.ndarray) -> np.ndarray:
    """Images of whole numbers, which go to 255, for a model of fractions."""
    low, high, scale = int(x.min()), int(x.max()), "training had images with values from 0 to 1"
    if low < 0 or high > WHITE:
        raise InputError(f"x: has values from {low} to {high}, but {scale}; give images on that scale")
    if high == 1 and x.dtype != np.uint8:
        raise InputError(
            f"x: is an array of whole numbers up to 1, but {scale}; give x.astype('float32') if 1 is white, "
            "x.astype('uint8') if 255 is"
        )
    return x.astype(np.uint8)
