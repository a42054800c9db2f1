"""Pickles of numpy arrays in the files of data sets, whose digests are known, or which a package has installed.

A pickle may name numpy's own functions only, and a table also pandas' classes, for which it gets plain values; so none
runs other code.
"""

import io
import lzma
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib import format as npy

from fedweave.errors import BadInput

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
PERMITTED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
    ("collections", "defaultdict"),
    ("builtins", "list"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain values and numpy arrays; text of Python 2 is read as Latin-1."""

    def find_class(self, module: str, name: str) -> Any:
        """The function of numpy that the pickle names; raises UnpicklingError for any other."""
        module = module.replace("numpy.core", "numpy._core").replace("__builtin__", "builtins")
        if (module, name) not in PERMITTED:
            raise pickle.UnpicklingError(f"refuses to load {module:.80}.{name:.80}")
        return super().find_class(module, name)


class _Frame:
    """In place of pandas' DataFrame: its attributes."""


def _columns(blocks: Sequence[tuple[Any, Any]], axes: Sequence[Any]) -> dict[str, np.ndarray]:
    """In place of pandas' BlockManager: each column by its name."""
    return {name: values for block, places in blocks for name, values in zip(axes[0][places], block, strict=True)}


class _TableUnpickler(_ArrayUnpickler):
    """Reads a DataFrame of pandas, whose own classes do not take part."""

    stand_ins: ClassVar[dict[str, Any]] = {
        "DataFrame": _Frame,
        "BlockManager": _columns,
        "_unpickle_block": lambda values, places, _dimensions: (values, places),
        "_new_Index": lambda _kind, content: content.get("data"),
        "Index": None,
        "RangeIndex": None,
        "slice": slice,
    }

    def find_class(self, module: str, name: str) -> Any:
        """As of arrays; for a name of pandas, what stands in for it."""
        if module.split(".")[0] in ("pandas", "builtins") and name in self.stand_ins:
            return self.stand_ins[name]
        return super().find_class(module, name)


def read_table(path: Path) -> dict[str, np.ndarray]:
    """The columns of a DataFrame that pandas has pickled and compressed with xz, by their names.

    Raises:
        BadInput: as `read_arrays`.
    """
    return _read(path, lambda raw: _TableUnpickler(io.BytesIO(lzma.decompress(raw))).load()._mgr)


def read_arrays(path: Path | str) -> Any:
    """The value of a pickle of numpy arrays, numbers, texts and plain containers.

    Pickles of Python 2 are read as well, and .npy files that hold such a pickle because their elements are objects.

    Raises:
        BadInput: the file is damaged or asks for any other class or function.
    """
    return _read(Path(path), unpickle_arrays)


def _read(path: Path, unpickle: Callable[[bytes], Any]) -> Any:
    try:
        return unpickle(path.read_bytes())
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{str(error) or type(error).__name__}"
        raise BadInput(f"{path}: not a pickle of plain arrays ({reason}); run the download stage again") from error


def unpickle_arrays(raw: bytes) -> Any:
    """As `read_arrays`, of the bytes of a file; raises nearly anything if they are damaged."""
    file = io.BytesIO(raw)
    if raw.startswith(npy.MAGIC_PREFIX):
        HEADERS[npy.read_magic(file)](file)
    return _ArrayUnpickler(file, encoding="latin1").load()
