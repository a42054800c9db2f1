"""Arrays of NPZ files."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays `names` of a .npz file, by default all; objects of Python are refused.

    Raises:
        KeyError: there is no such array.
        ValueError, OSError, BadZipFile, zlib.error: the file is damaged.
    """
    with path.open("rb") as file, NpzFile(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in names or archive.files}
