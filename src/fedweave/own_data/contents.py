"""What was understood of each column: its role, type, range, missing values and an example, one line each."""

import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import format_count, format_value
from fedweave.exported_model.values import ZONE
from fedweave.own_data.array_checks import as_plain, is_missing

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 30  # of columns in a description, which is to fit on a screen
TYPES = {
    "b": "truth values",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers",
    "M": "dates",
    "m": "durations",
}
# Microseconds of a usual step -> its name.
STEPS = {
    1: "microsecond",
    1000: "millisecond",
    10**6: "second",
    60 * 10**6: "minute",
    3600 * 10**6: "hour",
    86400 * 10**6: "day",
    7 * 86400 * 10**6: "week",
}
NEAR = 0.05  # of a whole number of units


class Text(str):
    """A text whose `repr` is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe_columns(roles: Mapping[str, Any], table: "pd.DataFrame | None" = None) -> dict[str, str]:
    """Column -> what it holds, of the columns of `table` or of arrays that `roles` maps to their role or values.

    Args:
        roles: column of the table -> its role; without a table, role -> values.
    """
    if table is not None:
        return {str(name): f"{role}, {describe(table[name].to_numpy(), role)}" for name, role in roles.items()}
    return {role: describe(values, role) for role, values in roles.items() if values is not None}


def describe(values: Any, role: str) -> str:
    """The type, range, missing values and an example of one column or array, in words."""
    array = as_plain(values, role).ravel()
    missing = is_missing(array) if array.dtype.kind in "OfMm" else np.zeros(len(array), dtype=bool)
    present = array[~missing]
    if not len(present):
        return "no values"
    kind = array.dtype.kind
    if kind == "O" and (kinds := {*map(type, present.tolist())}) <= {int, float, bool, Decimal}:
        kind = "f" if Decimal in kinds else np.array(present.tolist()).dtype.kind
    if kind == "O" and all(isinstance(value, date) for value in present.tolist()):
        kind = "M"
    type_name, digits = TYPES.get(kind, "texts"), 6
    if role == "time":
        content = f"{type_name}, {_describe_times(present)}"
    elif kind in "iuf":
        low, high = float(present.min()), float(present.max())
        digits = _count_digits(low, high)
        content = f"{type_name} from {low:.{digits}g} to {high:.{digits}g}"
    else:
        content = f"{type_name}, {len({*map(exported_model.name_of, present.tolist())})} different"
    first = present[:1].tolist()[0]
    example = f"{first:.{digits}g}" if isinstance(first, float) else format_value(first)
    if array.dtype.kind in "mM" or not isinstance(first, str | int | float):
        example = str(present[0]).removesuffix(".000000").replace("T", " ")
    return f"{content}, such as {example}" + (f", {missing.sum()} missing" if missing.any() else "")


def _count_digits(low: float, high: float) -> int:
    """Significant digits that show the difference between two numbers: 100000000.4 and 100000002.1, not 1e+08."""
    size, spread = max(abs(low), abs(high)), high - low
    return 6 if spread <= 0 or not math.isfinite(spread) else min(max(6, math.ceil(math.log10(size / spread)) + 3), 15)


def _describe_times(present: np.ndarray) -> str:
    """The usual step between times, and its unit."""
    times = np.unique(exported_model.as_times(present))
    are_dates = present.dtype.kind not in "iuf" or not np.array_equal(times, np.unique(present))
    are_dates = are_dates and times.dtype.kind == "i"
    step = float(np.median(np.diff(times.astype(np.float64)))) if len(times) > 1 else 0.0
    if not are_dates:
        return f"from {times[0]:.10g} to {times[-1]:.10g}, usually {step:g} apart (no dates)"
    fitting = [size for size in STEPS if size <= step and abs(step / size - round(step / size)) < NEAR]
    unit = max(fitting, default=1)
    first, last = (str(np.datetime64(int(time), "us"))[:19].replace("T", " ") for time in (times[0], times[-1]))
    zone = " UTC" if ZONE.search(str(present[0])) else ""
    return f"from {first} to {last}{zone}, usually {format_count(round(step / unit), STEPS[unit])} apart"


def shorten(lines: list[str]) -> list[str]:
    """At most `MOST_LINES` lines, and how many more there are."""
    rest = len(lines) - MOST_LINES
    return lines if rest <= 1 else [*lines[:MOST_LINES], f"... and {rest} more columns"]
