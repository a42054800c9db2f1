"""Checks of arguments of calls, before any work: values of a wrong kind are refused."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, first_line, format_count, format_value
from fedweave.study.spec import MOST_SEEDS

KINDS = {"c": "complex numbers", "M": "dates", "m": "durations"}  # kinds of arrays that cannot be features or targets
COMPLEX_ADVICE = "give the real and the imaginary part as two columns"
TIME_ADVICE = "give numbers, such as days or hours since the first"
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
# The square of a number above this one is more than float32 can hold.
LARGEST = 1.8e19


@contextmanager
def convert_input_errors() -> Iterator[None]:
    """Turn an InputError of the exported code into BadInput."""
    try:
        yield
    except exported_model.InputError as error:
        raise BadInput(str(error)) from error


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


def as_array(values: Any, name: str, advice: str) -> np.ndarray:
    """An array of `values`.

    Raises:
        BadInput: its rows differ in length, or it holds complex numbers, dates or durations.
    """
    array = as_plain(values, name, f"the rows have different lengths; {advice}")
    check_kind(array, name)
    return array


def as_plain(values: Any, name: str, ragged: str = "the rows have different lengths") -> np.ndarray:
    """An array of any values, see `exported_model.as_plain`.

    Raises:
        BadInput: the rows differ in length, or cannot be read.
    """
    try:
        return exported_model.as_plain(values)
    except ValueError as error:
        raise BadInput(f"{name}: {ragged}") from error
    except (RuntimeError, TypeError) as error:  # PyTorch refuses lists of tensors with a gradient, and some types
        raise BadInput(f"{name}: cannot be read as an array ({first_line(error)})") from error


def check_kind(values: np.ndarray, name: str) -> None:
    """Refuse values that a conversion to float32 would change without an error.

    Raises:
        BadInput: `values` are complex numbers, dates or durations.
    """
    kind = values.dtype.kind
    if kind == "O" and any(isinstance(one, complex) for one in values.ravel()[:1000].tolist()):
        kind = "c"
    if kind in KINDS:
        raise BadInput(f"{name}: holds {KINDS[kind]}; {COMPLEX_ADVICE if kind == 'c' else TIME_ADVICE}")


def is_missing(values: np.ndarray) -> np.ndarray:
    """Whether each value is missing [M]: None, NaN and pandas' own marks."""
    import pandas as pd

    return np.asarray(pd.isna(values.astype(object)))


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays, one behind the other; numbers beside texts stay numbers, so that 1 does not become "1"."""
    if len({part.dtype.kind in "OUS" for part in parts if len(part)}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


def check_missing(values: Any, name: str) -> None:
    """Refuse names of rows of which one is missing, as its text "nan" would be taken for a name.

    Args:
        values: one per row, as they were given.

    Raises:
        BadInput: naming the number of such rows and the first one.
    """
    missing = is_missing(as_plain(values, name))
    if missing.any():
        raise BadInput(
            f"{name}: is missing in {format_count(int(missing.sum()), 'row')}, first in row "
            f"{int(missing.argmax())}; drop them first"
        )


def check_size(values: np.ndarray, name: str) -> None:
    """Refuse finite numbers whose square is more than float32 can hold; infinite numbers are checked elsewhere.

    Raises:
        BadInput: naming the first such number and its row.
    """
    if values.dtype.kind != "f" or not values.size:
        return
    large = np.isfinite(values) & (np.abs(values) > LARGEST)
    if large.any():
        index = np.argwhere(large)[0]
        raise BadInput(
            f"{name}: {values[tuple(index)]:.6g} in row {int(index[0])} is too large to train with (at most "
            f"{LARGEST:g}, whose square float32 holds); divide the values by a power of ten, or drop that row"
        )
