"""Tables in HDF5 files, as pandas writes them, without PyTables."""

from pathlib import Path

import numpy as np


def read_frame(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Values [T, N], row labels [T] and column names [N] of a table that pandas wrote in its fixed format.

    Raises:
        KeyError, OSError, ValueError, RuntimeError: the file is damaged or something else.
    """
    import h5py

    with h5py.File(path) as file:
        (block,) = file.values()
        values, times, names = (block[name][:] for name in ("block0_values", "axis1", "axis0"))
    if values.shape != (len(times), len(names)) or values.dtype.kind not in "iuf" or times.dtype.kind not in "iu":
        raise ValueError(f"values {values.shape} {values.dtype} of {len(times)} rows and {len(names)} columns")
    return values, times, tuple(str(n, "utf-8") if isinstance(n, bytes) else str(n) for n in names.tolist())
