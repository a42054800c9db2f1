"""Checks of the names in a method's class: what nothing calls has no effect, and what has no type is not a setting."""

import ast
import difflib
import inspect
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from fedweave.engine.protocol import Method

SIMILAR = 0.8  # from this ratio on, a name is a misspelt one
PLAIN = (bool, int, float, str)  # types of values that look like settings


def check_names(cls: type[Method]) -> None:
    """Refuse values that look like settings and are none, and functions that look like hooks and are none.

    A function is used if the class, its bases or another part of the file reads an attribute with its name. One that is
    not used and has nearly the name of a hook is refused. Any other one may be for callers elsewhere: it is a warning.

    Raises:
        AssertionError: naming the class, the name and what to write in its place.
    """
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    own = [base for base in bases if base is cls or not base.__module__.startswith("fedweave.")]
    for base in own:
        _check_settings(base)
    try:
        used = frozenset().union(*map(_used_attributes, bases), *map(_file_attributes, own))
    except OSError:  # a class without a file cannot be read
        return
    for base in own:
        _check_functions(base, used)


def _check_settings(cls: type[Method]) -> None:
    """Refuse a plain value in the body of a class that no annotation makes a setting, and that no base knows."""
    annotations = inspect.get_annotations(cls)
    inherited = {field.name: field.default for base in cls.__mro__[1:] for field in _fields(base)}
    bases = cls.__mro__[1:]
    known = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))} - {*inherited}
    for name, value in vars(cls).items():
        if name.startswith("_") or name.isupper() or name in annotations or type(value) not in PLAIN or name in known:
            continue
        kind, place = type(value).__name__, f"{cls.__name__}: {name} = {value!r}"
        if name in inherited:
            raise AssertionError(
                f"{place} has no type, so that the setting keeps its default {inherited[name]!r}; "
                f"write {name}: {kind} = {value!r}"
            )
        raise AssertionError(
            f"{place} has no type, so that it is not a setting; write {name}: {kind} = {value!r}, "
            f"or {name}: ClassVar[{kind}] = {value!r} for a constant"
        )


def _fields(cls: type) -> tuple[Any, ...]:
    return fields(cls) if hasattr(cls, "__dataclass_fields__") else ()


def _check_functions(cls: type[Method], used: frozenset[str]) -> None:
    hooks = {name: value for base in cls.__mro__[1:] for name, value in vars(base).items() if not name.startswith("_")}
    functions = {name for name, value in vars(cls).items() if _is_function(value) and not name.startswith("_")}
    for name in sorted(functions - {*hooks} - used):
        if near := difflib.get_close_matches(name, hooks, 1, SIMILAR):
            raise AssertionError(
                f"{cls.__name__}: nothing calls {name}; name it {near[0]}, or _{name} if it is not a hook"
            )
        closest = difflib.get_close_matches(name, [hook for hook in hooks if _is_function(hooks[hook])], 1, 0.0)
        warnings.warn(
            f"{cls.__name__}: nothing calls {name}, which is not a hook; the closest hook is {closest[0]}; "
            f"name it _{name} if it is a function of your own",
            stacklevel=4,
        )


def _is_function(value: object) -> bool:
    return isinstance(value, Callable | property | classmethod | staticmethod)  # type: ignore[arg-type]


@cache
def _used_attributes(cls: type) -> frozenset[str]:
    """Names of the attributes in the source of a class."""
    return _attributes(textwrap.dedent(inspect.getsource(cls)))


@cache
def _file_attributes(cls: type) -> frozenset[str]:
    """Names of the attributes in the file of a class."""
    module = inspect.getmodule(cls)
    return _attributes(inspect.getsource(module)) if module else frozenset()


def _attributes(source: str) -> frozenset[str]:
    return frozenset(node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
