"""Checks of arguments of calls, before any work: values of a wrong kind are refused."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedweave.errors import BadInput, format_value


def as_python(value: Any) -> Any:
    """NumPy's numbers as those of Python, also inside of mappings and lists; other values as they are."""
    if isinstance(value, Mapping):
        return {key: as_python(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_python(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def check_flag(value: Any, name: str) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(as_python(value), bool):
        raise BadInput(f"{name}: {format_value(value)} is neither True nor False")


def as_mapping(value: Any, name: str, example: str) -> dict[str, Any]:
    """`value` as a dictionary, empty for None."""
    if value is not None and not isinstance(value, Mapping):
        raise BadInput(f"{name}: {format_value(value)} is not a mapping; for example {example}")
    return dict(value or {})


def check_folder(folder: Any, name: str) -> None:
    """Refuse a value that is not a path of a folder, and an empty path."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise BadInput(f"{name}: {format_value(folder)} is not a path of a folder; for example 'results/mine'")


def check_text(value: Any, name: str, example: str) -> None:
    """Refuse a value that is not text, and an empty text."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name}: {format_value(value)} is not a name; give a text such as {example!r}")


def check_seed(seed: Any) -> None:
    """Refuse a value that is not a seed of a split."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise BadInput(f"seed: {format_value(seed)} is not a seed; give a whole number of at least 0 and below 2^31")


def check_path(path: Any, name: str) -> None:
    """Refuse a value that is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise BadInput(f"{name}: {format_value(path)} is not a path; give a text such as 'data/rows.csv'")


def as_names(value: Any, name: str, least: int = 1) -> list[Any]:
    """Names of columns: one, or a list of `least` or more."""
    names = [value] if isinstance(value, str) else [*value] if isinstance(value, Iterable) else None
    if names is None or len(names) < least or not all(isinstance(one, str | int) for one in names):
        raise BadInput(f"{name}: {format_value(value)} is not a name of a column; give a text, or a list of texts")
    return names
