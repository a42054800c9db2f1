"""Folders that cannot be written are refused in one line, before anything is written elsewhere."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, user_errors, write_atomic
from fedweave.pipelines.commands import main

COMPARE = ["compare", "rows.csv", "--client", "who", "--label", "y"]
EMPTY = {
    "--output": ["run", "--method", "local", "--output", ""],
    "--out": [*COMPARE, "--out", " "],
    "target": ["export", "results", "", "--client", "Ann"],
    "folder": ["init", ""],
}


@pytest.mark.parametrize("option", EMPTY)
def test_an_empty_path_is_refused(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the current folder, which is unchanged."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.BadParameter) as caught:
        main.app(EMPTY[option], standalone_mode=False)
    assert "is an empty path; name a folder" in caught.value.format_message()
    assert option in caught.value.format_message().lower()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("write", [check_writable, lambda folder: write_atomic(folder / "file", "text")])
def test_a_folder_in_proc_is_refused(write: Callable[[Path], None]) -> None:
    """The system reports that the folder does not exist, and not that it is read-only."""
    with pytest.raises(BadInput, match=r"/proc/fedweave.*: cannot be written .*; free space, or make"):
        write(Path("/proc/fedweave"))


@pytest.mark.parametrize("write", [lambda file: write_atomic(file, "text"), Path.unlink, Path.read_bytes])
def test_a_folder_in_the_place_of_a_file_is_to_be_moved(write: Callable[[Path], object], tmp_path: Path) -> None:
    """Such as one with the name of a checkpoint. Then a file can be written there."""
    place = tmp_path / "run-0-000000003.pt"
    place.mkdir()
    with pytest.raises(BadInput) as caught, user_errors():
        write(place)
    assert str(caught.value).startswith(f"{place}: is a folder in the place of a file; move it away")
    place.rename(tmp_path / "moved")
    place.touch()
    write(place)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("path", ["out/runs.csv", None])
def test_a_full_disk_is_reported_in_one_line(number: int, path: str | None) -> None:
    """The line says what helps, even if the system does not name the file."""
    line = rf"^{path or 'a file'}: cannot be written \({os.strerror(number)}\); free space, and run this again$"
    with pytest.raises(BadInput, match=line), user_errors():
        raise OSError(number, os.strerror(number), path)


def test_other_errors_without_a_file_are_defects() -> None:
    with pytest.raises(PermissionError), user_errors():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
