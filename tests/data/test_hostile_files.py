"""Hostile files: their claims are checked before a library acts on them. A child process reads each file."""

import io
import pickle
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
from fedweave.results.runs import read_scores
from tests.data.test_bad_files import in_child
from tests.valid_files import evaluations, partitions, tables


class Touch:
    """Its pickle makes a file when it is read without restriction."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def message_of(reader: Callable[[Path], Any], path: Path, content: bytes) -> str:
    """The line with which `reader` refuses `content`."""
    path.write_bytes(content)
    line = in_child(lambda: reader(path))
    assert line.startswith(f"BadInput: {path}"), line
    return line


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
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        zip_archive(a=header("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}")),
        zip_archive(a=header("{'descr': '|O', 'fortran_order': False, 'shape': ()}")),
        zip_archive(a=header("(" * 5000)),
        partitions()[0][:-30],
    ],
    ids=["length", "objects", "nesting", "cut"],
)
def test_hostile_archives_of_arrays_are_refused(content: bytes, tmp_path: Path) -> None:
    line = message_of(lambda path: read(path, read_npz, "write it again"), tmp_path / "a.npz", content)
    assert "damaged" in line


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """One bit of a weight is another one: PyTorch alone would not see it."""
    save_tensors(tmp_path / "a.pt", {"a": torch.arange(300)})
    assert torch.equal(load_tensors(tmp_path / "a.pt")["a"], torch.arange(300))
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index((298).to_bytes(8, "little"))] ^= 1
    line = message_of(lambda path: read(path, load_tensors, "delete it"), tmp_path / "a.pt", bytes(content))
    assert "the sum of its part" in line


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.pt", Touch(tmp_path / "touched"))
    with pytest.raises(pickle.UnpicklingError):
        load_tensors(tmp_path / "a.pt")
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert (tmp_path / "touched").exists()


def test_scores_of_another_type_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "t").write_bytes(evaluations()[0])
    table = pq.read_table(tmp_path / "t")
    pq.write_table(table.set_column(5, "value", pa.array(["x"] * 8)), tmp_path / "t")
    assert "column value is of type string" in message_of(read_scores, tmp_path / "t", (tmp_path / "t").read_bytes())
