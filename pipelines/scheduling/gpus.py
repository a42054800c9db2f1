"""The GPUs of this host, lent to one training stage at a time.

A loan is a lock on a file: the kernel releases it when the borrower ends for any reason, so that a crash leaves no
GPU unused. Every flow, worker and user of the host takes part, with or without a server.
"""

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

POLL = 0.5  # seconds between two looks for a free GPU


def visible_devices() -> tuple[str, ...]:
    """The host's GPUs as CUDA_VISIBLE_DEVICES names them; empty without GPUs.

    What FEDWEAVE_GPUS lists, else CUDA_VISIBLE_DEVICES, else all that the driver shows. A name that is listed twice is
    lent to two stages at once.
    """
    for variable in ("FEDWEAVE_GPUS", "CUDA_VISIBLE_DEVICES"):
        listed = os.environ.get(variable)
        if listed is not None:
            return tuple(name.strip() for name in listed.split(",") if name.strip())
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return tuple(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split())
    return ()


@contextmanager
def acquire_gpu(names: Sequence[str], wait: Callable[[float], object] = time.sleep) -> Iterator[str]:
    """One of `names`, alone, as soon as one is free; `wait` is called between attempts and may raise to stop
    waiting.
    """
    while (loan := _lock_free_gpu(names)) is None:
        wait(POLL)
    name, lock = loan
    try:
        yield name
    finally:
        os.close(lock)


def _lock_free_gpu(names: Sequence[str]) -> tuple[str, int] | None:
    """A GPU that nobody has borrowed and the file handle that now locks it."""
    for place, name in enumerate(names):
        lock = _open(_lock_folder() / f"{name.replace('/', '_')}.{names[:place].count(name)}")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return name, lock
    return None


def _lock_folder() -> Path:
    """A folder of this host that all its users share; not the project's, which hosts may share."""
    folder = Path(os.environ.get("FEDWEAVE_LOANS", Path(tempfile.gettempdir(), "fedweave-gpus")))
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):
        folder.chmod(0o1777)
    return folder


def _open(path: Path) -> int:
    # Without O_CREAT first: kernels refuse it for another user's file in a folder that all users may write to.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
