"""The exceptions a user is meant to read."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """A wrong key, value or file: one line that names it, its value and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # what a library says in passing may have lines


class Diverged(RuntimeError):
    """Training left the finite numbers; the message names run, seed, round and the way out."""


def choose(value: str, choices: Iterable[str], key: str) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        BadInput: naming `key`, the value, the nearest choice and all of them.
    """
    known = sorted(choices)
    if value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(f"{key}: {value!r} is unknown; {hint}choices: {', '.join(known)}")
