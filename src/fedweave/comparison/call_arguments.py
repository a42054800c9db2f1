"""Arguments that fit(), compare() and recommend() share, checked before any work."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from fedweave.errors import BadInput, format_value
from fedweave.own_data.argument_checks import as_python
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


def check_callbacks(callbacks: Any) -> None:
    """Refuse a value that is not a list of functions.

    Raises:
        BadInput: naming the value.
    """
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise BadInput(f"callbacks: {format_value(callbacks)} is not a list of functions; for example callbacks=[show]")
