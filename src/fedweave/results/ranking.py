"""Average ranks of methods over clients and tasks, with Friedman's test and Nemenyi's critical difference.

Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7 (2006).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.errors import BadInput
from fedweave.results.formats import ALPHA
from fedweave.results.paired_model import ROUNDING


class Ranking(NamedTuple):
    """Average ranks [M] over T tasks (1 is best), Friedman's p, and the critical difference of Nemenyi's test."""

    methods: tuple[str, ...]
    ranks: np.ndarray
    tasks: int
    p: float
    critical_difference: float


def ranks(scores: np.ndarray, higher_is_better: Sequence[bool]) -> np.ndarray:
    """Rank of each method within each task, [T, M] from `scores` [T, M]; 1 is best, ties share the mean rank.

    Scores that differ from the next one by rounding alone are tied.
    """
    import pandas as pd

    signed = np.asarray(scores, dtype=np.float64) * np.where(np.asarray(higher_is_better), -1.0, 1.0)[:, None]
    order = signed.argsort(axis=1)
    steps = np.diff(np.take_along_axis(signed, order, axis=1), axis=1)
    is_worse = steps > ROUNDING * np.abs(signed).max(axis=1, keepdims=True)
    levels = np.pad(is_worse.cumsum(axis=1), ((0, 0), (1, 0)))
    return pd.DataFrame(np.take_along_axis(levels, order.argsort(axis=1), axis=1)).rank(axis=1).to_numpy()


def ranking(methods: Sequence[str], scores: np.ndarray, higher_is_better: Sequence[bool]) -> Ranking:
    """Average ranks with Friedman's test and Nemenyi's critical difference at 0.05.

    Raises:
        BadInput: fewer than two tasks or three methods, or an empty cell.
    """
    from scipy.stats import friedmanchisquare, studentized_range  # here: it takes a second to import

    scores = np.asarray(scores, dtype=np.float64)
    tasks, count = scores.shape
    if tasks < 2 or count < 3 or not np.isfinite(scores).all():
        raise BadInput(f"scores: {tasks} tasks x {count} methods cannot be ranked; it takes 2 x 3 finite cells or more")
    table = ranks(scores, higher_is_better)
    is_tied = (table == table[:, :1]).all()  # where SciPy divides by zero
    p = 1.0 if is_tied else float(friedmanchisquare(*table.T).pvalue)
    quantile = studentized_range.ppf(1 - ALPHA, count, np.inf) / np.sqrt(2)
    critical = quantile * np.sqrt(count * (count + 1) / (6 * tasks))
    return Ranking(tuple(methods), table.mean(0), tasks, p, float(critical))
