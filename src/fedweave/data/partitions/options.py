"""Checks of options: by the description at their parameter, or against a bound that the data set gives."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fedweave.errors import BadInput, choose, format_value
from fedweave.settings import Setting


def check_integer(key: str, value: Any, low: int, high: int | None = None, block: str = "partition") -> int:
    """`value` of `key` in `block` if it is an integer in [low, high].

    Raises:
        BadInput: otherwise.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= low and (high is None or value <= high):
        return int(value)
    bound = f"{low} or more" if high is None else f"between {low} and {high}"
    if value is None:
        raise BadInput(f"{block}.{key}: missing; give an integer, {bound}")
    raise BadInput(f"{block}.{key}: {format_value(value)} must be an integer, {bound}")


def check_option(setting: Setting, value: Any, key: str) -> None:
    """Refuse a value that is not of the type of `setting`, or out of its bounds.

    Where the setting has several types besides None, only the bounds are checked.

    Raises:
        BadInput: naming `key`, the value and what it must be.
    """
    union = get_origin(setting.type) in (Union, UnionType)
    kinds = get_args(setting.type) if union else (setting.type,)
    if value is None and NoneType in kinds:
        return
    types = [kind for kind in kinds if kind is not NoneType]
    kind = types[0] if len(types) == 1 else Any
    if get_origin(kind) is Literal:
        choose(str(value), get_args(kind), key)
    elif kind in NAMES and not _has_type(value, kind):
        raise BadInput(f"{key}: {format_value(value)} must be {NAMES[kind]}")
    elif get_origin(kind) is not Mapping:
        setting.check_bounds(value, key)


NAMES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false"}


def _has_type(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, int if kind is int else int | float)
