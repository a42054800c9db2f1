"""Hostile files: their claims are checked before a library acts on them. A child process reads each file."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from fedweave.data.sources import citation
from fedweave.data.sources.pickles import read_arrays
from fedweave.data.sources.traffic import read_hdf5
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import load_tensors, read, save_tensors
from fedweave.results.runs import read_scores
from tests.data.test_bad_files import in_child
from tests.fuzz.targets import amazon, evaluations, partitions, tables


def message_of(reader: Callable[[Path], Any], path: Path, content: bytes) -> str:
    """The line with which `reader` refuses `content`."""
    path.write_bytes(content)
    line = in_child(lambda: reader(path))
    assert line.startswith(f"BadInput: {path}"), line
    return line


def repack(content: bytes, **changed: Any) -> bytes:
    """A .npz file with other arrays."""
    with np.load(io.BytesIO(content)) as stored:
        arrays = {key: stored[key] for key in stored.files}
    file = io.BytesIO()
    np.savez(file, **(arrays | {key: np.asarray(value) for key, value in changed.items()}))
    return file.getvalue()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attr_indices": [0, 1, 10**9]}, "columns 0 to 1000000000 of a matrix that has 3"),
        ({"attr_indices": [0, 1, -(10**9)]}, "columns -1000000000 to 1"),
        ({"attr_indices": [0, 1, -5]}, "columns -5 to 1"),
        ({"attr_indptr": [0, 1, 2, 10**12]}, "rows do not start in order from 0 to 3"),
        ({"attr_indptr": [0, 3, 2, 3]}, "rows do not start in order"),
        ({"attr_shape": [3, 10**9]}, "a matrix 3 x 1000000000 is too large"),
        ({"attr_shape": [-3, 3]}, "no shape of two sizes"),
        ({"attr_data": ["a", "b", "c"]}, "the values of a sparse matrix are not a vector of numbers"),
        ({"adj_shape": [3, 9]}, "links of shape (3, 9)"),
        ({"labels": [0, 1]}, "labels of shape (2,)"),
        ({"labels": [[0], [1], [1]]}, "labels of shape (3, 1)"),
    ],
)
def test_hostile_sparse_matrices_are_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "Amazon" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    content = repack(amazon()[0], **changed)
    assert words in message_of(lambda _: citation.amazon("amazon-photo", "Photo", tmp_path), path, content)


def state(shape: Any = (2,), code: str = "i4", order: str = "<", raw: bytes = bytes(8)) -> bytes:
    """A pickle of an array, as protocol 2 writes it, with any state."""
    parts = [
        pickle.dumps(value, protocol=2)[2:-1]
        for value in (1, shape, code, (3, order, None, None, None, -1, -1, 0), False)
    ]
    version, sizes, name, element, fortran = parts
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85C\x01b\x87R"
    return (
        b"\x80\x03"
        + start
        + b"("
        + version
        + sizes
        + b"cnumpy\ndtype\n"
        + name
        + b"K\0K\x01\x87R"
        + element
        + b"b"
        + fortran
    ) + (b"B" + len(raw).to_bytes(4, "little") + raw + b"tb.")


def test_a_consistent_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(state(raw=np.array([3, 4], "<i4").tobytes()))
    assert read_arrays(tmp_path / "p").tolist() == [3, 4]


PICKLES: list[tuple[bytes, str]] = [
    (state(shape=(3,)), "8 bytes for an array [3] of int32, which takes 12"),
    (state(shape=(1 << 40, 1 << 40)), "8 bytes for an array"),
    (state(shape=(-2,)), "is not a shape"),
    (state(shape=tuple([1] * 40)), "is not a shape"),
    (state(code="O8"), "a bytes where a list belongs"),
    (state(code="V4"), "elements of type 'V4' are refused"),
    (state(code="i3"), "no elements of type 'i3'"),
    (state(code="U999999"), "no elements of type 'U999999'"),
    (state(code="b1", shape=(8,), raw=b"\2" * 8), "a boolean is neither 0 nor 1"),
    (state(code="U1", raw=b"\xff" * 8), "a character is outside Unicode"),
    (state(order="x"), "elements with parts are refused"),
    # Its hash would take 2^60 steps
    (b"\x80\x02K\x01q\x000" + b"h\0h\0\x86q\x000" * 60 + b"}h\0K\x01s.", "a key is tuple"),
    (b"\x80\x02cbuiltins\nlist\nJ\xff\xff\xff\x7f\x85R.", "may only be named"),
    (b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f.", "ends within a bytearray"),
    (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.", "pop from empty list"),
    (b"\x80\x02" + b"N" * 2_000_001 + b".", "too many instructions"),
    (
        b"\x80\x02c_codecs\nencode\nq\0X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"\x85q\1R0" + b"h\0h\1R0" * 100 + b"N.",
        "copies more than it holds",
    ),
    (b"\x80\x02\x8f.", r"instruction '\x8f' is refused"),
]


@pytest.mark.parametrize(("content", "words"), PICKLES, ids=[words for _, words in PICKLES])
def test_hostile_pickles_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in message_of(read_arrays, tmp_path / "p", content)


def elsewhere(place: Path, kind: str) -> Callable[[h5py.Group], None]:
    """Put values that are stored in another file into a group."""

    def write(group: h5py.Group) -> None:
        if kind == "storage":
            group.create_dataset("block0_values", shape=(3, 2), dtype="f8", external=[(str(place), 0, 48)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((3, 2), "f8")
            layout[:] = h5py.VirtualSource(str(place), "values", shape=(3, 2))
            group.create_virtual_dataset("block0_values", layout)
        else:
            group["block0_values"] = (
                h5py.ExternalLink(str(place), "/values") if kind == "link" else h5py.SoftLink("/other")
            )

    return write


@pytest.mark.parametrize("kind", ["storage", "virtual", "link", "soft link"])
def test_tables_with_values_in_another_file_are_refused(kind: str, tmp_path: Path) -> None:
    """Otherwise a downloaded table could read any file of the computer."""
    with h5py.File(tmp_path / "other", "w") as other:
        other["values"] = np.ones((3, 2))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["speed/axis0"], file["speed/axis1"] = np.array([b"a", b"b"]), np.arange(3)
        elsewhere(tmp_path / "other", kind)(file["speed"])
    line = message_of(read_hdf5, tmp_path / "t.h5", (tmp_path / "t.h5").read_bytes())
    assert "keeps its content in another file" in line or "is a link to another place" in line


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("block0_values", {"shape": (10**12, 2), "dtype": "f8", "chunks": (1000, 2)}, "too large"),
        (
            "block0_values",
            {"shape": (3, 2), "dtype": "f8", "chunks": (10**8, 2), "maxshape": (None, 2)},
            "pieces of shape",
        ),
        ("block0_values", {"shape": (4, 2), "dtype": "f8"}, "values (4, 2) of (3,) rows and (2,) columns"),
        ("block0_values", {"shape": (3, 2), "dtype": "S8"}, "holds |S8"),
        ("axis0", {"shape": (2,), "dtype": h5py.string_dtype()}, "holds object"),
        ("axis1", {"shape": (3, 1), "dtype": "i8"}, "not 1 dimensions"),
    ],
)
def test_tables_of_other_sizes_and_types_are_refused(
    name: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "t.h5").write_bytes(tables()[0])
    with h5py.File(tmp_path / "t.h5", "a") as file:
        del file["speed"][name]
        file["speed"].create_dataset(name, **options)
    assert words in message_of(read_hdf5, tmp_path / "t.h5", (tmp_path / "t.h5").read_bytes())


def zip_archive(**members: bytes) -> bytes:
    """A compressed zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            zip_archive(a=header("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}")),
            "ends within its array",
        ),
        (
            zip_archive(a=header("{'descr': '|O', 'fortran_order': False, 'shape': ()}")),
            "elements of type '|O' are refused",
        ),
        (zip_archive(a=header("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': ()}")), "are refused"),
        (zip_archive(a=header("(" * 5000)), "damaged"),
        (zip_archive(a=bytes(3 << 20)), "more than 1048576 bytes"),
        (partitions()[0][:-30], "damaged"),
    ],
    ids=["length", "objects", "records", "nesting", "size", "cut"],
)
def test_hostile_archives_of_arrays_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    def reader(path: Path) -> Any:
        return read(path, lambda file: read_npz(file, max_bytes=1 << 20), "write it again")

    assert words in message_of(reader, tmp_path / "a.npz", content)


def test_hostile_checkpoints_are_refused(tmp_path: Path) -> None:
    """A tensor is larger than its bytes: torch itself would read the memory behind them."""
    save_tensors(tmp_path / "good.pt", {"a": torch.arange(300)})
    assert torch.equal(load_tensors(tmp_path / "good.pt")["a"], torch.arange(300))
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = {name: raw.replace(b"M\x2c\x01", b"M\xff\xff") for name, raw in members.items()}
    assert changed != members
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        for name, raw in changed.items():
            archive.writestr(name, raw)
    line = message_of(
        lambda path: read(path, load_tensors, "delete it"), tmp_path / "bad.pt", (tmp_path / "bad.pt").read_bytes()
    )
    assert "does not have 65535 elements" in line


def test_hostile_tables_of_scores_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than any study has, and values of another type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fedweave.results import runs

    (tmp_path / "t").write_bytes(evaluations()[0])
    table = pq.read_table(tmp_path / "t")
    pq.write_table(table.set_column(5, "value", pa.array(["x"] * 8)), tmp_path / "t")
    assert "column value is of type string" in message_of(read_scores, tmp_path / "t", (tmp_path / "t").read_bytes())
    monkeypatch.setattr(runs, "MOST_ROWS", 7)
    assert "8 rows" in message_of(read_scores, tmp_path / "t", evaluations()[0])
