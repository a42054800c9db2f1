"""Intervals of means in which seeds, splits and clients vary."""

import numpy as np

QUANTILE = 0.975


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of `values` [S, N] or [N], if both seeds and clients are drawn at random.

    The variance of the mean has a part between clients, known with N − 1 degrees of freedom, and one between seeds,
    known with S − 1. Their sum by Satterthwaite's rule is too small whenever a few seeds agree by chance, so that each
    part keeps its own quantile of Student's t (the modified large-sample method of Graybill and Wang, JASA 75, 1980).
    MS_seeds also has the variance of single cells, which is subtracted as far as S − 1 mean squares can tell.
    Where every split deals rows to clients anew, MS_clients is that of single cells.

    One seed leaves the variance between clients, and one client that between seeds. NaN for a single value, and where a
    value is not finite.
    """
    from scipy.special import stdtrit

    values = np.atleast_2d(np.asarray(values, dtype=np.float64))
    mean = float(values.mean())
    if not np.isfinite(values).all() or values.size < 2:
        return float("nan"), float("nan")
    if min(values.shape) < 2:
        margin = float(stdtrit(values.size - 1, QUANTILE) * values.std(ddof=1) / np.sqrt(values.size))
        return mean - margin, mean + margin
    of_seeds, of_clients, of_cells = mean_squares(values)
    seeds, clients = values.shape
    excess = max(of_seeds - of_cells * (1 - 1 / (seeds - 1)), 0.0)
    squares = stdtrit(clients - 1, QUANTILE) ** 2 * of_clients + stdtrit(seeds - 1, QUANTILE) ** 2 * excess
    margin = float(np.sqrt(squares / values.size))
    return mean - margin, mean + margin


def mean_squares(values: np.ndarray) -> tuple[float, float, float]:
    """Mean squares of `values` [S, N] between seeds, between clients and of single cells; S and N are 2 or more."""
    seeds, clients = values.shape
    seed_effects, client_effects = values.mean(1) - values.mean(), values.mean(0) - values.mean()
    cells = values - values.mean() - seed_effects[:, None] - client_effects
    return (
        float(clients * (seed_effects**2).sum() / (seeds - 1)),
        float(seeds * (client_effects**2).sum() / (clients - 1)),
        float((cells**2).sum() / ((seeds - 1) * (clients - 1))),
    )
