"""Numpy arrays from files that others wrote. What a file says about an array is checked before numpy uses it.

A reader of this module allocates at most the size of the file, or the limit that its caller gives.
"""

import ast
import math
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

MAGIC = b"\x93NUMPY"
MAX_DIMENSIONS = 8  # more than any array of this project has
MAX_ELEMENT_BYTES = 1 << 16  # a text can be long
MAX_HEADER_BYTES = 1 << 16
MAX_BYTES = 4 << 30  # of all arrays of one file
_CODE = re.compile(r"[<>|=]?([biufcSU])(\d{1,6})")
_WIDTHS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


class Layout(NamedTuple):
    """Element type, shape and memory order of an array; `length` is its size in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def length(self) -> int:
        """Bytes of all elements, as a Python integer, which cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def plain_dtype(code: object) -> np.dtype[Any]:
    """The element type of `code`, such as "<f8": booleans, numbers and texts of a fixed width.

    Raises:
        ValueError: any other type, among them objects, records and dates.
    """
    match = _CODE.fullmatch(code) if isinstance(code, str) else None
    if match is None:
        raise ValueError(f"elements of type {code!r:.40} are refused")
    kind, width = match[1], int(match[2])
    if width not in _WIDTHS.get(kind, (width,)) or not 0 < width * (4 if kind == "U" else 1) <= MAX_ELEMENT_BYTES:
        raise ValueError(f"there are no elements of type {code!r:.40}")
    return np.dtype(match[0])


def check_shape(shape: object) -> tuple[int, ...]:
    """`shape` if it is a tuple of a few sizes; raises ValueError otherwise."""
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{shape!r:.80} is not a shape")
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"{shape!r:.80} is not a shape")
    return shape


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
    start = file.read(8)
    if start[:6] != MAGIC or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("it does not begin as a .npy file")
    size = int.from_bytes(file.read(2 if start[6] == 1 else 4), "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes")
    text = file.read(size)
    if len(text) < size:
        raise ValueError("it ends within its header")
    fields = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin-1").strip())
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header does not describe an array")
    return Layout(plain_dtype(fields["descr"]), check_shape(fields["shape"]), fields["fortran_order"] is True)


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


def objects_offset(raw: bytes) -> int:
    """The offset of the pickle in the bytes of a .npy file of objects; 0 if `raw` is not a .npy file.

    Raises:
        ValueError: a header that is too long.
    """
    if not raw.startswith(MAGIC):
        return 0
    length_bytes = 2 if raw[6:7] == b"\1" else 4
    size = int.from_bytes(raw[8 : 8 + length_bytes], "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes")
    return 8 + length_bytes + size
