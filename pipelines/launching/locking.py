"""The lock of a folder: one command at a time writes params.yaml and dvc.lock, or runs stages between them.

The kernel releases it when every process that has its handle has ended for any reason. A command hands it on to a
process that it starts, by the number of the handle.
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
HANDED = "FEDWEAVE_LOCK"  # environment: the number of an inherited handle
BUSY = "another run is active in this folder (process {}); wait until it has ended, then start this one again"


class LockError(Exception):
    """Another command has the lock; the line names its process."""


def acquire() -> int:
    """Be the only one in this folder, as long as the handle that this returns is open here or in a child.

    Raises:
        Busy: another one is.
    """
    if (handle := _inherited_handle()) is not None:
        return handle
    os.makedirs(FOLDER, exist_ok=True)
    handle = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock_exclusively(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def pass_to_child(handle: int) -> dict[str, str]:
    """The environment of a child that inherits the lock."""
    os.set_inheritable(handle, True)
    return {**os.environ, HANDED: str(handle)}


def _inherited_handle() -> int | None:
    """The handle that the parent has handed on; the children of this process get none without being asked."""
    with suppress(KeyError, ValueError, OSError):
        handle = int(os.environ.pop(HANDED))
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
        with suppress(FileNotFoundError):  # DVC would also respect a killed process that nobody has reaped
            os.remove(DVC_LOCK)
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())


def _dvc_processes() -> list[int]:
    """Processes that run a stage by DVC itself or by a flow."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        with open(DVC_LOCK, encoding="utf-8") as file:
            locks = json.load(file)
        holders = [*locks["write"].values(), *(one for many in locks["read"].values() for one in many)]
        return sorted({one["pid"] for one in holders if _is_dvc(one["pid"])})
    return []


def _is_dvc(process: int) -> bool:
    """Whether `process` still is one that DVC's lock can mean: numbers of processes are used again."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return b"dvc" in file.read()
    except OSError:
        return False
