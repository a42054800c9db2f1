"""The command of `make repro`: `python -IS pipelines/launching/reproduce.py [STUDY]`; one per folder, ended with
`make`.

It becomes `dvc repro`: the lock stays with that process, and the kernel releases it when the process ends for any
reason.
"""

# ruff: noqa: PTH103, PTH123
# pathlib would take longer to import than all of this.

import ctypes
import fcntl
import json
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

FOLDER = ".fedweave"
LOCK = f"{FOLDER}/repro.lock"
DVC_LOCK = ".dvc/tmp/rwlock"  # JSON: which process reads and writes what
PR_SET_PDEATHSIG = 1
BUSY = "error: another run is active in this folder (process {}); wait until it has ended, then start this one again"


def main(study: str = "") -> NoReturn:
    """Bring params.yaml's study up to date, after switching to `study` if one is named."""
    _end_with_parent()
    _lock()
    if study:
        command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "study", "use", study]
        _, status = os.waitpid(os.posix_spawn(sys.executable, command, os.environ), 0)
        if status:
            sys.exit(os.waitstatus_to_exitcode(status))
    os.execv(sys.executable, [sys.executable, "-m", "dvc", "repro"])


def _end_with_parent() -> None:
    """Let the kernel end this process, and what it becomes, when its parent ends (Linux; elsewhere nothing)."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def _lock() -> None:
    """Be the only one in this folder, or end with one line that names the other."""
    os.makedirs(FOLDER, exist_ok=True)
    handle = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(BUSY.format(os.read(handle, 32).decode() or "unknown"))
    for process in _busy():
        sys.exit(BUSY.format(process))
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    os.set_inheritable(handle, True)


def _busy() -> list[int]:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
