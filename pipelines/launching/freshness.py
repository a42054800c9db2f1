"""Stamps of files, which show whether the code on disk still is the code that a process has imported."""

import sys
from collections.abc import Iterable
from pathlib import Path

from fedweave.study.code import PACKAGE

from .. import ROOT

Stamp = tuple[int, int, int]


def stamps(files: Iterable[str]) -> dict[str, Stamp | None]:
    """File -> (time of modification [ns], size [bytes], inode); None for a missing file."""
    stamps_of: dict[str, Stamp | None] = {}
    for file in files:
        try:
            status = Path(file).stat()
            stamps_of[file] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamps_of[file] = None
    return stamps_of


def project_files() -> list[str]:
    """The files with the package's code and the project's .env, imported or not."""
    sources = (path for folder in (PACKAGE, Path(__file__).parent.parent) for path in folder.rglob("*.py"))
    return [str(path) for path in (*sources, ROOT / ".env")]


def imported_files() -> set[str]:
    """The files of all modules that this process has imported."""
    return {
        file for module in tuple(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)
    }
