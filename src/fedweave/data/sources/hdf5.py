"""HDF5 files from other authors: reads only content of the file itself, and only arrays of expected types and sizes.

An HDF5 file can refer to any other file of the computer, by external links, external storage and virtual data sets.
Such references are refused.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 1 << 30  # bytes of one data set
MAX_CHUNK_BYTES = 1 << 28  # bytes of one compressed piece, which is unpacked as a whole
FILTERS = {1: "gzip", 2: "shuffle", 3: "checksum", 32000: "lzf"}


def only_group(file: Any) -> Any:
    """The only member of an open file; raises ValueError unless there is exactly one and it is a group."""
    names = list(file)
    if len(names) != 1:
        raise ValueError(f"{len(names)} groups, not 1")
    return find_member(file, names[0], "Group")


def find_member(group: Any, name: str, kind: str) -> Any:
    """The member `name` of `group` if it is a `kind` (Group or Dataset) in the same file.

    Raises:
        KeyError: it does not exist.
        ValueError: it is something else, or a link that may lead elsewhere.
    """
    import h5py

    links, key = group.id.links, name.encode()
    if not links.exists(key):
        raise KeyError(f"no {name!r}")
    if links.get_info(key).type != h5py.h5l.TYPE_HARD:  # Group.get would follow the link first
        raise ValueError(f"{name!r} is a link to another place")
    member = group[name]
    if not isinstance(member, getattr(h5py, kind)):
        raise ValueError(f"{name!r} is a {type(member).__name__}, not a {kind}")
    return member


def open_array(group: Any, name: str, dimensions: int, kinds: str) -> Any:
    """Check the data set `name` of `group` and return it unread; `kinds` are letters of numpy's element kinds.

    Raises:
        KeyError, ValueError: it does not exist, or is not such an array in the file itself.
    """
    import h5py

    dataset = find_member(group, name, "Dataset")
    properties = dataset.id.get_create_plist()
    layouts = (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED)
    if properties.get_external_count() or properties.get_layout() not in layouts:
        raise ValueError(f"{name!r} keeps its content in another file")
    classes = (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING)
    if dataset.id.get_type().get_class() not in classes or dataset.dtype.kind not in kinds:
        raise ValueError(f"{name!r} holds {dataset.dtype}")
    if dataset.shape is None or dataset.ndim != dimensions:
        raise ValueError(f"{name!r} has shape {dataset.shape}, not {dimensions} dimensions")
    if math.prod(dataset.shape) * dataset.dtype.itemsize > MAX_BYTES:
        raise ValueError(f"{name!r} has shape {dataset.shape}, which is too large")
    _check_pieces(dataset, properties, name)
    return dataset


def _check_pieces(dataset: Any, properties: Any, name: str) -> None:
    if dataset.chunks and math.prod(dataset.chunks) * dataset.dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(f"{name!r} has pieces of shape {dataset.chunks}, which are too large")
    unknown = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())} - FILTERS.keys()
    if unknown:
        raise ValueError(f"{name!r} is packed by filter {min(unknown)}, not by {', '.join(FILTERS.values())}")


def read_frame(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Values [T, N], row labels [T] and column names [N] of a table that pandas wrote in its fixed format.

    Raises:
        KeyError, OSError, ValueError, RuntimeError: the file is damaged or something else.
    """
    import h5py

    with h5py.File(path) as file:
        block = only_group(file)
        values = open_array(block, "block0_values", 2, "iuf")
        times, names = open_array(block, "axis1", 1, "iu"), open_array(block, "axis0", 1, "iuS")
        if values.shape != (*times.shape, *names.shape):
            raise ValueError(f"values {values.shape} of {times.shape} rows and {names.shape} columns")
        columns = tuple(str(n, "utf-8") if isinstance(n, bytes) else str(n) for n in names[:].tolist())
        return values[:], times[:], columns
