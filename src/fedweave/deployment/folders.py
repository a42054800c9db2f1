"""Folders that one process writes at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files import check_writable

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, way: str) -> Iterator[None]:
    """The folder, made where it is missing, which no other process has meanwhile.

    The kernel gives it back when this process ends for any reason.

    Args:
        way: what to do where another process has it.

    Raises:
        BadInput: another process has it, or it cannot be written.
    """
    check_writable(folder)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"{folder}: another federation is running in it; {way}") from error
        yield
