"""The exceptions a user is meant to read."""

import difflib
from collections.abc import Iterable

NEAR = 4  # most names that are offered in place of one


class BadInput(ValueError):
    """A wrong key, value or file: one line that names it, its value and the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # what a library says in passing may have lines


class Diverged(RuntimeError):
    """Training left the finite numbers; the message names run, seed, round and the way out."""


def choose(value: str, choices: Iterable[str], key: str) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        BadInput: naming `key`, the value, the choices that it may stand for and all of them.
    """
    known = sorted(choices)
    if value in known:
        return value
    typed = str(value)
    holding = [name for name in known if len(typed) > 1 and typed.lower() in name.lower()]
    near = [*dict.fromkeys([*difflib.get_close_matches(typed, known, n=1), *holding])][:NEAR]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise BadInput(f"{key}: {value!r} is unknown; {hint}choices: {', '.join(known)}")
