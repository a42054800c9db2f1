"""How a process that this program starts reacts to signals."""

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
# Loaded here, because a program with threads must not import anything between fork and exec.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process signal `number` when its parent ends for any reason (Linux only)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)


@contextmanager
def block_interrupts() -> Iterator[None]:
    """A process that is started in this block ignores Ctrl-C, so it prints no traceback; its parent ends it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
