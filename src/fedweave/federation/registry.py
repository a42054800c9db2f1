"""Tables of what a name in a study stands for; a class enters one by a decorator at its definition."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedweave.errors import BadInput
from fedweave.federation.protocol import Method

M = TypeVar("M", bound=Method)

METHODS: dict[str, type[Method]] = {}


def method(name: str) -> Callable[[type[M]], type[M]]:
    """Enter the decorated class as the method `name`.

    Raises:
        BadInput: on decorating what is no `Method`, or a second class for the same name.
    """

    def enter(cls: type[M]) -> type[M]:
        if not (isinstance(cls, type) and issubclass(cls, Method)):
            raise BadInput(f"method {name!r}: {cls!r} is no method; derive it from fedweave.federation.protocol.Method")
        register(METHODS, "method", name, cls)
        return cls

    return enter


def register(table: dict[str, Any], kind: str, name: str, cls: type) -> None:
    """Enter `cls` in `table`. A class that is defined anew, as in a notebook, replaces itself.

    Raises:
        BadInput: another class has the name; the message names both files.
    """
    if name in table and _origin(table[name]) != _origin(cls):
        first, second = (_origin(known)[0] for known in (table[name], cls))
        raise BadInput(f"{kind} {name!r} is defined twice, in {first} and in {second}; rename one of them")
    table[name] = cls


def _origin(cls: type) -> tuple[str, str]:
    """The file that defines `cls`, or its module where there is none, and its name in it."""
    try:
        return str(Path(inspect.getfile(cls)).resolve()), cls.__qualname__
    except (OSError, TypeError):
        return cls.__module__, cls.__qualname__
