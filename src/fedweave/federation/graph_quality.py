"""How good a collaboration graph [N, N] (row = learner) is: does it show the true groups, or whose targets are alike?

A client's weight on itself counts nowhere. Rows about which nothing can be said are left out; NaN where none is left.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

AUC, PRECISION, MASS = "group_auc", "group_precision", "group_mass"
SIMILARITY, VARIATION = "similarity_correlation", "row_variation"
EDGES = "edge_value_correlation"
MEANING: Mapping[str, str] = {
    AUC: "AUC for own group",
    PRECISION: "average precision for own group",
    MASS: "weight on own group",
    SIMILARITY: "rank correlation of weight and similarity of targets",
    VARIATION: "variation between rows",
    EDGES: "rank correlation of weight and gain of a source",
}


def quality(weights: np.ndarray, group: np.ndarray | None, divergence: np.ndarray | None) -> dict[str, float]:
    """Quantity -> value of graphs [L, N, N], averaged over layers; only quantities that have a value.

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
    values = {name: float(np.mean([rule(layer) for layer in layers])) for name, rule in rules.items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def group_auc(weights: np.ndarray, group: np.ndarray) -> float:
    """How well weights separate clients of the learner's group [N] from others.

    The area under the ROC curve of each row, averaged over rows: the chance that a client of the learner's group has a
    larger weight than one of another group, ties counted half. 1 is perfect, 0.5 is chance.
    """
    areas = []
    for own_group, other_groups in _split_rows(weights, group):
        ordered = np.sort(other_groups)
        wins = (np.searchsorted(ordered, own_group, "left") + np.searchsorted(ordered, own_group, "right")) / 2
        areas.append(float(wins.mean() / other_groups.size))
    return _mean(areas)


def group_precision(weights: np.ndarray, group: np.ndarray) -> float:
    """Average precision of each row for the clients of the learner's group, averaged over rows.

    1 is perfect; chance is the share of these clients among the others. Equal weights are one threshold.
    """
    values = []
    for own_group, other_groups in _split_rows(weights, group):
        scores = np.concatenate([own_group, other_groups])
        thresholds = np.unique(scores)[::-1]
        hits = len(own_group) - np.searchsorted(np.sort(own_group), thresholds, "left")
        chosen = len(scores) - np.searchsorted(np.sort(scores), thresholds, "left")
        gained = np.diff(hits, prepend=0) / len(own_group)
        values.append(float((gained * hits / chosen).sum()))
    return _mean(values)


def group_mass(weights: np.ndarray, group: np.ndarray) -> float:
    """Share of a row's weight on others that is on clients of its own group, averaged over rows; signs are dropped."""
    masses = []
    for own_group, other_groups in _split_rows(np.abs(weights), group):
        total = own_group.sum() + other_groups.sum()
        if total > 0:
            masses.append(float(own_group.sum() / total))
    return _mean(masses)


def similarity_correlation(weights: np.ndarray, divergence: np.ndarray) -> float:
    """Spearman's correlation, in each row, of the weights with minus the `divergence` [N, N], averaged over rows.

    1: the more alike two clients' targets are, the larger the weight between them. Constant rows are left out.
    """
    count = len(weights)
    others = ~np.eye(count, dtype=bool)
    if count < 3 or not np.isfinite(weights).all():
        return float("nan")
    pairs = (weights[others].reshape(count, -1), -divergence[others].reshape(count, -1))
    a, b = (_ranks(part) - count / 2 for part in pairs)
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return _mean([float(x) for x in (a * b).sum(1)[size > 0] / size[size > 0]])


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The rank of each entry in its row, from 1 on, ties averaged; importing scipy.stats for this costs a second."""
    ordered = np.sort(rows, axis=1)
    ends = [[np.searchsorted(o, row, side) for o, row in zip(ordered, rows, strict=True)] for side in ("left", "right")]
    return (np.sum(ends, axis=0) + 1) / 2


def row_variation(weights: np.ndarray) -> float:
    """How much rows differ: 0 where every client gets the same mixture of the others, which is no graph.

    The standard deviation of each column over rows, averaged over columns and divided by the mean weight between two
    clients. NaN for fewer than three clients, or where there is no weight between clients.
    """
    count = len(weights)
    others = np.asarray(weights, dtype=np.float64)[~np.eye(count, dtype=bool)]
    if count < 3 or not np.isfinite(others).all() or not others.any():
        return float("nan")
    masked = np.ma.masked_array(weights, np.eye(count, dtype=bool), dtype=np.float64)
    return float(np.ma.std(masked, axis=0).mean() / abs(others.mean()))


def _split_rows(weights: np.ndarray, group: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(weights on the own group, weights on other groups) of every row that has clients of both kinds."""
    if not np.isfinite(weights).all():
        return
    clients = np.arange(len(group))
    for row, own in zip(np.asarray(weights, dtype=np.float64), clients, strict=True):
        same = (group == group[own]) & (clients != own)
        if same.any() and (group != group[own]).any():
            yield row[same], row[group != group[own]]


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
