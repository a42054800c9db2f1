"""Checks of single options: each returns the value, or raises one line with key, value and bounds."""

from typing import Any

from fedweave.errors import BadInput


def integer(key: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` if it is an integer in [low, high].

    Raises:
        BadInput: otherwise.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= low and (high is None or value <= high):
        return value
    bound = f"{low} or more" if high is None else f"between {low} and {high}"
    raise BadInput(f"partition.{key}: {value!r} must be an integer, {bound}")


def real(key: str, value: Any, low: float, high: float | None = None) -> float:
    """`value` as a float if it is a number above `low` and, if given, at most `high`.

    Raises:
        BadInput: otherwise.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value > low and (high is None or value <= high):
        return float(value)
    bound = f"above {low:g}" if high is None else f"above {low:g} and at most {high:g}"
    raise BadInput(f"partition.{key}: {value!r} must be a number {bound}")


def flag(key: str, value: Any) -> bool:
    """`value` if it is true or false.

    Raises:
        BadInput: otherwise.
    """
    if isinstance(value, bool):
        return value
    raise BadInput(f"partition.{key}: {value!r} must be true or false")
