"""The exceptions that users see."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_SUGGESTIONS = 4  # names that a message suggests
MAX_MESSAGE_LENGTH = 4000  # characters of a message
MAX_VALUE_LENGTH = 200  # characters of a value in a message


class BadInput(ValueError):
    """A wrong key, value or file: one line that names it, its value and how to fix it."""

    def __init__(self, message: str) -> None:
        # A quoted error of a library may have several lines, and a path thousands of characters.
        words = (_shorten(word, MAX_VALUE_LENGTH) for word in message.split())
        super().__init__(_shorten(" ".join(words), MAX_MESSAGE_LENGTH))


class Busy(BadInput):
    """Another run is active in the folder: nothing is wrong with the input, and the same command works later."""


def exit_code(error: BadInput) -> int:
    """The exit code of a command that ends with `error`: 2 for wrong input, 1 where another run is active."""
    return 1 if isinstance(error, Busy) else 2


def format_value(value: object) -> str:
    """`value` as a message shows it: its `repr`, without the middle where that is long."""
    if isinstance(value, int) and value.bit_length() > 4 * MAX_VALUE_LENGTH:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        return _shorten(repr(value), MAX_VALUE_LENGTH)
    except (ValueError, RecursionError):  # Python prints no whole number of more than 4300 digits
        return f"a {type(value).__name__} that cannot be printed"


def format_count(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular.

    >>> format_count(1, "row"), format_count(3, "row"), format_count(2, "class"), format_count(0, "entry")
    ('1 row', '3 rows', '2 classes', '0 entries')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def _shorten(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def prefix_errors(prefix: str, *starts: str) -> Iterator[None]:
    """Context in which messages of `BadInput` that begin with one of `starts` get a `prefix`, such as their file."""
    try:
        yield
    except BadInput as error:
        if str(error).startswith(starts):
            raise BadInput(f"{prefix}{error}") from error
        raise


class Diverged(RuntimeError):
    """Training gave numbers that are not finite; the message names run, seed, round and how to avoid it."""


def choose(value: str, choices: Iterable[str], key: str, command: str = "") -> str:
    """Return `value` if it is one of `choices`.

    Args:
        command: shows all choices; the message names it where there are more than a few.

    Raises:
        BadInput: naming `key`, the value, similar choices and all choices, or the command.
    """
    options = sorted(choices)
    if value in options:
        return value
    hint = suggest(str(value), options, MAX_SUGGESTIONS if command else 1)
    is_long = command and len(options) > MAX_SUGGESTIONS
    rest = f"all {len(options)} are listed by: {command}" if is_long else f"choices: {', '.join(options) or 'none'}"
    raise BadInput(f"{key}: {format_value(value)} is unknown; {hint}{rest}")


def suggest(value: str, choices: Iterable[str], count: int = 1) -> str:
    """A question that suggests choices: at most `count` that are spelled like `value`, and those that contain it.

    Empty if there is none.
    """
    options, text = sorted(choices), value[:MAX_VALUE_LENGTH]
    containing = [name for name in options if len(text) > 1 and text.lower() in name.lower()]
    suggestions = [*dict.fromkeys([*difflib.get_close_matches(text, options, n=count), *containing])][:MAX_SUGGESTIONS]
    return f"did you mean {' or '.join(map(repr, suggestions))}? " if suggestions else ""
