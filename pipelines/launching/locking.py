"""The lock of a folder: one command at a time writes params.yaml and dvc.lock, or runs stages between them.

The kernel releases the lock when every process that has its handle has ended, for any reason.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedweave.errors import Busy
from fedweave.files.atomic import check_writable, try_lock

from ..paths import STATE

LOCK = STATE / "repro.lock"
DVC_LOCK = Path(".dvc/tmp/rwlock")  # JSON: which process reads and writes what
BUSY = "another run is active in this folder (process {}); wait until it has ended, then start this one again"


@contextmanager
def hold() -> Iterator[int]:
    """Hold the lock of this folder; yields its handle, with which a child can hold it too.

    Raises:
        Busy: another command has the lock, or DVC runs a stage; the message names its process.
        BadInput: the folder cannot be written.
        OSError: the disk is full.
    """
    check_writable(LOCK.parent)
    with LOCK.open("a+", encoding="utf-8") as file:
        if not try_lock(file):
            file.seek(0)
            raise Busy(BUSY.format(file.read(32) or "unknown"))
        for process in _dvc_processes():
            raise Busy(BUSY.format(process))
        if sys.platform == "linux":  # DVC would wait for a killed process as long as it is a zombie
            DVC_LOCK.unlink(missing_ok=True)
        file.truncate(0)
        try:
            file.write(str(os.getpid()))
            file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(LOCK)) from error
        yield file.fileno()


def busy_line() -> str:
    """The message where DVC runs a stage in this folder, with the number of its process."""
    return BUSY.format(next(iter(_dvc_processes()), "unknown"))


def _dvc_processes() -> list[int]:
    """Numbers of the processes that hold DVC's lock, because DVC or a flow runs a stage."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        locks = json.loads(DVC_LOCK.read_text(encoding="utf-8"))
        holders = [
            *locks["write"].values(),
            *(holder for holders_of_path in locks["read"].values() for holder in holders_of_path),
        ]
        return sorted({holder["pid"] for holder in holders if _is_dvc(holder["pid"])})
    return []


def _is_dvc(process: int) -> bool:
    """Whether the process with this number is one of DVC: the system uses numbers again."""
    try:
        return b"dvc" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
