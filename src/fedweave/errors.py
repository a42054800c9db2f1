"""The exceptions that users see."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType

MAX_SUGGESTIONS = 4  # names that a message suggests
MAX_MESSAGE_LENGTH = 4000  # characters of a message
MAX_VALUE_LENGTH = 200  # characters of a value in a message


class BadInput(ValueError):
    """A wrong key, value or file: one line that names it, its value and how to fix it.

    Attributes:
        place: the address of what is wrong, such as "params.yaml: runs.a.train.lr", "methods" or a path. An error of
            one text alone has that text as its place.
        problem: the value, what is wrong with it, and the way out.
    """

    def __init__(self, place: str | Path, problem: str = "") -> None:
        self.place, self.problem = str(place), problem
        separator = ": " if self.place and problem and not self.place.endswith(" ") else ""
        # A quoted error of a library may have several lines, and a path thousands of characters.
        words = (_shorten(word, MAX_VALUE_LENGTH) for word in f"{place}{separator}{problem}".split())
        super().__init__(_shorten(" ".join(words), MAX_MESSAGE_LENGTH))

    def move(self, places: Mapping[str, str]) -> "BadInput":
        """This error as a surface shows it that has other places, such as options of a command for keys of a file.

        Args:
            places: beginning of a place -> the beginning that replaces it. The longest one counts, and "" is the
                beginning of every place. What follows keeps its dot or colon, except after nothing and after a space.

        >>> str(BadInput("params.yaml: runs.a.train.lr", "-1 is too small").move({"params.yaml: runs.a": "--set "}))
        '--set train.lr: -1 is too small'
        """
        for old in sorted(places, key=len, reverse=True):
            rest = self.place[len(old) :]
            if self.place.startswith(old) and (not old or rest[:1] in ("", ".", ":")):
                new = places[old]
                return type(self)(new + (rest.lstrip(".: ") if new[-1:] in ("", " ") else rest), self.problem)
        return self


class Busy(BadInput):
    """Another run is active in the folder: nothing is wrong with the input, and the same command works later."""


def exit_code(error: BadInput) -> int:
    """The exit code of a command that ends with `error`: 2 for wrong input, 1 where another run is active."""
    return 1 if isinstance(error, Busy) else 2


def format_value(value: object) -> str:
    """`value` as a message shows it: its `repr`, without the middle where that is long; the name of code."""
    if isinstance(value, type | FunctionType):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    if isinstance(value, int) and value.bit_length() > 4 * MAX_VALUE_LENGTH:
        return f"a whole number of about {int(value.bit_length() * 0.30103) + 1} digits"
    try:
        return _shorten(repr(value), MAX_VALUE_LENGTH)
    except (ValueError, RecursionError):  # Python prints no whole number of more than 4300 digits
        return f"a {type(value).__name__} that cannot be printed"


def format_count(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular.

    >>> format_count(1, "row"), format_count(3, "row"), format_count(0, "entry"), format_count(4, "day")
    ('1 row', '3 rows', '0 entries', '4 days')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def first_line(error: object) -> str:
    """The first line of a library's error, as a message quotes it; the name of its type where it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_VALUE_LENGTH]


def describe_error(error: Exception) -> str:
    """The type of a library's error and its first line."""
    name = type(error).__name__
    return f"{name}: {first_line(error)}" if str(error).strip() else name


def _shorten(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def relocate(places: Mapping[str, str]) -> Iterator[None]:
    """Context in which every `BadInput` moves to its place in `places`; see `BadInput.move`."""
    try:
        yield
    except BadInput as error:
        moved = error.move(places)
        if moved is error:
            raise
        raise moved from error


class Diverged(RuntimeError):
    """Training gave numbers that are not finite; the message names run, seed, round and how to avoid it.

    Attributes:
        place, problem: as of `BadInput`; the problem is without the remedy.
    """

    def __init__(self, place: str, problem: str = "", remedy: str = "") -> None:
        self.place, self.problem = place, problem
        super().__init__(": ".join(filter(None, [place, "; ".join(filter(None, [problem, remedy]))])))


class ContestantFailed(Diverged):
    """Code from elsewhere gave no predictions that can be scored; the message is one line."""

    def __init__(self, place: str, problem: str = "", remedy: str = "") -> None:
        words = (" ".join(text.split()) for text in (place, problem, remedy))
        super().__init__(*(_shorten(text, MAX_MESSAGE_LENGTH) for text in words))


def choose(
    value: str, choices: Iterable[str], key: str, command: str = "", words: Mapping[str, str] | None = None
) -> str:
    """Return `value` if it is one of `choices`.

    Args:
        command: shows all choices; the message names it where there are more than a few.
        words: of others -> the choice that they mean.

    Raises:
        BadInput: naming `key`, the value, similar choices and all choices, or the command.
    """
    options = sorted(choices)
    if value in options:
        return value
    hint = suggest(str(value), options, MAX_SUGGESTIONS if command else 1)
    if (meant := (words or {}).get(str(value))) in options:
        hint = f"did you mean {meant!r}? "
    rest = f"choices: {', '.join(options)}" if options else "there are no choices"
    if command and len(options) > MAX_SUGGESTIONS:
        rest = f"all {len(options)} are listed by: {command}"
    raise BadInput(key, f"{format_value(value)} is unknown; {hint}{rest}")


def suggest(value: str, choices: Iterable[str], count: int = 1) -> str:
    """A question that suggests choices: at most `count` that are spelled like `value`, and those that contain it.

    Empty if there is none.
    """
    options, text = sorted(choices), value[:MAX_VALUE_LENGTH]
    containing = [name for name in options if len(text) > 1 and text.lower() in name.lower()]
    suggestions = [*dict.fromkeys([*difflib.get_close_matches(text, options, n=count), *containing])][:MAX_SUGGESTIONS]
    return f"did you mean {' or '.join(map(repr, suggestions))}? " if suggestions else ""
