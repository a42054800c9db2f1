"""Answers about files that stay in memory for as long as no file changes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_ANSWERS: ContextVar[dict[tuple[object, ...], Any] | None] = ContextVar("answers", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """A block in which no file changes, so that each question is answered once."""
    token = _ANSWERS.set({})
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def at_once() -> AbstractContextManager[None]:
    """A block that is quick enough for no file to change in it; within another block it goes on with its answers."""
    return unchanged() if _ANSWERS.get() is None else nullcontext()


def answer(question: Callable[..., T], *words: object) -> T:
    """What `question` answers to `words`, inside of such a block without asking twice."""
    answers = _ANSWERS.get()
    if answers is None:
        return question(*words)
    if (question, *words) not in answers:
        answers[question, *words] = question(*words)
    stored: T = answers[question, *words]
    return stored
