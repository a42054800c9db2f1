"""Arrays of other hosts, read only where their header says the shape and type that is declared for them."""

import io
from collections.abc import Sequence

import numpy as np

from fedweave.deployment.wire.tensors import UndeclaredTensor
from fedweave.errors import format_value
from fedweave.files.arrays import build_array, read_header


def decode(data: bytes, shape: Sequence[int], dtype: str, name: str) -> np.ndarray:
    """The array of a .npy file in memory; nothing is allocated before the header agrees with what is declared.

    Args:
        shape, dtype: the declared ones, such as [2, 3] and "float32".
        name: of the tensor, for error messages.

    Raises:
        UndeclaredTensor: `data` is not a .npy file, or of another shape, type or length.
    """
    try:
        file = io.BytesIO(data)
        layout = read_header(file)
        if layout.shape != tuple(shape) or layout.dtype != np.dtype(dtype):
            actual = f"{format_value([*layout.shape])} {layout.dtype.str}"
            raise UndeclaredTensor(
                f"upload: {format_value(name)} has shape and type {actual}, but {[*shape]} {dtype} is declared"
            )
        return build_array(file.read(), layout)
    except UndeclaredTensor:
        raise
    except Exception as error:  # a header of another author can raise nearly anything
        raise UndeclaredTensor(
            f"upload: {format_value(name)} cannot be read ({type(error).__name__}: {error})"
        ) from error
