"""The lock of a folder: one command at a time writes params.yaml and dvc.lock, or runs stages between them.

The kernel releases the lock when every process that has its handle has ended, for any reason. A command passes the
handle to a process that it starts, by its number.
"""

# ruff: noqa: PTH103, PTH107, PTH116, PTH123
# pathlib would take longer to import than all of this, and `reproduce` imports it without the package.

import fcntl
import json
import os
import sys
from contextlib import suppress

FOLDER = ".fedweave"
LOCK = f"{FOLDER}/repro.lock"
DVC_LOCK = ".dvc/tmp/rwlock"  # JSON: which process reads and writes what
HANDLE_VARIABLE = "FEDWEAVE_LOCK"  # environment variable: the number of an inherited handle
BUSY = "another run is active in this folder (process {}); wait until it has ended, then start this one again"


class LockError(Exception):
    """Another command has the lock; the message names its process."""


def acquire() -> int:
    """Take the lock of this folder; it is held as long as the returned handle is open here or in a child.

    Raises:
        LockError: another command has the lock, or DVC runs a stage.
        OSError: the disk is full, or the folder cannot be written; it has the name of the file.
    """
    if (handle := _inherited_handle()) is not None:
        return handle
    os.makedirs(FOLDER, exist_ok=True)
    handle = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock_exclusively(handle)
    except OSError as error:
        os.close(handle)
        raise OSError(error.errno, error.strerror, error.filename or LOCK) from error
    except BaseException:
        os.close(handle)
        raise
    return handle


def pass_to_child(handle: int) -> dict[str, str]:
    """The environment of a child that inherits the lock."""
    os.set_inheritable(handle, True)
    return {**os.environ, HANDLE_VARIABLE: str(handle)}


def busy_line() -> str:
    """The message where DVC runs a stage in this folder, with the number of its process."""
    return BUSY.format(next(iter(_dvc_processes()), "unknown"))


def _inherited_handle() -> int | None:
    """The handle that the parent has passed; its variable is removed, so that children do not get the handle too."""
    with suppress(KeyError, ValueError, OSError):
        handle = int(os.environ.pop(HANDLE_VARIABLE))
        if os.path.samestat(os.fstat(handle), os.stat(LOCK)):
            return handle
    return None


def _lock_exclusively(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockError(BUSY.format(os.read(handle, 32).decode() or "unknown")) from None
    for process in _dvc_processes():
        raise LockError(BUSY.format(process))
    if sys.platform == "linux":
        with suppress(FileNotFoundError):  # DVC would wait for a killed process as long as it is a zombie
            os.remove(DVC_LOCK)
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())


def _dvc_processes() -> list[int]:
    """Numbers of the processes that hold DVC's lock, because DVC or a flow runs a stage."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        with open(DVC_LOCK, encoding="utf-8") as file:
            locks = json.load(file)
        holders = [
            *locks["write"].values(),
            *(holder for holders_of_path in locks["read"].values() for holder in holders_of_path),
        ]
        return sorted({holder["pid"] for holder in holders if _is_dvc(holder["pid"])})
    return []


def _is_dvc(process: int) -> bool:
    """Whether the process with this number is one of DVC: the system uses numbers again."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return b"dvc" in file.read()
    except OSError:
        return False
