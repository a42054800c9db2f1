"""Scores as text, and options for reading tables that pandas wrote."""

from typing import Any

import numpy as np

from fedweave.metrics import unit

EMPTY = "\N{EN DASH}"
ALPHA = 0.05  # level of every test, and chance of a false claim in a family of tests
DIGITS = 12  # of means over seeds beside the largest one; rounding errors must not break ties
# Options of `files.read_table`: only an empty cell is missing, so that a client may be called NA.
AS_WRITTEN: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}


def format_score(value: float, spread: float, metric: str) -> str:
    """`value ± spread` for people: two decimals for percentages, four significant digits otherwise; a dash for NaN."""
    if not np.isfinite(value):
        return EMPTY
    digits = 2 if unit(metric) else max(0, 3 - int(np.floor(np.log10(abs(value))))) if value else 4
    return f"{value:z.{digits}f}" + (f" ± {spread:.{digits}f}" if np.isfinite(spread) else "")


def format_interval(low: float, high: float, metric: str) -> str:
    """`low to high` for people; a dash for NaN."""
    return (
        f"{format_score(low, np.nan, metric)} to {format_score(high, np.nan, metric)}"
        if np.isfinite(low + high)
        else EMPTY
    )


def format_difference(value: float, metric: str) -> str:
    """A difference of scores with its sign; a dash for NaN."""
    text = format_score(value, np.nan, metric)
    return ("+" if value > 0 and text.strip("0.") else "") + with_minus_sign(text)


def format_gain(value: float, metric: str) -> str:
    """A difference of scores with its sign and unit: percentages differ by points."""
    return format_difference(value, metric) + unit(metric).replace("%", "points")


def format_difference_interval(low: float, high: float, metric: str) -> str:
    """`low to high` of a difference."""
    return f"{format_difference(low, metric)} to {format_difference(high, metric)}"


def with_minus_sign(text: str) -> str:
    """`text` with minus signs instead of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")
