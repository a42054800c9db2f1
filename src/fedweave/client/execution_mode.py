"""How stacked clients are computed, for code far below the executor."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutionMode:
    """How stacked steps run: by a `kernel`, client after client; `recorded` as a CUDA graph, on a GPU.

    `alone`: what the kernel does not cover raises `NotCovered`, because the client is better computed without a stack.
    """

    kernel: bool = False
    recorded: bool = False
    alone: bool = False


class NotCovered(Exception):
    """The kernel does not cover what a client computes."""


PLAIN = ExecutionMode()
_MODE: ContextVar[ExecutionMode] = ContextVar("mode", default=PLAIN)


@contextmanager
def use_mode(mode: ExecutionMode) -> Iterator[None]:
    """Run stacked steps in `mode` inside this block."""
    token = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(token)


def current_mode() -> ExecutionMode:
    """The mode of the innermost block."""
    return _MODE.get()
