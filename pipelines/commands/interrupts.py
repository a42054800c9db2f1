"""What Ctrl-C leaves of a training in a folder, in one line."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ..processes import restore_interrupts

STORED = ("run.json", "checkpoints/*/[!.]*")  # a finished run, and what an unfinished one goes on from


@contextmanager
def explain_interrupt(folder: Path, resume: bool = True) -> Iterator[None]:
    """Context of a training into `folder`: Ctrl-C ends it with one line on stderr and exit code 130.

    Args:
        resume: whether the same command goes on from what is stored; else it begins again.
    """
    try:
        with restore_interrupts():
            yield
    except KeyboardInterrupt:
        print(_describe(folder, resume), file=sys.stderr)
        raise typer.Exit(128 + signal.SIGINT) from None


def _describe(folder: Path, resume: bool) -> str:
    if not any(next(folder.rglob(pattern), None) for pattern in STORED):
        return f"stopped: {folder} has no round of it yet; the same command begins again"
    command = "the same command" if resume else "the same command without --no-resume"
    return f"stopped: {folder} has what is finished and the last checkpoints; {command} goes on from there"
