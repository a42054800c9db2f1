"""Pickles of numpy arrays, in files of data sets and of other frameworks.

A pickle may name numpy's own functions only, so it runs no other code.
"""

import io
import pickle
from pathlib import Path
from typing import Any

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


def read_arrays(path: Path | str) -> Any:
    """The value of a pickle of numpy arrays, numbers, texts and plain containers.

    Pickles of Python 2 are read as well, and .npy files that hold such a pickle because their elements are objects.

    Raises:
        BadInput: the file is damaged or asks for any other class or function.
    """
    path = Path(path)
    try:
        return unpickle_arrays(path.read_bytes())
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{str(error) or type(error).__name__}"
        raise BadInput(f"{path}: not a pickle of plain arrays ({reason}); run the download stage again") from error


def unpickle_arrays(raw: bytes) -> Any:
    """As `read_arrays`, of the bytes of a file; raises nearly anything if they are damaged."""
    file = io.BytesIO(raw)
    if raw.startswith(npy.MAGIC_PREFIX):
        HEADERS[npy.read_magic(file)](file)
    return _ArrayUnpickler(file, encoding="latin1").load()
