"""`make setup` and `make distclean` with a given folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup


class Started(Exception):
    """Raised instead of starting a program."""


@pytest.mark.parametrize(
    ("files", "continues"),
    [
        ([], True),
        (["bin/pip", "lib/x.py"], True),
        (["pyvenv.cfg", "share/man", "bin/pip"], True),
        (["thesis.tex"], False),
        (["bin/mine", "share/mine"], False),
    ],
    ids=["empty", "killed", "other-python", "files", "home"],
)
def test_only_an_environment_is_replaced(
    files: list[str], continues: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete environment is removed. A folder of the user is kept, and is named."""
    folder = tmp_path / "folder"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def start(*_words: object, **_options: object) -> None:
        raise Started("started")

    monkeypatch.setattr(setup.subprocess, "run", start)
    monkeypatch.setattr(sys, "argv", ["setup.py", str(folder)])
    with pytest.raises(
        Started if continues else SystemExit, match="started" if continues else "is not a virtual environment, as it"
    ):
        setup.main()
    assert all((folder / name).exists() != continues for name in files)


@pytest.mark.parametrize("environment", [True, False])
def test_distclean_removes_an_environment_and_nothing_else(environment: bool, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ("pyvenv.cfg" if environment else "thesis.tex")).touch()
    shutil.copy(Path(__file__).parents[1] / "Makefile", tmp_path)
    result = subprocess.run(
        ["make", "distclean", f"VENV={folder}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert folder.exists() != environment
    assert ("is not a virtual environment and stays" in result.stderr) != environment
