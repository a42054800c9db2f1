"""Facts that take long to work out, stored in the user's cache folder. They are valid until a file changes.

A stored fact is never needed: what cannot be read or written is worked out again.
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.files.atomic import write_json

SETTLED = 2_000_000_000  # ns: a file that changed later than this before now may change again within one tick
KEPT = 50  # files in the folder; the oldest ones go

Stamp = list[int]


def folder() -> Path:
    """The user's cache folder of fedweave."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedweave"


def stamp(file: Path) -> Stamp | None:
    """What shows a change of a file or folder: times of its content and of its entry [ns], size and number.

    None where there is none, and empty where it has changed just now: what depends on it cannot be stored yet.
    """
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    if time.time_ns() - status.st_ctime_ns < SETTLED:
        return []
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]


def stamps(files: Iterable[Path]) -> dict[str, Stamp | None]:
    """The stamps of files by their paths."""
    return {str(file): stamp(file) for file in files}


def read(name: str) -> dict[str, Any]:
    """The facts that were stored under `name`; empty where there are none."""
    with suppress(OSError, ValueError, RuntimeError):
        facts = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
        return facts if isinstance(facts, dict) else {}
    return {}


def write(name: str, facts: dict[str, Any]) -> None:
    """Store facts under `name`, whole; without any effect where the folder cannot be written."""
    with suppress(BadInput, OSError, RuntimeError):
        file = folder() / f"{name}.json"
        write_json(file, facts, indent=None)
        for old in sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)
