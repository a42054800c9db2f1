"""Folders that one process writes at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files import check_writable

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, remedy: str) -> Iterator[None]:
    """Lock the folder, so that no other process uses it meanwhile. It is created if it is missing.

    The kernel releases the lock when this process ends, for any reason.

    Args:
        remedy: what the user can do if another process has the folder.

    Raises:
        BadInput: another process has it, or it cannot be written.
    """
    check_writable(folder)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"{folder}: another federation is running in it; {remedy}") from error
        yield
