"""Scores as people read them."""

import numpy as np

from fedweave.metrics import unit

EMPTY = "\N{EN DASH}"


def format_score(value: float, spread: float, metric: str) -> str:
    """`value ± spread` for people: two decimals for percentages, four significant digits otherwise; a dash for NaN."""
    if not np.isfinite(value):
        return EMPTY
    digits = 2 if unit(metric) else max(0, 3 - int(np.floor(np.log10(abs(value))))) if value else 4
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if np.isfinite(spread) else "")


def interval(low: float, high: float, metric: str) -> str:
    """`low to high` for people; a dash for NaN."""
    return (
        f"{format_score(low, np.nan, metric)} to {format_score(high, np.nan, metric)}"
        if np.isfinite(low + high)
        else EMPTY
    )
