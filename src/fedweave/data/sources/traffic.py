"""Traffic speeds at loop detectors, every five minutes: METR-LA and PEMS-BAY.

Source: Li et al., "Diffusion Convolutional Recurrent Neural Network" (ICLR 2018), liyaguang/DCRNN. Zeros mean
missing.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset
from fedweave.data.sources.pickles import read_arrays
from fedweave.errors import BadInput

DAY = 86_400 * 10**9  # nanoseconds


class SpeedTable(NamedTuple):
    """Speeds [T, N], time stamps [T] in nanoseconds, and the sensors' names."""

    values: np.ndarray
    times: np.ndarray
    names: tuple[str, ...]


def traffic(name: str, folder: str, table: str, graph: str, root: Path) -> Dataset:
    """Speeds [N, T] in miles per hour, time of day in [0, 1), and the sensor graph made undirected."""
    path = root / folder / table
    speeds = read_hdf5(path) if path.exists() else read_csv(root / folder / f"{folder}.csv")
    names, matrix = read_adjacency(root / folder / graph)
    if names != speeds.names:
        raise BadInput(f"{root / folder / graph}: its sensors are not those of the speed table; download both again")
    return Dataset(
        name,
        "series",
        np.ascontiguousarray(speeds.values.T, dtype=np.float32),
        None,
        classes=0,
        time=(speeds.times % DAY / DAY).astype(np.float32),
        relation=symmetrise_edges(np.stack(np.nonzero(matrix)), len(matrix)),
        names=names,
    )


def read_adjacency(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Sensor names and kernel weights [N, N] float32 of DCRNN's pickle: directed, self loops included.

    Raises:
        BadInput: the file is damaged or something else.
    """
    content = read_arrays(path)
    try:
        names, _, matrix = content
        if type(names) is not list or not all(isinstance(name, str) for name in names):
            raise TypeError("its sensors have no list of names")
        if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "biuf":
            raise TypeError("its weights are not a matrix of numbers")
        return tuple(names), matrix.astype(np.float32).reshape(len(names), len(names))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path}: not a sensor graph ({error}); run the download stage again") from error


def read_hdf5(path: Path) -> SpeedTable:
    """A pandas fixed-format HDF5 table, read without PyTables.

    Raises:
        BadInput: the file is damaged, is no such table, or refers to another file.
    """
    import h5py

    try:
        with h5py.File(path) as file:
            (block,) = file.values()
            values, times, names = (block[name][:] for name in ("block0_values", "axis1", "axis0"))
        if values.shape != (len(times), len(names)) or values.dtype.kind not in "iuf" or times.dtype.kind not in "iu":
            raise ValueError(f"values {values.shape} {values.dtype} of {len(times)} rows and {len(names)} columns")
        return SpeedTable(values, times, tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names.tolist()))
    except Exception as error:  # HDF5 raises many different exceptions for damaged files
        raise BadInput(f"{path}: not a table of speeds ({error}); run the download stage again") from error


def read_csv(path: Path) -> SpeedTable:
    """The same table as text: a column of time stamps, then one of speeds for each sensor."""
    import pandas as pd

    frame = pd.read_csv(path, index_col=0)
    times = pd.to_datetime(frame.index).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return SpeedTable(frame.to_numpy(), times, tuple(str(name) for name in frame.columns))


dataset("metr-la", "series")(partial(traffic, "metr-la", "METR-LA", "metr-la.h5", "adj_mx.pkl"))
dataset("pems-bay", "series")(partial(traffic, "pems-bay", "PEMS-BAY", "pems-bay.h5", "adj_mx_bay.pkl"))
