"""Tests in which repetitions of a training are what varies: over seeds alone, or over seeds, splits and clients."""

import numpy as np


def mixed(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p of the mean difference of two [S, N], where both seeds and clients are drawn at random; NaN for one
    seed or client, or where the numbers of seeds differ; 1 if none differs.

    A linear mixed model with a random effect of each repetition (seed and split), of each client, and their
    interaction: the variance of the mean is (MS_seeds + MS_clients − MS_rest) / S N, its degrees of freedom are
    Satterthwaite's, as in the quasi-F test of Clark, "The language-as-fixed-effect fallacy" (1973). Where clients are
    dealt anew for every split, MS_clients is about MS_rest, and the test is one over splits.
    """
    if np.shape(first) != np.shape(second):
        return float("nan")
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if min(difference.shape) < 2 or not np.isfinite(difference).all():
        return float("nan")
    if not difference.any():
        return 1.0
    from scipy.special import stdtr

    (seeds, clients), mean = difference.shape, difference.mean()
    rows, columns = difference.mean(1) - mean, difference.mean(0) - mean
    rest = difference - mean - rows[:, None] - columns
    free = np.array([seeds - 1, clients - 1, (seeds - 1) * (clients - 1)])
    squares = np.array([clients * (rows**2).sum(), seeds * (columns**2).sum(), (rest**2).sum()]) / free
    # A negative component counts as none: the mean is at least as uncertain as over seeds alone, or clients alone.
    spread = max(squares @ [1, 1, -1], *squares[:2])
    signs = np.array([1, 1, 1]) if spread == squares @ [1, 1, -1] else squares[:2].argmax() == np.arange(3)
    if spread <= 0:
        return 0.0
    freedom = spread**2 / (signs * squares**2 / free).sum()
    return float(2 * stdtr(freedom, -abs(mean) / np.sqrt(spread / difference.size)))


def over_seeds(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p of the paired t test on each seed's mean over clients, [S, N] each; NaN for one seed, 1 if none
    differs.
    """
    if np.shape(first)[0] != np.shape(second)[0] or np.shape(first)[0] < 2:
        return float("nan")
    from scipy.special import stdtr

    difference = np.asarray(first, dtype=np.float64).mean(1) - np.asarray(second, dtype=np.float64).mean(1)
    if not difference.any():
        return 1.0
    spread, count = difference.std(ddof=1), len(difference)
    with np.errstate(divide="ignore"):  # a difference that is the same for every seed is certain to this test
        t = difference.mean() / (spread / np.sqrt(count))
    return float(2 * stdtr(count - 1, -abs(t)))
