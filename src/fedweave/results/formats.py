"""Scores as text, and options for reading tables that pandas wrote."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedweave.metrics import higher_is_better, unit

EMPTY = "\N{EN DASH}"
ALPHA = 0.05  # level of every test, and chance of a false claim in a family of tests
# Options of `files.read_table`: only an empty cell is missing, so that a client may be called NA.
AS_WRITTEN: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}


def format_score(value: float, spread: float, metric: str) -> str:
    """`value ± spread` for people: two decimals for percentages, four significant digits otherwise; a dash for NaN."""
    if not np.isfinite(value):
        return EMPTY
    digits = 2 if unit(metric) else max(0, 3 - int(np.floor(np.log10(abs(value))))) if value else 4
    return f"{value:z.{digits}f}" + (f" ± {spread:.{digits}f}" if np.isfinite(spread) else "")


def format_p(p: float) -> str:
    """A p value for people: three decimals; a dash for NaN."""
    return EMPTY if not np.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_mib(mib: float) -> str:
    """MiB for people: one decimal, or two digits where that would be 0.0."""
    return f"{mib:,.1f}" if mib >= 0.1 or not mib else f"{mib:.2g}"


def name_score(text: str, metric: str) -> str:
    """A score as text with its unit, or else with the name of its metric: "71.5 %", "mse 0.22"."""
    return f"{text}{unit(metric)}" if unit(metric) else f"{metric} {text}"


def format_interval(low: float, high: float, metric: str) -> str:
    """`low to high` for people; a dash for NaN."""
    if not np.isfinite(low + high):
        return EMPTY
    return f"{format_score(low, np.nan, metric)} to {format_score(high, np.nan, metric)}"


def format_difference(value: float, metric: str) -> str:
    """A difference of scores with its sign; a dash for NaN."""
    text = format_score(value, np.nan, metric)
    return ("+" if value > 0 and text.strip("0.") else "") + with_minus_sign(text)


def format_gain(value: float, metric: str) -> str:
    """A difference of scores with its sign and unit: percentages differ by points."""
    return format_difference(value, metric) + unit(metric).replace("%", "points")


def format_change(value: float, metric: str) -> str:
    """A difference of scores in words, with its unit: "9.54 points higher", "0.0052 lower"; a dash for NaN."""
    return _in_words([value], metric) if np.isfinite(value) else EMPTY


def format_change_interval(low: float, high: float, metric: str) -> str:
    """The interval of a difference in words: "0.21 to 0.35 lower", "1.20 points lower to 8.30 points higher"."""
    if not np.isfinite(low + high):
        return EMPTY
    if low < 0 < high:
        return f"{format_change(low, metric)} to {format_change(high, metric)}"
    return _in_words(sorted((low, high), key=abs), metric)


def describe_change(value: float, metric: str) -> str:
    """A difference in a sentence: "accuracy 9.54 points higher", "mse 0.0052 lower, and lower is better"."""
    direction = "" if higher_is_better(metric) else ", and lower is better"
    return f"{metric} {format_change(value, metric)}{direction}"


def format_amount(size: float, metric: str) -> str:
    """The size of a difference with its unit: percentages differ by points."""
    return format_score(size, np.nan, metric) + unit(metric).replace("%", "points")


def _in_words(values: Sequence[float], metric: str) -> str:
    """Differences of one sign in words, the last one not nearer to zero than the others."""
    *others, last = [abs(value) for value in values]
    amounts = [*(format_score(size, np.nan, metric) for size in others), format_amount(last, metric)]
    direction = "higher" if values[-1] > 0 else "lower"
    return " to ".join(amounts) + f" {direction}" * bool(amounts[-1].strip("0. points"))


def with_minus_sign(text: str) -> str:
    """`text` with minus signs instead of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")
