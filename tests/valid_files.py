"""Valid files of every kind that may come from elsewhere, as bytes; tests damage them."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np


def arrays() -> list[bytes]:
    """.npy files."""
    files = []
    for array in (
        np.arange(6.0),
        np.asfortranarray(np.eye(3, dtype=np.uint8)),
        np.array("text"),
        np.zeros((0, 2)),
        np.array([True]),
    ):
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    return files


def partitions() -> list[bytes]:
    """Partitions of rows, of a graph and of series."""
    from fedweave import data

    pair = np.array([[0, 1], [1, 0]], dtype=np.int64)
    rows = tuple(np.arange(i, i + 2) for i in range(3))
    kinds: list[dict[str, Any]] = [
        {},
        {"nodes": tuple(np.arange(5) for _ in range(3)), "edges": (pair,) * 3, "relation": pair},
        {"layout": {"window": 2, "horizon": 1, "stride": 1}, "test_weight": np.ones((3, 2)), "group": np.arange(3)},
    ]
    return [
        _written(lambda path, k=kind: data.save_partition(path, data.Partition(rows, rows, rows, **k)), ".npz")
        for kind in kinds
    ]


def _written(write: Callable[[Path], object], suffix: str) -> bytes:
    """The bytes that `write` puts into a file."""
    with TemporaryDirectory() as folder:
        write(Path(folder) / f"file{suffix}")
        return (Path(folder) / f"file{suffix}").read_bytes()


def tables() -> list[bytes]:
    """HDF5 files as pandas writes them: plain, compressed, and of the newest version of the format."""
    import h5py

    def write(path: Path, version: str, **options: Any) -> None:
        with h5py.File(path, "w", libver=version) as file:
            file["speed/axis0"] = np.array([b"400001", b"400017"])
            file["speed/axis1"] = np.arange(3)
            file.create_dataset("speed/block0_values", data=np.arange(6.0).reshape(3, 2), **options)

    ways: list[tuple[str, dict[str, Any]]] = [
        ("earliest", {}),
        ("latest", {}),
        ("earliest", {"compression": "gzip", "chunks": (2, 2)}),
    ]
    ways.append(("latest", {"chunks": (1, 2), "shuffle": True, "fletcher32": True}))
    return [_written(partial(write, version=version, **options), ".h5") for version, options in ways]


def evaluations() -> list[bytes]:
    """Tables of scores, plain and compressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "seed": [0] * 8,
        "round": [*range(8)],
        "point": ["post"] * 8,
        "split": ["val", "test"] * 4,
        "client": [0] * 8,
    }
    table = pa.table({**columns, "value": np.linspace(0, 1, 8)})
    ways: list[dict[str, Any]] = [
        {"compression": "NONE"},
        {"compression": "SNAPPY"},
        {"compression": "NONE", "use_dictionary": False},
    ]
    return [_written(lambda path, w=way: pq.write_table(table, path, **w), ".parquet") for way in ways]


def checkpoints() -> list[bytes]:
    """Tensors of many types, views of one storage, and plain values."""
    import torch

    from fedweave.files.atomic import save_tensors

    base = torch.arange(24.0).reshape(4, 6)
    content = {"a": base, "t": base.t(), "v": base[1:3, 2:], "e": torch.ones(3, 1).expand(3, 5), "z": torch.zeros(0, 2)}
    content |= {
        "b": torch.tensor([True]),
        "i": torch.arange(3),
        "h": base.half(),
        "p": (1, 2.5, None, [True, "x"], base.shape),
    }
    return [
        _written(lambda path, c=value: save_tensors(path, c), ".pt")
        for value in (content, {"state": (3, {}, {}), "a": base})
    ]


def tar() -> list[bytes]:
    """An archive with a member m."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("m")
        entry.size = 50
        archive.addfile(entry, io.BytesIO(b"x" * 50))
    return [packed.getvalue()]


def zips() -> list[bytes]:
    """An archive with a member m, stored and compressed."""
    files = []
    for way in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", way) as archive:
            archive.writestr("m", b"x" * 50)
        files.append(packed.getvalue())
    return files
