"""Checks of what a user's class of a method defines: a hook that nothing calls, or cannot call, and a lost value."""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from fedweave.engine.protocol import Method
from fedweave.errors import BadInput

SIMILAR = 0.8  # from this ratio on, a name is a misspelt one
PLAIN = (bool, int, float, str)  # types of values that look like settings


def check_hooks(cls: type[Method]) -> None:
    """Refuse what has no effect in a run, or ends it at the first call.

    This is a function that has nearly the name of a hook and that nothing calls, a hook that is called with other
    arguments, and a value without a type in place of a setting.

    Raises:
        BadInput: naming the class, the name and what to write in its place.
    """
    for base in own_classes(cls):
        settings = _inherited_settings(base)
        for name, value in untyped_values(base).items():
            if name in settings:
                raise BadInput(
                    f"{base.__name__}: {name} = {value!r} has no type, so that the setting keeps its default "
                    f"{settings[name]!r}; write {name}: {type(value).__name__} = {value!r}"
                )
        hooks = find_hooks(base)
        for name in vars(base).keys() & hooks:
            _check_form(f"{base.__name__}.{name}", vars(base)[name], hooks[name])
        for name in vars(base):
            near = difflib.get_close_matches(name, hooks, 1, SIMILAR)
            if near and name not in hooks and name in unused_functions(cls, base):
                way = f"name it {near[0]}, or _{name} if it is not a hook"
                raise BadInput(f"{base.__name__}: nothing calls {name}; {way}")


def own_classes(cls: type[Method]) -> list[type[Method]]:
    """`cls` and those of its bases that are not of fedweave."""
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    return [base for base in bases if base is cls or not base.__module__.startswith("fedweave.")]


def find_hooks(cls: type) -> dict[str, Any]:
    """Name -> what the next base of `cls` has, of everything that its bases have."""
    bases = reversed(cls.__mro__[1:])
    return {name: value for base in bases for name, value in vars(base).items() if not name.startswith("_")}


def unused_functions(cls: type[Method], own: type[Method]) -> list[str]:
    """Functions of the class `own` that are no hooks, and that no class of `cls` and no user's file reads.

    None if a class has no file.
    """
    names = {name for name, value in vars(own).items() if is_function(value) and not name.startswith("_")}
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    try:
        used = frozenset().union(*map(_used_attributes, bases), *map(_file_attributes, own_classes(cls)))
    except OSError:
        return []
    return sorted(names - {*find_hooks(own)} - used)


def untyped_values(cls: type[Method]) -> dict[str, Any]:
    """Plain values in the body of a class that no annotation makes settings, and that no base knows otherwise."""
    annotations, inherited, bases = inspect.get_annotations(cls), _inherited_settings(cls), cls.__mro__[1:]
    known = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))} - {*inherited}
    return {
        name: value
        for name, value in vars(cls).items()
        if not (name.startswith("_") or name.isupper() or name in annotations or name in known) and type(value) in PLAIN
    }


def is_function(value: object) -> bool:
    """Whether an entry of a class is a function of any kind."""
    return isinstance(value, Callable | property | classmethod | staticmethod)  # type: ignore[arg-type]


def _inherited_settings(cls: type) -> dict[str, Any]:
    bases = [base for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__")]
    return {field.name: field.default for base in bases for field in fields(base)}


def _check_form(name: str, own: object, hook: object) -> None:
    """Refuse a function for a property, a property for a function, and one that cannot be called as `hook` is."""
    if isinstance(hook, property) and inspect.isfunction(own):
        raise BadInput(f"{name} is a function, and should be a property; add @property")
    if not inspect.isfunction(hook):
        return
    if isinstance(own, property):
        raise BadInput(f"{name} is a property, and should be a function; leave out @property")
    if not inspect.isfunction(own):
        return
    given = [p for p in inspect.signature(hook).parameters.values() if p.default is p.empty]
    positional = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
    signature = inspect.signature(own)
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        expected = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
        raise BadInput(f"{name} has the arguments {signature}, and is called with ({expected})") from None


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
