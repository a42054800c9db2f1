"""Valid files of every kind, which the fuzzer damages."""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np


def pickles() -> list[bytes]:
    """Every kind of content, in every protocol."""

    content = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": [1, "x"],
        "f": np.asfortranarray(np.eye(2, dtype=">i4")),
        "s": np.float32(3),
    }
    odd = [
        np.array(["ab", "c"]),
        np.array([b"x"]),
        np.array([True]),
        np.array([np.arange(2), None], dtype=object),
        b"raw",
        1 << 70,
    ]
    return [pickle.dumps(value, protocol) for value in (content, odd) for protocol in (0, 2, 3, 4, 5)]


def audited() -> list[bytes]:
    """A dictionary of an array and a list."""
    return [pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": [1, "x"]}, protocol=2)]


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


def amazon() -> list[bytes]:
    """A small graph in the format of Amazon's files."""
    columns, starts = np.arange(3, dtype=np.int32), np.arange(4, dtype=np.int32)
    matrix = {"data": np.ones(3, np.float32), "indices": columns, "indptr": starts, "shape": [3, 3]}
    content = {f"{part}_{key}": np.asarray(value) for part in ("adj", "attr") for key, value in matrix.items()}
    file = io.BytesIO()
    np.savez(file, labels=np.array([0, 1, 1]), **content)
    return [file.getvalue()]


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


def studies() -> list[bytes]:
    """The project's own studies, and further forms of YAML."""
    root = Path(__file__).resolve().parents[2]
    files = [root / "params.yaml", *sorted((root / "studies").glob("*.yaml"))]
    odd = b"a: &x [1, 2.5e3, 0x1f, 2001-01-01, ~, 'q', \"\\u00e9\"]\nb: *x\n<<: {c: !!str 3}\n? d\n: |\n  text\n"
    return [odd, *(file.read_bytes()[:1500] for file in files if file.is_file())]


def contents() -> list[bytes]:
    """One valid file of each format, after a byte that selects a data set."""
    return [b"\0" + raw for make in (audited, arrays, amazon, tables, zips) for raw in make()]
