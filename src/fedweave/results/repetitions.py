"""Intervals of means in which seeds, splits and clients vary."""

from typing import NamedTuple

import numpy as np


class MeanEstimate(NamedTuple):
    """A mean, its standard error, and the degrees of freedom of the error; NaN where there is one value."""

    mean: float
    error: float
    freedom: float


def estimate_mean(values: np.ndarray) -> MeanEstimate:
    """The mean of `values` [S, N] and its standard error, if both seeds and clients are drawn at random.

    A linear mixed model with a random effect of each repetition (seed and split), of each client, and their
    interaction: the variance of the mean is (MS_seeds + MS_clients − MS_rest) / S N, its degrees of freedom are
    Satterthwaite's, as in the quasi-F test of Clark, "The language-as-fixed-effect fallacy" (1973). One seed leaves the
    variance between clients, and one client that between seeds. Where every split assigns rows to clients anew,
    MS_clients is about MS_rest, and the variance is that between splits.
    """
    mean = float(values.mean())
    if not np.isfinite(values).all() or values.size < 2:
        return MeanEstimate(mean, float("nan"), float("nan"))
    if min(values.shape) < 2:
        return MeanEstimate(mean, float(values.std(ddof=1) / np.sqrt(values.size)), values.size - 1.0)
    seeds, clients = values.shape
    seed_effects, client_effects = values.mean(1) - mean, values.mean(0) - mean
    residuals = values - mean - seed_effects[:, None] - client_effects
    freedoms = np.array([seeds - 1, clients - 1, (seeds - 1) * (clients - 1)])
    squares = np.array([clients * (seed_effects**2).sum(), seeds * (client_effects**2).sum(), (residuals**2).sum()])
    mean_squares = squares / freedoms
    # A negative variance component counts as zero: the mean is at least as uncertain as over seeds or clients alone.
    total = max(mean_squares @ [1, 1, -1], *mean_squares[:2])
    signs = np.array([1, 1, 1]) if total == mean_squares @ [1, 1, -1] else mean_squares[:2].argmax() == np.arange(3)
    if total <= 0:
        return MeanEstimate(mean, 0.0, float(freedoms[0]))
    freedom = float(total**2 / (signs * mean_squares**2 / freedoms).sum())
    return MeanEstimate(mean, float(np.sqrt(total / values.size)), freedom)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of `values` [S, N] or [N] over seeds and clients (`estimate_mean`), by Student's t.

    NaN for a single value, and where a value is not finite.
    """
    from scipy.special import stdtrit

    mean, error, freedom = estimate_mean(np.atleast_2d(np.asarray(values, dtype=np.float64)))
    margin = 0.0 if error == 0 else float(stdtrit(freedom, (1 + level) / 2)) * error
    return mean - margin, mean + margin
