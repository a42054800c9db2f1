"""Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979)."""

import numpy as np
from numpy.typing import ArrayLike


def adjust(p: ArrayLike) -> np.ndarray:
    """Holm's adjusted p values [m] in the given order; NaN stays NaN and does not count as a test."""
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    steps = raw[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
