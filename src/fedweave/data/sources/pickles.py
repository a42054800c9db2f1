"""Pickles from other authors: numpy arrays and plain containers, without running code, and with every number checked.

Numpy trusts the state in a pickle, and a wrong state makes it read or write outside of its memory. Here numpy never
gets such a state: a `PendingObject` holds what the pickle says, and `arrays.build_array` makes the array after its
checks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedweave.errors import BadInput
from fedweave.files import arrays
from fedweave.files.arrays import Layout
from fedweave.files.unpickler import Builder, GlobalName, PendingObject, Unpickler

MAX_BYTES = 1 << 29  # bytes of a pickle; CIFAR's largest has 155 MB
T = TypeVar("T")

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_OBJECT = "O"


@dataclass
class ElementType(PendingObject):
    """numpy.dtype(code); its state adds the byte order."""

    code: str
    order: Any = ""  # "<", ">" or "|"

    def build(self, state: Any) -> "ElementType":
        """Set the byte order from a state (version, order, subtype, names, fields, size, alignment, flags)."""
        version, order, subtype, names, fields, *sizes = _require_type(state, tuple)
        if version not in (3, 4) or order not in ("<", ">", "|") or (subtype, names, fields) != (None, None, None):
            raise ValueError("elements with parts are refused")
        width = _require_type(sizes[0], int)
        if self.code != _OBJECT and width not in (-1, arrays.plain_dtype(self.code).itemsize):
            raise ValueError(f"an element {self.code!r} of {width} bytes")
        self.order = order
        return self

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; raises ValueError for one that is not plain."""
        return arrays.plain_dtype(self.code).newbyteorder(self.order or "=")


class Array(PendingObject):
    """numpy.ndarray, to be filled by its state."""

    def __init__(self, reader: "_Reader") -> None:
        self.reader = reader

    def build(self, state: Any) -> np.ndarray:
        """The array of a state (version, shape, dtype, is_fortran, content); old ones have no version."""
        shape, kind, fortran, content = _require_type(state, tuple)[-4:]
        if _require_type(kind, ElementType).code == _OBJECT:
            return self.reader.build_object_array(arrays.check_shape(shape), content, bool(fortran))
        return self.reader.build_array(kind, shape, bool(fortran), content)


def _require_type(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


class _Reader:
    """The builders of one pickle; `left` is how many bytes they may still copy. An intact file needs each byte once."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.left = raw, len(raw)

    def read(self) -> Any:
        """The value of the pickle."""
        return Unpickler(self.raw, self.builders()).load()

    def builders(self) -> Mapping[GlobalName, Builder]:
        """The function that stands for each permitted global."""
        table: dict[str, tuple[tuple[str, ...], Builder]] = {
            "_reconstruct": (_MULTIARRAY, self._reconstruct),
            "scalar": (_MULTIARRAY, self._scalar),
            "_frombuffer": (_NUMERIC, self._from_buffer),
            "ndarray": (("numpy",), _refuse),
            "dtype": (("numpy",), self._dtype),
            "encode": (("_codecs",), lambda args: self.encode(args[0])),
            "defaultdict": (("collections",), lambda _: {}),
            "list": (("builtins", "__builtin__"), _refuse),
        }
        return {GlobalName(module, name): builder for name, (modules, builder) in table.items() for module in modules}

    def _reconstruct(self, args: tuple[Any, ...]) -> Array:
        if args[0] != GlobalName("numpy", "ndarray"):
            raise ValueError("a subclass of arrays is refused")
        return Array(self)

    def _dtype(self, args: tuple[Any, ...]) -> ElementType:
        code = _require_type(args[0].decode("ascii") if isinstance(args[0], bytes) else args[0], str)
        if code in ("O8", "O4", "O"):
            return ElementType(_OBJECT)
        arrays.plain_dtype(code)
        return ElementType(code)

    def _scalar(self, args: tuple[Any, ...]) -> Any:
        return self.build_array(_require_type(args[0], ElementType), (), False, args[1])[()]

    def _from_buffer(self, args: tuple[Any, ...]) -> np.ndarray:
        content, kind, shape, order = args
        sizes = shape if isinstance(shape, tuple) else (shape,)
        return self.build_array(_require_type(kind, ElementType), sizes, order == "F", content)

    def build_array(self, kind: ElementType, shape: Any, fortran: bool, content: Any) -> np.ndarray:
        """A checked array of plain elements, read-only."""
        raw = content if isinstance(content, bytes) else self.encode(content)
        return arrays.build_array(raw, Layout(kind.dtype, arrays.check_shape(shape), fortran))

    def build_object_array(self, shape: tuple[int, ...], content: Any, fortran: bool) -> np.ndarray:
        """An array of objects that have been checked one by one."""
        items = _require_type(content, list)
        self._reserve_bytes(8 * len(items))
        if math.prod(shape) != len(items):
            raise ValueError(f"{len(items)} objects for an array {list(shape)}")
        flat = np.empty(len(items), dtype=object)
        for i, item in enumerate(items):
            flat[i] = item.value if isinstance(item, PendingObject) else item
        return flat.reshape(shape, order="F" if fortran else "C")

    def encode(self, text: Any) -> bytes:
        """The bytes of a Latin-1 text: pickles of Python 2 and of protocol 2 store bytes in this way."""
        self._reserve_bytes(len(_require_type(text, str)))
        return text.encode("latin-1")

    def _reserve_bytes(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError("it copies more than it holds")


def _refuse(_: tuple[Any, ...]) -> Any:
    raise ValueError("it calls a class that may only be named")


def read_arrays(path: Path | str) -> Any:
    """The value of a pickle of numpy arrays, sparse matrices, numbers, texts and plain containers.

    Pickles of Python 2 are read as well, and .npy files that hold such a pickle because their elements are objects.
    Arrays are read-only.

    Raises:
        BadInput: the file is damaged or asks for any other class or function.
    """
    path = Path(path)
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ValueError(f"no file of at most {MAX_BYTES} bytes")
        raw = path.read_bytes()
        return _Reader(raw[arrays.objects_offset(raw) :]).read()
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{str(error) or type(error).__name__}"
        raise BadInput(f"{path}: not a pickle of plain arrays ({reason}); run the download stage again") from error
