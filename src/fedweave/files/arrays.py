"""Numpy arrays from files that others wrote. What a file says about an array is checked before numpy uses it.

A reader of this module allocates at most the size of the file, or the limit that its caller gives.
"""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

MAX_DIMENSIONS = 8  # more than any array of this project has
MAX_BYTES = 4 << 30  # of all arrays of one file
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Layout(NamedTuple):
    """Element type, shape and memory order of an array; `length` is its size in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def length(self) -> int:
        """Bytes of all elements, as a Python integer, which cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def build_array(raw: bytes | bytearray, layout: Layout) -> np.ndarray:
    """The array that `raw` holds, without a copy, in the byte order of the file; read-only if `raw` is.

    Raises:
        ValueError: `raw` is shorter or longer than the shape says, or a boolean is neither 0 nor 1.
    """
    if len(raw) != layout.length:
        expected = f"an array {list(layout.shape)} of {layout.dtype}"
        raise ValueError(f"{len(raw)} bytes for {expected}, which takes {layout.length}")
    if not layout.length:
        return np.zeros(layout.shape, layout.dtype)
    if layout.dtype.kind == "b" and np.frombuffer(raw, np.uint8).max() > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    flat = np.frombuffer(raw, layout.dtype)
    if layout.dtype.kind == "U" and flat.view(f"{layout.dtype.byteorder}u4").max() > 0x10FFFF:
        raise ValueError("a character is outside Unicode")
    return flat.reshape(layout.shape, order="F" if layout.fortran else "C")


def read_header(file: IO[bytes]) -> Layout:
    """The layout of a .npy file; `file` is then at the first element.

    Raises:
        ValueError: it is no such header, or the elements are not plain booleans, numbers or texts.
    """
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"a .npy file of version {version}")
    try:
        shape, fortran, dtype = HEADERS[version](file)
    except (SyntaxError, TokenError, RecursionError, MemoryError) as error:  # of numpy's parsers
        raise ValueError(f"its header describes no array ({type(error).__name__})") from error
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError(f"elements of type {dtype.str!r:.40} are refused")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"{shape!r:.80} is not a shape")
    return Layout(dtype, shape, fortran)


def map_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, mapped from disk, read-only.

    Raises:
        ValueError, OSError: the file is damaged, or its size is not that of the array.
    """
    with path.open("rb") as file:
        layout = read_header(file)
        offset, size = file.tell(), path.stat().st_size
    if size - offset != layout.length:
        raise ValueError(f"{size - offset} bytes for an array {list(layout.shape)} of {layout.dtype}")
    if not layout.length:
        return np.zeros(layout.shape, layout.dtype)
    return np.memmap(path, layout.dtype, "r", offset, layout.shape, "F" if layout.fortran else "C")


def read_npz(path: Path, names: Collection[str] | None = None, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """The arrays `names` of a .npz file, by default all; together they have at most `max_bytes` bytes.

    Raises:
        KeyError: there is no such array.
        ValueError, OSError, BadZipFile, zlib.error: the file is damaged or larger.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        stored = {member.filename.removesuffix(".npy"): member for member in members}
        if len(stored) < len(members):
            raise ValueError("two arrays have one name")
        selected = {name: stored[name] for name in (stored if names is None else names)}
        if sum(member.file_size for member in selected.values()) > max_bytes:
            raise ValueError(f"its arrays take more than {max_bytes} bytes")
        return {name: _read_member(archive, member) for name, member in selected.items()}


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        layout = read_header(file)
        if layout.length > member.file_size:
            raise ValueError(f"{member.filename} ends within its array")
        return build_array(bytearray(file.read()), layout)
