"""Registration of the names that studies use: methods, data sets, models, partitions."""

import inspect
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput, format_value

_files: dict[tuple[str, str], Path] = {}  # (kind, name) -> the file in which it was registered


def check_name(kind: str, name: object) -> None:
    """Refuse a decorator without a name, such as `@fw.method` above a class.

    Raises:
        BadInput: saying how to write it.
    """
    if not isinstance(name, str) or not name:
        raise BadInput(f'{kind}: {format_value(name)} is not a name; write @fw.{kind}("name")')


def register(table: dict[str, Any], kind: str, name: str, entry: Callable[..., Any]) -> None:
    """Add a class or a function to `table`. A new definition of the same object, as in a notebook, replaces it.

    Raises:
        BadInput: something else has the name; the message names both files.
    """
    if name in table and definition(table[name]) != definition(entry):
        first, second = (definition(one)[0] for one in (table[name], entry))
        raise BadInput(f"{kind} {name!r} is defined twice, in {first} and in {second}; rename one of them")
    table[name] = entry
    _files[kind, name] = Path(sys._getframe(2).f_code.co_filename)  # the file with the decorator


def definition(entry: Callable[..., Any]) -> tuple[str, ...]:
    """The file that defines a class or a function (its module where there is no file), and its name in there."""
    if isinstance(entry, partial):
        inner = (definition(part) for part in (entry.func, *entry.args) if callable(part))
        return tuple(text for part in inner for text in part)
    name = getattr(entry, "__qualname__", type(entry).__qualname__)
    module = str(getattr(entry, "__module__", ""))
    try:
        file = Path(inspect.getfile(inspect.unwrap(entry))).resolve()
    except (OSError, TypeError):
        return module, name
    return (str(file) if file.is_file() else module), name  # each cell of a notebook has the name of another file


def users_file(entry: Callable[..., Any]) -> Path | None:
    """The file of a class or function that a user wrote; None for one of fedweave, and for one without a file."""
    file = Path(definition(entry)[0])
    return file if file.is_file() and not file.is_relative_to(Path(__file__).resolve().parent) else None


def error_line(entry: Callable[..., Any], error: Exception) -> int | None:
    """The line where `error` was raised in a user's file with `entry`; None for an error from elsewhere."""
    file, frames = users_file(entry), traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if Path(frame.filename).resolve() == file), None)


def files(kind: str, name: str, entry: Callable[..., Any]) -> tuple[Path, ...]:
    """The files behind the entry `name`: with the decorator, with the definition, and with the bases of a class."""
    parts = inspect.getmro(entry) if isinstance(entry, type) else (entry,)
    paths = [Path(path) for part in parts for path in definition(part)[::2]]
    registered = [_files[kind, name]] if (kind, name) in _files else []
    return tuple(dict.fromkeys(path.resolve() for path in (*registered, *paths) if path.suffix == ".py"))
