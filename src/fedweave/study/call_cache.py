"""A cache of calls that read files, for a block of code in which no file changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_RESULTS: ContextVar[dict[tuple[object, ...], Any] | None] = ContextVar("results", default=None)


@contextmanager
def cache_calls() -> Iterator[None]:
    """A block in which no file changes, so that `call_once` keeps results. An inner block uses those
    of the outer block.
    """
    if _RESULTS.get() is not None:
        yield
        return
    token = _RESULTS.set({})
    try:
        yield
    finally:
        _RESULTS.reset(token)


def call_once(function: Callable[..., T], *arguments: object) -> T:
    """The result of `function` for `arguments`; in a block of `cache_calls` it is called once for equal arguments."""
    results = _RESULTS.get()
    if results is None:
        return function(*arguments)
    key = (function, *arguments)  # hashed once where the result is known: paths take most of the time
    try:
        stored: T = results[key]
    except KeyError:
        stored = results[key] = function(*arguments)
    return stored
