"""The targets of a prediction: classes, or numbers."""

from typing import Any, NamedTuple

import numpy as np

from fedweave.api.arguments import check_kind, check_missing, check_size
from fedweave.api.arrays import as_classes, as_column
from fedweave.errors import BadInput, choose, format_count

KINDS = ("classes", "numbers")
MAX_INTEGER_CLASSES = 100  # with more different whole numbers it is not clear that they are classes


class Targets(NamedTuple):
    """Targets of all rows: class numbers [M] and the names of the classes, or numbers [M, 1]."""

    labels: np.ndarray | None
    classes: tuple[str, ...]
    numbers: np.ndarray | None


def as_targets(y: Any, count: int, target: str | None = None, least: int = 2) -> Targets:
    """Classes where `y` holds names, truth values or few whole numbers, and numbers where it has fractions.

    Args:
        y: the target of each row.
        count: of rows.
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
    check_kind(column, "y")
    check_size(column, "y")
    if target == "numbers":
        return Targets(None, (), as_values(column))
    if target is None and np.issubdtype(column.dtype, np.floating):
        if not np.isfinite(column).all():
            raise BadInput(
                "y: is missing or infinite in "
                f"{format_count(int((~np.isfinite(column)).sum()), 'row')}; drop them first"
            )
        if (column != column.round()).any():
            return Targets(None, (), as_values(column))
    labels, classes = as_classes(column, count, least)
    if target is None and column.dtype.kind in "iuf" and len(classes) > MAX_INTEGER_CLASSES:
        raise BadInput(
            f"y: has {len(classes)} different whole numbers; say what they are: target='numbers' or target='classes'"
        )
    return Targets(labels, classes, None)


def as_values(column: np.ndarray) -> np.ndarray:
    """Finite float32 [M, 1].

    Raises:
        BadInput: a target is no number, or all are the same.
    """
    try:
        values = (column.astype(object) if column.dtype.kind == "U" else column).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"y: holds a value that is no number ({error}); drop its row, or use target='classes'"
        ) from error
    check_size(values, "y")
    bad = ~np.isfinite(values.astype(np.float32))
    if bad.any():
        raise BadInput(
            f"y: is missing or infinite in {format_count(int(bad.sum()), 'row')}, first in row "
            f"{int(bad.argmax())}; drop them"
        )
    if np.ptp(values) == 0:
        raise BadInput(f"y: all numbers are {values[0]:g}; there is nothing to learn")
    return values.astype(np.float32)[:, None]
