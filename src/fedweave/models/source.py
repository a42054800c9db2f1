"""What a user's code is, by which a stored result knows whether it was made by the same: its source, and what it reads
from outside of itself, such as constants and functions beside it.
"""

import ast
import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, date, timedelta, np.generic)
DEEPEST = 6  # level of values inside of values
INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})


def source_of(thing: Any) -> str:
    """The source of a class or function without comments and formatting; its byte code if it has no file."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError):
        functions = [vars(thing)[n] for n in sorted(vars(thing))] if isinstance(thing, type) else [thing]
        codes = [getattr(function, "__code__", None) for function in functions]
        return repr(
            [(code.co_code, [c for c in code.co_consts if isinstance(c, int | float | str)]) for code in codes if code]
        )


def code_of(code: types.CodeType) -> str:
    """The byte code of a function, with that of functions inside of it; without lines and names of files."""
    constants = [code_of(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def digest_text(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def describe_code(things: Iterable[Any]) -> str:
    """A text that changes with the source of a user's classes and functions, or with what they read; empty for none."""
    things = [*things]
    return "".join(map(source_of, things)) + repr(find_reads(things)) if things else ""


def find_reads(things: Iterable[Any]) -> dict[str, str]:
    """Name -> hash, of what the code of classes and functions reads from outside of it: constants, functions, classes
    and modules that are the user's. Other objects, such as those of packages, do not count.
    """
    reader = _Reader()
    for thing in things:
        reader.enter(thing)
    return dict(sorted(reader.found.items()))


def find_values(objects: Iterable[Any]) -> dict[str, str]:
    """CLASS.NAME -> hash, of the plain attributes of objects of a user's classes."""
    texts: dict[str, list[str]] = {}
    for thing in filter(lambda one: is_users(type(one)), objects):
        for name, value in vars(thing).items():
            if not name.startswith("_") and name != "training" and (text := _describe(value)) is not None:
                texts.setdefault(f"{type(thing).__qualname__}.{name}", []).append(text)
    return {name: digest_text(repr(values)) for name, values in texts.items()}


@cache
def _is_users_module(name: str) -> bool:
    """Whether a module is neither a part of Python, nor of fedweave or another installed package."""
    top = name.split(".")[0]
    if top == "fedweave" or (top in sys.stdlib_module_names and name != "__main__"):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or not any(map(Path(file).resolve().is_relative_to, INSTALLED))


def is_users(thing: Any) -> bool:
    """Whether a user wrote a class or function."""
    return _is_users_module(str(getattr(thing, "__module__", None) or "builtins"))


class _Reader:
    """Collects what code reads, by name."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: set[int] = set()

    def enter(self, thing: Any) -> None:
        """Look into a class, a function or an object that can be called."""
        if isinstance(thing, functools.partial):
            self.enter(thing.func)
            self._note(f"arguments of {getattr(thing.func, '__name__', 'partial')}", (thing.args, thing.keywords))
        elif isinstance(thing, type):
            self._enter_class(thing)
        elif isinstance(function := getattr(thing, "__func__", thing), types.FunctionType):
            self._enter_function(function)
        elif is_users(type(thing)):
            self._enter_class(type(thing))
            self._note(type(thing).__qualname__, thing)

    def _enter_class(self, kind: type) -> None:
        for part in kind.__mro__:
            if not is_users(part) or id(part) in self._seen:
                continue
            self._seen.add(id(part))
            if part is not kind:
                self.found[part.__qualname__] = digest_text(source_of(part))
            for name, value in vars(part).items():
                for function in _functions_of(value):
                    self._enter_function(function)
                if not name.startswith("_"):
                    self._note(f"{part.__qualname__}.{name}", value, deep=False)

    def _enter_function(self, function: types.FunctionType) -> None:
        if id(function.__code__) in self._seen:
            return
        self._seen.add(id(function.__code__))
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                self._note(name, function.__globals__[name])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__" and (value := _content(cell)) is not cell:
                self._note(name, value)
        if function.__defaults__ or function.__kwdefaults__:
            values = (function.__defaults__, function.__kwdefaults__)
            self._note(f"defaults of {function.__qualname__}", values)

    def _note(self, name: str, value: Any, deep: bool = True) -> None:
        """Record a value, or the code of a class, a function or a module and what it reads itself."""
        is_code = isinstance(value, type | types.FunctionType | types.MethodType)
        if isinstance(value, types.ModuleType) or is_code:
            if deep and (is_users(value) if is_code else _is_users_module(value.__name__)):
                self.found[name] = digest_text(source_of(value))
                self.enter(value)
        elif deep and isinstance(value, functools.partial):
            self._note(name, value.func)
            self._note(f"arguments of {name}", (value.args, value.keywords))
        elif (text := _describe(value)) is not None:
            self.found[name] = digest_text(text)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Names of globals that a function reads, with those of functions inside of it."""
    yield from (str(one.argval) for one in dis.get_instructions(code) if one.opname in LOADS)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The functions behind an attribute of a class."""
    parts = (getattr(value, name, None) for name in ("__func__", "func", "fget", "fset"))
    yield from (part for part in (value, *parts) if isinstance(part, types.FunctionType))


def _content(cell: Any) -> Any:
    """What a cell of a closure holds; the cell itself where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _describe(value: Any, depth: int = 0) -> str | None:
    """A text that changes with a value; None of an object of which nothing is known."""
    if isinstance(value, PLAIN):
        return repr(value)
    if depth > DEEPEST:
        return None
    inside = functools.partial(_describe, depth=depth + 1)
    if (text := _describe_table(value)) is not None:
        return text
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return f"{value.shape} {inside(value.ravel().tolist())}"
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {[*value.shape]} {hashlib.sha256(content).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"{value!r} {inside(dict(value.state_dict()))}"
    if isinstance(value, Mapping):
        return repr([(inside(key), inside(one)) for key, one in value.items()])
    if isinstance(value, list | tuple):
        return repr([inside(one) for one in value])
    if isinstance(value, set | frozenset):
        return repr(sorted(str(inside(one)) for one in value))
    if isinstance(value, type | types.FunctionType):
        return source_of(value) if is_users(value) else getattr(value, "__qualname__", None)
    if isinstance(value, types.SimpleNamespace | Namespace) or (is_users(type(value)) and hasattr(value, "__dict__")):
        return f"{type(value).__qualname__} {inside(vars(value))}"
    return None


def _describe_table(value: Any) -> str | None:
    """A text that changes with a table of pandas, a column or an index of one; None of any other object."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return None
    try:
        hashes = pandas.util.hash_pandas_object(value)
    except TypeError:  # cells that cannot be hashed, such as lists
        hashes = pandas.util.hash_pandas_object(value.astype(str))
    columns = getattr(value, "columns", ())
    return f"{type(value).__name__} {[*columns]} {hashlib.sha256(hashes.to_numpy().tobytes()).hexdigest()}"
