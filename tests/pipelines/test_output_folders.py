"""Folders that cannot be written are refused in one line, before anything is written elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fedweave.errors import BadInput
from fedweave.files import check_writable, write_atomic
from fedweave.pipelines.commands import main

COMPARE = ["compare", "rows.csv", "--client", "who", "--label", "y"]
EMPTY = {
    "--output": ["run", "--method", "local", "--output", ""],
    "--out": [*COMPARE, "--out", " "],
    "target": ["export", "results", "", "--client", "Ann"],
    "folder": ["init", ""],
}


@pytest.mark.parametrize("option", EMPTY)
def test_an_empty_path(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the current folder, which stays as it was."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.BadParameter) as caught:
        main.app(EMPTY[option], standalone_mode=False)
    assert "is an empty path; name a folder" in caught.value.format_message()
    assert option in caught.value.format_message().lower()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("write", [check_writable, lambda folder: write_atomic(folder / "file", "text")])
def test_a_folder_in_proc(write: Callable[[Path], None]) -> None:
    """The system says that it does not exist, and not that it is read-only."""
    with pytest.raises(BadInput, match=r"/proc/fedweave.*: cannot be written .*; free space, or make"):
        write(Path("/proc/fedweave"))
