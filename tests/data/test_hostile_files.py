"""Hostile files: their claims are checked before a library acts on them. A child process reads each file."""

import io
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from fedweave.data.sources.traffic import read_hdf5
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import load_tensors, read, save_tensors
from fedweave.files.unpickler import Unpickler
from fedweave.results.runs import read_scores
from tests.data.test_bad_files import in_child
from tests.valid_files import evaluations, partitions, tables


def message_of(reader: Callable[[Path], Any], path: Path, content: bytes) -> str:
    """The line with which `reader` refuses `content`."""
    path.write_bytes(content)
    line = in_child(lambda: reader(path))
    assert line.startswith(f"BadInput: {path}"), line
    return line


PICKLES: list[tuple[bytes, str]] = [
    # Its hash would take 2^60 steps
    (b"\x80\x02K\x01q\x000" + b"h\0h\0\x86q\x000" * 60 + b"}h\0K\x01s.", "a key is tuple"),
    (b"\x80\x02cbuiltins\nlist\nJ\xff\xff\xff\x7f\x85R.", "refuses to load builtins.list"),
    (b"\x80\x02cos\nsystem\nX\4\0\0\0true\x85R.", "refuses to load os.system"),
    (b"\x80\x02N)R.", "calls what is not a global"),
    (b"\x80\x02NK\1a.", "adds to what is not a list"),
    (b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f.", r"instruction '\x96' is refused"),
    (b"\x80\x02\x8f.", r"instruction '\x8f' is refused"),
]


@pytest.mark.parametrize(("content", "words"), PICKLES, ids=[words for _, words in PICKLES])
def test_hostile_pickles_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=re.escape(words)):
        Unpickler(content, {}, lambda _: None).load()


def test_a_pickle_cannot_reserve_memory() -> None:
    """Its memo would have an entry for each of 2^32 numbers."""
    assert Unpickler(b"\x80\x02]r\xff\xff\xff\xff.", {}, lambda _: None).load() == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("block0_values", {"shape": (4, 2), "dtype": "f8"}, "values (4, 2) float64 of 3 rows and 2 columns"),
        ("block0_values", {"shape": (3, 2), "dtype": "S8"}, "|S8"),
        ("axis1", {"shape": (3,), "dtype": "S8"}, "of 3 rows"),
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
