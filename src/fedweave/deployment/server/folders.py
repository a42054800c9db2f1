"""Folders that one process writes at a time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, try_lock

LOCK, POLL = ".lock", 0.2  # a file, and seconds between two tries to lock it


@contextmanager
def lock_folder(folder: Path, remedy: str, wait: float = 0.0) -> Iterator[None]:
    """Lock the folder, so that no other process uses it meanwhile. It is created if it is missing.

    The kernel releases the lock when this process ends, for any reason.

    Args:
        remedy: what the user can do if another process has the folder.
        wait: seconds to wait for the end of another process that has it.

    Raises:
        BadInput: another process has it, or it cannot be written.
    """
    check_writable(folder)
    with (folder / LOCK).open("a") as lock:
        end = time.monotonic() + wait
        while not try_lock(lock):
            if time.monotonic() >= end:
                raise BadInput(folder, f"another federation is running in it; {remedy}")
            time.sleep(POLL)
        yield
