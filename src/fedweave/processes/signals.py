"""How a process that this program starts reacts to signals."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
# Loaded here, because a program with threads must not import anything between fork and exec.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process signal `number` when its parent ends for any reason (Linux only)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number)


@contextmanager
def block_interrupts() -> Iterator[None]:
    """A process that is started in this block ignores Ctrl-C, so it prints no traceback; its parent ends it.

    In this process Ctrl-C takes effect at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with _delay_interrupts():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Note Ctrl-C in this block, and raise it at the end.

    The mask is of one thread, and another one may receive the signal. Its exception would be raised wherever the main
    thread is: in a function that Python calls on a fork it would be printed and lost.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def end_group(process: "subprocess.Popen[Any]", grace: float, number: int = signal.SIGTERM) -> None:
    """End a process that leads a session, and all that it started: by a signal, and SIGKILL after `grace` seconds."""
    signal_group(process, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: "subprocess.Popen[Any]", number: int) -> None:
    """Send a signal to a process that leads a session, and to all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
