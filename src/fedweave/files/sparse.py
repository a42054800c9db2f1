"""Sparse matrices that others wrote: every index is checked before scipy follows it."""

from typing import Any

import numpy as np

MAX_DENSE_ELEMENTS = 1 << 27  # 512 MiB of float32


def build_csr(values: Any, columns: Any, starts: Any, shape: Any) -> Any:
    """The scipy matrix [rows, columns] of compressed rows `values` and `columns` [entries] and `starts` [rows + 1].

    Raises:
        ValueError: arrays that do not fit each other or `shape`, or an index outside of the matrix.
    """
    from scipy.sparse import csr_matrix

    rows, width = check_size(shape)
    for name, array, kinds in (("values", values, "biuf"), ("columns", columns, "iu"), ("starts", starts, "iu")):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
            raise ValueError(f"the {name} of a sparse matrix are not a vector of numbers")
    if len(values) != len(columns) or len(starts) != rows + 1:
        raise ValueError(f"{len(values)} values, {len(columns)} columns and {len(starts)} starts of {rows} rows")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        raise ValueError(f"columns {columns.min()} to {columns.max()} of a matrix that has {width}")
    if int(starts[0]) != 0 or int(starts[-1]) != len(columns) or (starts[1:] < starts[:-1]).any():
        raise ValueError(f"rows do not start in order from 0 to {len(columns)}")
    matrix = csr_matrix((values, columns.astype(np.int64), starts.astype(np.int64)), shape=(rows, width))
    matrix.check_format(full_check=True)
    return matrix


def check_size(shape: Any) -> tuple[int, int]:
    """The two sizes of a matrix; raises ValueError for anything else."""
    sizes = shape.tolist() if isinstance(shape, np.ndarray) and shape.shape == (2,) else shape
    if not isinstance(sizes, list | tuple) or len(sizes) != 2:
        raise ValueError("a sparse matrix has no shape of two sizes")
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in sizes):
        raise ValueError("a sparse matrix has no shape of two sizes")
    return sizes[0], sizes[1]


def to_dense(matrix: Any) -> np.ndarray:
    """A matrix of `build_csr` as a dense array, float32 [rows, columns].

    Raises:
        ValueError: it would have more than `MAX_DENSE_ELEMENTS` elements.
    """
    rows, width = matrix.shape
    if rows * width > MAX_DENSE_ELEMENTS:
        raise ValueError(f"a matrix {rows} x {width} is too large")
    return matrix.astype(np.float32).toarray()
