"""Answers about files that stay in memory for as long as no file changes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

Answers = dict[tuple[object, ...], tuple[Path, ...]]
_ANSWERS: ContextVar[Answers | None] = ContextVar("answers", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """A block in which no file changes, so that each question is answered once, also in blocks inside of it."""
    if _ANSWERS.get() is not None:
        yield
        return
    token = _ANSWERS.set({})
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def answer(question: Callable[..., Iterable[Path]], *words: object) -> Iterable[Path]:
    """What `question` answers to `words`, inside of such a block without asking twice."""
    answers = _ANSWERS.get()
    if answers is None:
        return question(*words)
    if (question, *words) not in answers:
        answers[question, *words] = tuple(question(*words))
    return answers[question, *words]
