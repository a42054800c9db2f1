"""The exceptions a user is meant to read."""

import difflib
from collections.abc import Iterable

NEAR = 4  # most names that are offered in place of one
LONGEST = 4000  # characters of a message
LONGEST_VALUE = 200  # characters of a value in a message


class BadInput(ValueError):
    """A wrong key, value or file: one line that names it, its value and the way out."""

    def __init__(self, message: str) -> None:
        # What a library says in passing may have lines
        words = (_shorten(word, LONGEST_VALUE) for word in message.split())  # a path may have thousands of characters
        super().__init__(_shorten(" ".join(words), LONGEST))


def format_value(value: object) -> str:
    """`value` as a message shows it: its `repr`, without the middle where that is long."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST_VALUE:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        return _shorten(repr(value), LONGEST_VALUE)
    except (ValueError, RecursionError):  # Python prints no whole number of more than 4300 digits
        return f"a {type(value).__name__} that cannot be printed"


def _shorten(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


class Diverged(RuntimeError):
    """Training left the finite numbers; the message names run, seed, round and the way out."""


def choose(value: str, choices: Iterable[str], key: str, command: str = "") -> str:
    """Return `value` if it is one of `choices`.

    Args:
        command: that lists all choices, where these are too many for a message.

    Raises:
        BadInput: naming `key`, the value, similar choices and all choices, or the command.
    """
    options = sorted(choices)
    if value in options:
        return value
    hint = suggest(str(value), options, NEAR if command else 1)
    rest = f"all {len(options)} are listed by: {command}" if command else f"choices: {', '.join(options) or 'none'}"
    raise BadInput(f"{key}: {format_value(value)} is unknown; {hint}{rest}")


def suggest(value: str, choices: Iterable[str], count: int = 1) -> str:
    """A question for those of the `choices` that look like `value`, at most `count`, or hold it; "" if none does."""
    options, typed = sorted(choices), value[:LONGEST_VALUE]
    holding = [name for name in options if len(typed) > 1 and typed.lower() in name.lower()]
    near = [*dict.fromkeys([*difflib.get_close_matches(typed, options, n=count), *holding])][:NEAR]
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""
