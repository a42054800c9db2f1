"""Checks of what a user's class of a method defines: a hook that nothing calls, or cannot call, and a lost value."""

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from fedweave.engine.protocol import Method
from fedweave.errors import BadInput

SIMILAR = 0.8  # from this ratio on, a name is a misspelt one
RENAMED = {"kept": "local_names", "welcome": "add_rows", "woven": "mix_models", "fresh": "init_hypernetwork"}
PLAIN = (bool, int, float, str)  # types of values that look like settings


def check_hooks(cls: type[Method]) -> None:
    """Refuse what has no effect in a run, or ends it at the first call: a hook that is called with other arguments, and
    a value without a type in place of a setting. A function that nothing calls and that has nearly the name of a hook,
    or its name of version 0.1.0, is a warning: it may be for callers elsewhere.

    Raises:
        BadInput: naming the class, the name and what to write in its place.
    """
    for base in own_classes(cls):
        settings = _inherited_settings(base)
        for name, value in untyped_values(base).items():
            if name in settings:
                default = "" if settings[name] is MISSING else f" {settings[name]!r}"
                raise BadInput(
                    f"{base.__name__}: {name} = {value!r} has no type, so that the setting keeps its default{default}; "
                    f"write {name}: {type(value).__name__} = {value!r}"
                )
    for name, hook in find_hooks(cls).items():
        owner = next(base for base in cls.__mro__ if name in vars(base))
        if not _is_ours(owner):
            _check_form(f"{owner.__name__}.{name}", vars(owner)[name], hook)
    for base in own_classes(cls):
        similar = _find_similar_names(base)
        for name in unused_functions(cls, base) if similar else ():  # which reads files
            if name in similar:
                way = f"name it {similar[name]}, or _{name} if it is not a hook"
                warnings.warn(f"{base.__name__}: nothing calls {name}; {way}", stacklevel=3)


def own_classes(cls: type[Method]) -> list[type[Method]]:
    """`cls` and those of its bases that are not of fedweave."""
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    return [base for base in bases if base is cls or not _is_ours(base)]


def find_hooks(cls: type) -> dict[str, Any]:
    """Name -> what the next base of fedweave has, of all functions and properties that such bases have."""
    bases = [base for base in reversed(cls.__mro__[1:]) if _is_ours(base)]
    entries = {name: value for base in bases for name, value in vars(base).items() if not name.startswith("_")}
    return {name: value for name, value in entries.items() if is_function(value)}


def _find_similar_names(cls: type) -> dict[str, str]:
    """Name in the class that is no hook -> the hook that it may stand for."""
    hooks = find_hooks(cls)
    names = [name for name in vars(cls) if name not in hooks and not name.startswith("_")]
    near = {name: difflib.get_close_matches(name, hooks, 1, SIMILAR) for name in names}
    misspelt = {name: closest[0] for name, closest in near.items() if closest}
    return misspelt | {name: RENAMED[name] for name in names if name in RENAMED}


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("fedweave.")


def unused_functions(cls: type[Method], own: type[Method]) -> list[str]:
    """Functions of the class `own` that are no hooks, and that no class of fedweave and no user's file reads.

    None if a class has no file that can be read.
    """
    names = {name for name, value in vars(own).items() if is_function(value) and not name.startswith("_")}
    try:
        modules = {inspect.getmodule(base) for base in cls.__mro__ if issubclass(base, Method)} - {None}
        used = frozenset().union(*map(_read_attributes, modules))
    except (OSError, TypeError, SyntaxError):
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
def _read_attributes(module: Any) -> frozenset[str]:
    """Names of the attributes in the file of a module."""
    tree = ast.parse(inspect.getsource(module))
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
