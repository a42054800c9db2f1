"""The command of `make repro`: `python -IS pipelines/launching/reproduce.py [STUDY]`; one per folder, ended with
`make`.

It starts `dvc repro`, shows one line for each stage that it runs, and then becomes `board`. DVC ends with this process,
and holds the lock as long as it lives; the kernel releases it when both have ended for any reason. What DVC and the
stages say is kept in .fedweave/repro.log.
"""

# ruff: noqa: PTH100, PTH103, PTH107, PTH120, PTH123
# pathlib would take longer to import than all of this.

import ctypes
import fcntl
import json
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # without the package, whose import takes longer
import lines  # isort: skip

FOLDER = ".fedweave"
LOCK = f"{FOLDER}/repro.lock"
LOG = f"{FOLDER}/repro.log"
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
    begun = time.time()
    status = _follow(*_start([sys.executable, "-m", "dvc", "repro"]))
    if status:
        os._exit(status if status > 0 else 128 - status)
    os.execv(sys.executable, [sys.executable, "-m", "fedweave.pipelines.launching.board", str(begun)])


def _start(command: list[str]) -> tuple[int, int, int]:  # noqa: RET503  # what is executed does not return
    """Start `command`, which ends with this process; its number, and the pipes of its output and its errors."""
    mine = os.getpid()
    output, errors = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(output[1])
        os.close(errors[1])
        return child, output[0], errors[0]
    _end_with(mine)
    os.dup2(output[1], 1)
    os.dup2(errors[1], 2)
    os.execve(command[0], command, {**os.environ, "PYTHONUNBUFFERED": "1"})


def _follow(child: int, output: int, errors: int) -> int:
    """Show what `child` says until it ends; returns its exit code, below zero for a signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all: this one ends after DVC
    with open("params.yaml", encoding="utf-8") as file:
        view = lines.View(sys.stdout, sys.stderr, lines.count(file.read()))
    selector, rest = selectors.DefaultSelector(), {output: b"", errors: b""}
    with open(LOG, "wb") as log:
        for pipe, show in ((output, view.output), (errors, view.error)):
            selector.register(pipe, selectors.EVENT_READ, show)
        while selector.get_map():
            view.wait()
            for key, _ in selector.select(lines.NEWS):
                content = os.read(key.fd, 65536)
                log.write(content)
                log.flush()
                *whole, rest[key.fd] = (rest[key.fd] + content).split(b"\n")
                for line in [*whole, *([] if content else [rest[key.fd]])]:
                    key.data(line.decode(errors="replace"))
                if not content:
                    selector.unregister(key.fd)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    view.end(status)
    return status


def _end_with_parent() -> None:
    """Let the kernel end this process, and what it becomes, when its parent ends (Linux; elsewhere nothing)."""
    _end_with(os.getppid())


def _end_with(parent: int) -> None:
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
    if sys.platform == "linux":
        with suppress(FileNotFoundError):  # DVC would also respect a killed process that nobody has reaped
            os.remove(DVC_LOCK)
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
