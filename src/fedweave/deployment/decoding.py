"""Arrays of other hosts, read only where their header says the shape and type that is declared for them."""

import io
from collections.abc import Sequence

import numpy as np

from fedweave.deployment.tensors import Undeclared
from fedweave.errors import shown
from fedweave.readers.arrays import build, read_header


def decode(data: bytes, shape: Sequence[int], kind: str, name: str) -> np.ndarray:
    """The array of a .npy file in memory; nothing is allocated before the header agrees with what is declared.

    Args:
        shape, kind: that are declared, such as [2, 3] and "float32".
        name: of the tensor, for the message.

    Raises:
        Undeclared: it is no .npy file, or of another shape, type or length.
    """
    try:
        file = io.BytesIO(data)
        layout = read_header(file)
        if layout.shape != tuple(shape) or layout.dtype != np.dtype(kind):
            held = f"{shown([*layout.shape])} {layout.dtype.str}"
            raise Undeclared(f"upload: {shown(name)} has shape and type {held}, but {[*shape]} {kind} is declared")
        return build(file.read(), layout)
    except Undeclared:
        raise
    except Exception as error:  # a header of another author can raise nearly anything
        raise Undeclared(f"upload: {shown(name)} cannot be read ({type(error).__name__}: {error})") from error
