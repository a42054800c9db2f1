"""Reading pickles that others wrote: numpy arrays and plain containers only, no code."""

import pickle
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput

_PLAIN = {"set", "frozenset", "complex"}  # not range or bytearray, of which a few bytes make more than memory holds
_NUMPY = {"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"}
_NUMPY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")


class _Arrays(pickle._Unpickler):
    """An unpickler that refuses every global but those that build arrays and plain containers.

    It is the one written in Python: nine bytes make the one written in C reserve and fill 32 GiB for its memo.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The global `module.name` if it is harmless; raises UnpicklingError otherwise."""
        plain = module in ("builtins", "__builtin__") and name in _PLAIN
        latin = (module, name) == ("_codecs", "encode")  # how Python 3 writes bytes in protocol 2
        if plain or latin or (module in _NUMPY_MODULES and name in _NUMPY):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"refuses to load {module}.{name}")


def read_arrays(path: Path | str) -> Any:
    """Unpickle a file of numpy arrays, numbers, strings and plain containers (of Python 2 as well).

    Raises:
        BadInput: the file is damaged or asks for any other class or function.
    """
    try:
        with Path(path).open("rb") as file:
            return _Arrays(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadInput(f"{path}: not a pickle of plain arrays ({error}); run the download stage again") from error
