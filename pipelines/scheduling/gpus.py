"""Locks on the GPUs of this host, so that one training stage at a time uses each.

The kernel releases the lock on a file when its process ends for any reason, so that a crash leaves no GPU unused. The
locks hold for every flow, worker and user of the host, with or without a server.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedweave.files.atomic import try_lock

POLL = 0.5  # seconds between two searches for a free GPU


def visible_devices() -> tuple[str, ...]:
    """The host's GPUs as CUDA_VISIBLE_DEVICES names them; empty without GPUs.

    They are those of FEDWEAVE_GPUS, else of CUDA_VISIBLE_DEVICES, else all that the driver shows. A name that is listed
    twice is for two stages at once.
    """
    for variable in ("FEDWEAVE_GPUS", "CUDA_VISIBLE_DEVICES"):
        value = os.environ.get(variable)
        if value is not None:
            return tuple(name.strip() for name in value.split(",") if name.strip())
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return tuple(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split())
    return ()


@contextmanager
def acquire_gpu(names: Sequence[str], wait: Callable[[float], object] = time.sleep) -> Iterator[str]:
    """Lock one of the GPUs `names` as soon as one is free; `wait` is called between attempts, and may raise to stop."""
    while (gpu := _lock_free_gpu(names)) is None:
        wait(POLL)
    name, lock = gpu
    try:
        yield name
    finally:
        os.close(lock)


def _lock_free_gpu(names: Sequence[str]) -> tuple[str, int] | None:
    """A GPU that was free and the file handle that now locks it; None if all are locked."""
    for position, name in enumerate(names):
        lock = _open(_lock_folder() / f"{name.replace('/', '_')}.{names[:position].count(name)}")
        if try_lock(lock):
            return name, lock
        os.close(lock)
    return None


def _lock_folder() -> Path:
    """The folder of lock files, which all users of this host share; the project's folder may be shared by hosts."""
    folder = Path(os.environ.get("FEDWEAVE_LOANS", Path(tempfile.gettempdir(), "fedweave-gpus")))
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):
        folder.chmod(0o1777)
    return folder


def _open(path: Path) -> int:
    # Without O_CREAT first: kernels refuse it for another user's file in a folder that all users may write to.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY)
    handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    with suppress(PermissionError):  # another user has just created it
        os.fchmod(handle, 0o644)  # a umask such as 077 would keep other users from opening it
    return handle
