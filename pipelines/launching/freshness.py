"""Whether the code on disk still is the code that a process has imported."""

import sys
from collections.abc import Iterable
from pathlib import Path

from fedweave.pipelines import ROOT
from fedweave.study.code import PACKAGE

Stamp = tuple[int, int, int]


def stamps(files: Iterable[str]) -> dict[str, Stamp | None]:
    """File -> when it was last changed, its size and its number; None where there is no such file."""
    stamps_of: dict[str, Stamp | None] = {}
    for file in files:
        try:
            about = Path(file).stat()
            stamps_of[file] = (about.st_mtime_ns, about.st_size, about.st_ino)
        except OSError:
            stamps_of[file] = None
    return stamps_of


def project_files() -> list[str]:
    """The project's own code and the variables it sets, imported or not."""
    sources = (path for part in (PACKAGE, Path(__file__).parent.parent) for path in part.rglob("*.py"))
    return [str(path) for path in (*sources, ROOT / ".env")]


def imported_files() -> set[str]:
    """The files of all modules that this process has imported."""
    return {
        file for module in tuple(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)
    }
