"""Checks of arguments of calls, before any work: values of a wrong kind are refused."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from fedweave.errors import BadInput, format_value
from fedweave.study.spec import MOST_SEEDS

# Arguments that calls do not have -> what to give in their place.
PLACES = {
    "loss": "is not a setting: the label decides it, cross-entropy for classes and the squared error for numbers and "
    "forecasts; a method of your own may have another loss, see 'A loss of your own' in docs/add-method.md",
    "seed": "is the argument of fit(), which trains once; here it is seeds, such as seeds=3 for three repetitions",
}
NO_SEARCH = "fit() has no search; fw.compare(federation, [method], tune=10) has one"
PLACES_OF_CALLS = {
    "fit()": {
        "seeds": "fit() trains once and has seed=0; fw.compare(federation, [method], seeds=3) has repetitions",
        "tune": NO_SEARCH,
        "trials": NO_SEARCH,
    },
    "compare()": {"trials": "is not a setting: tune=10 searches the settings of each method with 10 trials"},
    "recommend()": {"trials": "is not a setting: settings=10 races 10 settings of each method"},
}


def as_seeds(seeds: Any) -> list[int]:
    """The seeds of a number of repetitions, or of a list.

    Raises:
        BadInput: it is neither, or there are too many.
    """
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        if seeds < 1:
            raise BadInput(f"seeds: {format_value(seeds)} must be at least 1, or a list of seeds")
        if seeds > MOST_SEEDS:
            raise BadInput(f"seeds: {format_value(seeds)} repetitions are too many; give {MOST_SEEDS} or fewer")
        return [*range(int(seeds))]
    if isinstance(seeds, str | Mapping) or not isinstance(seeds, Iterable):
        raise BadInput(f"seeds: {format_value(seeds)} must be a number of repetitions, or a list of seeds")
    entries = [*islice(seeds, MOST_SEEDS + 1)]
    if not entries:
        raise BadInput("seeds: the list is empty; give a number of repetitions such as 3, or seeds such as [0, 1, 2]")
    if len(entries) > MOST_SEEDS:
        raise BadInput(f"seeds: the list has more than {MOST_SEEDS} seeds; give {MOST_SEEDS} or fewer")
    return [*map(as_python, entries)]


def as_python(value: Any) -> Any:
    """NumPy's numbers as those of Python, also inside of mappings and lists; other values as they are."""
    if isinstance(value, Mapping):
        return {key: as_python(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_python(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def check_train_names(names: Iterable[str], title: str) -> None:
    """Refuse names of settings that are not settings of the training, but have another place.

    Args:
        title: of the call, such as "fit()".

    Raises:
        BadInput: saying where the setting is.
    """
    hints = {**PLACES, **PLACES_OF_CALLS.get(title, {})}
    for name in names:
        if name in hints:
            raise BadInput(f"{title}: {name}: {hints[name]}")


def check_flag(value: Any, name: str) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        BadInput: naming the argument and the value.
    """
    if not isinstance(as_python(value), bool):
        raise BadInput(f"{name}: {format_value(value)} is neither True nor False")


def as_mapping(value: Any, name: str, example: str) -> dict[str, Any]:
    """`value` as a dictionary, empty for None.

    Raises:
        BadInput: it is not a mapping.
    """
    if value is not None and not isinstance(value, Mapping):
        raise BadInput(f"{name}: {format_value(value)} is not a mapping; for example {example}")
    return dict(value or {})


def check_callbacks(callbacks: Any) -> None:
    """Refuse a value that is not a list of functions.

    Raises:
        BadInput: naming the value.
    """
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise BadInput(f"callbacks: {format_value(callbacks)} is not a list of functions; for example callbacks=[show]")


def check_folder(folder: Any, name: str) -> None:
    """Refuse a value that is not a path of a folder, and an empty path.

    Raises:
        BadInput: naming the argument and the value.
    """
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise BadInput(f"{name}: {format_value(folder)} is not a path of a folder; for example 'results/mine'")


def check_text(value: Any, name: str, example: str) -> None:
    """Refuse a value that is not text, and an empty text.

    Raises:
        BadInput: naming the argument and the value.
    """
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{name}: {format_value(value)} is not a name; give a text such as {example!r}")


def check_seed(seed: Any) -> None:
    """Refuse a value that is not a seed of a split.

    Raises:
        BadInput: naming the value.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise BadInput(f"seed: {format_value(seed)} is not a seed; give a whole number of at least 0 and below 2^31")


def check_path(path: Any, name: str) -> None:
    """Refuse a value that is not a path.

    Raises:
        BadInput: naming the argument and the value.
    """
    if not isinstance(path, str | os.PathLike):
        raise BadInput(f"{name}: {format_value(path)} is not a path; give a text such as 'data/rows.csv'")


def as_names(value: Any, name: str, least: int = 1) -> list[Any]:
    """Names of columns: one, or a list of `least` or more.

    Raises:
        BadInput: it is neither.
    """
    names = [value] if isinstance(value, str) else [*value] if isinstance(value, Iterable) else None
    if names is None or len(names) < least or not all(isinstance(one, str | int) for one in names):
        raise BadInput(f"{name}: {format_value(value)} is not a name of a column; give a text, or a list of texts")
    return names
