"""How good a collaboration graph [N, N] (row = learner) is: does it show the true groups, or whose targets are alike?

A client's weight on itself counts nowhere. Rows about which nothing can be said are left out; NaN where none is left.
"""

from collections.abc import Callable, Mapping

import numpy as np

AUC, PRECISION, MASS = "group_auc", "group_precision", "group_mass"
SIMILARITY, VARIATION = "similarity_correlation", "row_variation"
EDGES = "edge_value_correlation"
ALIKE = 0.05  # variation between rows below which every client gets nearly the same mixture, which is no graph
MEANING: Mapping[str, str] = {
    AUC: "AUC for own group",
    PRECISION: "average precision for own group",
    MASS: "weight on own group",
    SIMILARITY: "rank correlation of weight and similarity of targets",
    VARIATION: "variation between rows",
    EDGES: "rank correlation of weight and gain of a source",
}


def quality(weights: np.ndarray, group: np.ndarray | None, divergence: np.ndarray | None) -> dict[str, float]:
    """Quantity -> value of graphs [L, N, N]: the mean over the layers that have one; only quantities with a value.

    A layer that every client keeps has no weight between clients: it has `AUC` and `PRECISION`, those of chance, alone.

    Args:
        group: [N] the true group of each client, or None.
        divergence: [N, N] how much the targets of two clients differ, or None.
    """
    layers = weights[:1] if (weights == weights[:1]).all() else weights
    rules: dict[str, Callable[[np.ndarray], float]] = {VARIATION: row_variation}
    if group is not None:
        rules |= {
            AUC: lambda layer: group_auc(layer, group),
            PRECISION: lambda layer: group_precision(layer, group),
            MASS: lambda layer: group_mass(layer, group),
        }
    if divergence is not None:
        rules |= {SIMILARITY: lambda layer: similarity_correlation(layer, divergence)}
    values = {name: np.array([rule(layer) for layer in layers]) for name, rule in rules.items()}
    means = {name: _mean(each[np.isfinite(each)]) for name, each in values.items()}
    return {name: mean for name, mean in means.items() if np.isfinite(mean)}


def group_auc(weights: np.ndarray, group: np.ndarray) -> float:
    """How well weights separate clients of the learner's group [N] from others.

    The area under the ROC curve of each row, averaged over rows: the chance that a client of the learner's group has a
    larger weight than one of another group, ties counted half. 1 is perfect, 0.5 is chance.
    """
    values, own = _decidable_rows(weights, group)
    count = own.sum(1)
    wins = np.where(own, _ranks(values), 0).sum(1) - count * (count + 1) / 2
    return _mean(wins / (count * (~own).sum(1)))


def group_precision(weights: np.ndarray, group: np.ndarray) -> float:
    """Average precision of each row for the clients of the learner's group, averaged over rows.

    1 is perfect; chance is the share of these clients among the others. Equal weights are one threshold.
    """
    values, own = _decidable_rows(weights, group)
    order = np.argsort(-values, axis=1)
    own = np.take_along_axis(own, order, 1)
    last = _ties(np.take_along_axis(values, order, 1))[1]  # whom a threshold at this weight chooses
    hits = np.take_along_axis(own.cumsum(1), last, 1)
    return _mean((own * hits / (last + 1)).sum(1) / own.sum(1))


def group_mass(weights: np.ndarray, group: np.ndarray) -> float:
    """Share of a row's weight on others that is on clients of its own group, averaged over rows; signs are dropped."""
    values, own = _decidable_rows(np.abs(weights), group)
    total = values.sum(1)
    return _mean(np.where(own, values, 0).sum(1)[total > 0] / total[total > 0])


def similarity_correlation(weights: np.ndarray, divergence: np.ndarray) -> float:
    """Spearman's correlation, in each row, of the weights with minus the `divergence` [N, N], averaged over rows.

    1: the more alike two clients' targets are, the larger the weight between them. Constant rows are left out.
    """
    count = len(weights)
    if count < 3 or not np.isfinite(weights).all():
        return float("nan")
    a, b = (_ranks(_off_diagonal(part)) - count / 2 for part in (weights, -divergence))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return _mean((a * b).sum(1)[size > 0] / size[size > 0])


def row_variation(weights: np.ndarray) -> float:
    """How much rows differ: 0 where every client gets the same mixture of the others, which is no graph.

    The standard deviation of each column over rows, averaged over columns and divided by the mean weight between two
    clients. NaN for fewer than three clients, or where there is no weight between clients.
    """
    columns = _off_diagonal(np.asarray(weights, dtype=np.float64).T)
    if len(weights) < 3 or not np.isfinite(columns).all() or not columns.any():
        return float("nan")
    return float(columns.std(1).mean() / abs(columns.mean()))


def _off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """The rows of [N, N] without their entries on the diagonal, [N, N - 1]."""
    count = len(matrix)
    return matrix[~np.eye(count, dtype=bool)].reshape(count, -1)


def _decidable_rows(weights: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights on others [R, N - 1], and whether these are of the own group, of the rows that have others of both
    kinds.
    """
    values, own = _off_diagonal(np.asarray(weights, dtype=np.float64)), _off_diagonal(group[:, None] == group)
    rows = own.any(1) & ~own.all(1) & bool(np.isfinite(weights).all())
    return values[rows], own[rows]


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The rank of each entry in its row, from 1 on, ties averaged; importing scipy.stats for this costs a second."""
    order = np.argsort(rows, axis=1)
    first, last = _ties(np.take_along_axis(rows, order, 1))
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, 1)
    return ranks


def _ties(ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of the first and of the last entry that equals an entry, in rows that are in order."""
    places, rows = np.arange(ordered.shape[1]), len(ordered)
    new = np.concatenate([np.ones((rows, 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    ends = np.concatenate([new[:, 1:], np.ones((rows, 1), bool)], axis=1)
    first = np.maximum.accumulate(np.where(new, places, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, places, places.size)[:, ::-1], axis=1)[:, ::-1]
    return first, last


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
