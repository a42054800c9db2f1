"""The table of methods; a class enters it by a decorator at its definition."""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from fedweave.engine.hook_names import check_hooks
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput, format_value
from fedweave.registry import check_name, definition, register, users_file
from fedweave.settings import REQUIRED

M = TypeVar("M", bound=Method)

BUILT_IN = Path(__file__).resolve().parent.parent / "methods"  # the folder with a file for each built-in method

METHODS: dict[str, type[Method]] = {}


def find_name(name: str) -> str:
    """The name in the table that is `name` but for capitals, - and _; `name` itself if there is none.

    >>> from fedweave.methods import METHODS
    >>> find_name("SCAFFOLD"), find_name("FedAvg-FT"), find_name("FedFoo")
    ('scaffold', 'fedavg_ft', 'FedFoo')
    """
    plain = name.lower().replace("-", "").replace("_", "")
    return name if name in METHODS else next((key for key in METHODS if key.replace("_", "") == plain), name)


def method(name: str) -> Callable[[type[M]], type[M]]:
    """A decorator that enters a class in the table as the method `name`.

    Raises:
        BadInput: the class is not a complete `Method` and frozen dataclass, or the name belongs to another class.
    """
    check_name("method", name)
    own_file = BUILT_IN / f"{name}.py"

    def enter(cls: type[M]) -> type[M]:
        if not (isinstance(cls, type) and issubclass(cls, Method)):
            advice = "derive it from fedweave.engine.protocol.Method"
            raise BadInput(f"method {name!r}: {format_value(cls)} is not a method; {advice}")
        if missing := sorted(cls.__abstractmethods__):
            raise BadInput(f"method {name!r}: {cls.__name__} has no {', '.join(missing)}; define what a round needs")
        if not isinstance(getattr(cls, "label", None), str):
            raise BadInput(f'method {name!r}: {cls.__name__} has no label; add what tables call it: label = "{name}"')
        _check_fields(cls, f"method {name!r}: {cls.__name__}")
        if users_file(cls):
            check_hooks(cls)
        # The built-in methods may be imported later. Their files tell their names.
        if own_file.is_file() and (file := definition(cls)[0]) != str(own_file):
            raise BadInput(f"method {name!r} is defined twice, in {own_file} and in {file}; rename yours")
        register(METHODS, "method", name, cls)
        return cls

    return enter


def _check_fields(cls: type[Method], where: str) -> None:
    """Refuse a class whose own settings would not be fields, or would take the place of what a run sets."""
    annotations = {*vars(cls).get("__annotations__", ())}
    if annotations and "__dataclass_params__" not in vars(cls):
        raise BadInput(f"{where} is not a frozen dataclass; add @dataclass(frozen=True, kw_only=True) below @fw.method")
    if taken := sorted(field.name for field in fields(Method) if field.name in annotations & {*vars(cls)}):
        raise BadInput(where, f"{taken[0]} is set by the run; give the setting another name")
    if cls.point not in ("pre", "post"):
        raise BadInput(where, f"point is {format_value(cls.point)}; choose 'pre' or 'post'")
    for setting in cls.settings():
        if setting.default is REQUIRED:
            raise BadInput(
                where,
                f"the setting {setting.name} has no default, from which a comparison starts; "
                f"write {setting.name}: TYPE = DEFAULT",
            )
        # None and infinity are what authors write for "none" and "no limit", also where the type is a number.
        if setting.name in annotations and setting.default not in (None, math.inf):
            setting.check(setting.default, f"{where}: the default of {setting.name}")
