"""The targets of a prediction: classes, or numbers."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from fedweave.errors import BadInput, choose, format_count
from fedweave.own_data.array_checks import check_kind, check_missing, check_size
from fedweave.own_data.arrays import as_classes, as_column
from fedweave.own_data.data_warnings import MIN_NUMBER_SHARE, find_amounts
from fedweave.own_data.precision import as_stored, refuse_lost

KINDS = ("classes", "numbers")
MAX_INTEGER_CLASSES = 100  # with more different whole numbers it is not clear that they are classes
MAX_NUMERIC_TEXTS = 10  # with more different texts that are numbers it is not clear that they are classes
NUMBER = r"\s*[+-]?\d[\d.,' ]*"  # with a comma as the decimal mark, or with thousands separators


class Targets(NamedTuple):
    """Targets of all rows: class numbers [M], the names of the classes and their type, or numbers [M, 1]."""

    labels: np.ndarray | None
    classes: tuple[str, ...]
    numbers: np.ndarray | None
    class_type: str = ""


def as_targets(y: Any, count: int, target: str | None = None, least: int = 2) -> Targets:
    """Classes where `y` holds names, truth values or few whole numbers, and numbers where it has fractions.

    Args:
        target: "classes" or "numbers"; None decides as above.
        least: different classes that there must be.

    Raises:
        BadInput: a target is missing, or no number where numbers are wanted, or it is not clear which kind is meant.
    """
    if target is not None:
        choose(target, KINDS, "target")
    column = as_column(y, "y", count)
    if column.dtype.kind not in "biuf":
        check_missing(y, "y")
    if column.dtype == object and {*map(type, column.tolist())} == {Decimal}:
        column = column.astype(np.float64)
    check_kind(column, "y")
    check_size(column, "y")
    if target == "numbers":
        return Targets(None, (), as_values(column))
    if target is None and column.dtype.kind == "f" and not (np.isfinite(column) & (column == column.round())).all():
        return Targets(None, (), as_values(column))
    labels, classes, class_type = as_classes(column, least)
    if target is None and column.dtype.kind in "OU":
        _refuse_numbers(labels, classes)
    if target is None and column.dtype.kind in "iuf" and len(classes) > MAX_INTEGER_CLASSES:
        raise BadInput(
            f"y: has {len(classes)} different whole numbers; say what they are: target='numbers' or target='classes' "
            "(--target)"
        )
    return Targets(labels, classes, None, class_type)


def _refuse_numbers(labels: np.ndarray, classes: tuple[str, ...]) -> None:
    """Refuse texts that are numbers but for a few: they are more likely numbers to predict than classes."""
    import pandas as pd

    is_number = find_amounts(pd.Series(classes, dtype=object))
    is_number |= np.array([re.fullmatch(NUMBER, name) is not None for name in classes])
    numbers = [name for name, holds in zip(classes, is_number, strict=True) if holds]
    others, share = [*np.array(classes)[~is_number]], is_number[labels].mean()
    if len(numbers) <= MAX_NUMERIC_TEXTS or share <= MIN_NUMBER_SHARE:
        return
    if others or not all(map(str.isdigit, numbers)):
        but = f", but not {str(others[0])!r}" if others else ""
        raise BadInput(
            f"y: the labels are texts, and most of them are numbers, such as {numbers[0]!r}{but}; make numbers of all, "
            "with decimal points and without thousands separators or units, or say target='classes' (--target classes)"
        )


def check_classes(labels: np.ndarray, rows: Mapping[str, Any], classes: tuple[str, ...]) -> None:
    """Refuse test rows of a class that no training row has: no model can learn it."""
    test, train = (
        np.bincount(labels[np.concatenate(rows[part])], minlength=len(classes)) for part in ("test", "train")
    )
    untrained = np.flatnonzero((test > 0) & (train == 0))
    if len(untrained):
        examples = ", ".join(repr(classes[c]) for c in untrained[:3]) + (", ..." if len(untrained) > 3 else "")
        are_numbers = all(re.fullmatch(r"-?\d+", name) for name in classes)
        way = "target='numbers' (--target numbers)"
        advice = f"; if the label is a number to predict, give {way}" if are_numbers else ""
        raise BadInput(
            f"y: test rows have labels that no training row has: {examples}; give these more training rows, "
            f"or leave their rows out{advice}"
        )


def as_values(column: np.ndarray) -> np.ndarray:
    """Finite numbers [M, 1], not all the same, see `as_stored`."""
    try:
        values = (column.astype(object) if column.dtype.kind == "U" else column).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"y: holds a value that is not a number ({error}); drop its row, or use target='classes' (--target classes)"
        ) from error
    check_size(values, "y")
    bad = ~np.isfinite(values)
    if bad.any():
        raise BadInput(
            f"y: is missing or infinite in {format_count(int(bad.sum()), 'row')}, first in row "
            f"{int(bad.argmax())}; drop them"
        )
    if np.ptp(values) == 0:
        raise BadInput(f"y: all numbers are {values[0]:g}; there is nothing to learn")
    refuse_lost(values[:, None], column.dtype, "y")
    return as_stored(values[:, None])
