"""The table of methods; a class enters it by a decorator at its definition."""

from collections.abc import Callable
from typing import TypeVar

from fedweave.errors import BadInput
from fedweave.federation.protocol import Method
from fedweave.registry import check_name, register

M = TypeVar("M", bound=Method)

METHODS: dict[str, type[Method]] = {}


def method(name: str) -> Callable[[type[M]], type[M]]:
    """Enter the decorated class as the method `name`.

    Raises:
        BadInput: on decorating what is no complete `Method`, or a second class for the same name.
    """
    check_name("method", name)

    def enter(cls: type[M]) -> type[M]:
        if not (isinstance(cls, type) and issubclass(cls, Method)):
            raise BadInput(f"method {name!r}: {cls!r} is no method; derive it from fedweave.federation.protocol.Method")
        if missing := sorted(cls.__abstractmethods__):
            raise BadInput(f"method {name!r}: {cls.__name__} has no {', '.join(missing)}; define what a round needs")
        if not isinstance(getattr(cls, "label", None), str):
            raise BadInput(f'method {name!r}: {cls.__name__} has no label; add what tables call it: label = "{name}"')
        register(METHODS, "method", name, cls)
        return cls

    return enter
