"""Quality of a collaboration graph [N, N] (row = learner): does it show the true groups, or clients with like targets?
Has it collapsed?

A learned graph can collapse in two ways: to *consensus*, where all clients get nearly the same mixture, and to *self*,
where each one learns from itself alone. Either may be right for the data, but then no graph was needed.

Only the quantities of collapse count a client's weight on itself. Rows for which a quantity is not defined are left
out. The result is NaN if no row is left.
"""

from collections.abc import Callable, Mapping

import numpy as np

AUC, PRECISION, MASS = "group_auc", "group_precision", "group_mass"
SIMILARITY, VARIATION = "similarity_correlation", "row_variation"
EDGES = "edge_value_correlation"
SOURCES, FROM_UNIFORM, FROM_SELF = "effective_sources", "distance_to_uniform", "distance_to_self"
ALIKE = 0.05  # below this variation between rows, all clients get nearly the same mixture, which is not a graph
ALONE = 0.05  # below this distance to self, clients learn from themselves alone
COLLAPSES: Mapping[str, str] = {
    "consensus": "all clients get nearly the same mixture",
    "self": "each client learns from itself alone",
}
MEANING: Mapping[str, str] = {
    AUC: "AUC for own group",
    PRECISION: "average precision for own group",
    MASS: "weight on own group",
    SIMILARITY: "rank correlation of weight and similarity of targets",
    VARIATION: "variation between rows",
    SOURCES: "effective number of sources",
    FROM_UNIFORM: "distance to equal weights",
    FROM_SELF: "distance to self",
    EDGES: "rank correlation of weight and gain of a source",
}


def quality(weights: np.ndarray, group: np.ndarray | None, divergence: np.ndarray | None) -> dict[str, float]:
    """Quantity -> value of graphs [L, N, N]: the mean over the layers that have one; only quantities with a value.

    A layer that all clients share as one mixture, such as the averaged body of FedPAC, is not a graph and does not
    count, unless all layers are like this. A layer that no client shares has no weight between clients. It has only
    `AUC` and `PRECISION`, those of chance.

    Args:
        group: [N] the true group of each client, or None.
        divergence: [N, N] how much the targets of two clients differ, or None.
    """
    layers = _graph_layers(weights[:1] if (weights == weights[:1]).all() else weights)
    rules: dict[str, Callable[[np.ndarray], float]] = {
        VARIATION: row_variation,
        SOURCES: effective_sources,
        FROM_UNIFORM: distance_to_uniform,
        FROM_SELF: distance_to_self,
    }
    if group is not None:
        rules |= {
            AUC: lambda layer: group_auc(layer, group),
            PRECISION: lambda layer: group_precision(layer, group),
            MASS: lambda layer: group_mass(layer, group),
        }
    if divergence is not None:
        rules |= {SIMILARITY: lambda layer: similarity_correlation(layer, divergence)}
    values = {name: np.array([rule(layer) for layer in layers]) for name, rule in rules.items()}
    means = {name: _mean(layer_values[np.isfinite(layer_values)]) for name, layer_values in values.items()}
    return {name: mean for name, mean in means.items() if np.isfinite(mean)}


def group_auc(weights: np.ndarray, group: np.ndarray) -> float:
    """How well weights separate clients of the learner's group [N] from others.

    The area under the ROC curve of each row, averaged over rows: the chance that a client of the learner's group has a
    larger weight than one of another group, ties counted half. 1 is perfect, 0.5 is chance.
    """
    values, same_group = _decidable_rows(weights, group)
    count = same_group.sum(1)
    wins = np.where(same_group, _ranks(values), 0).sum(1) - count * (count + 1) / 2
    return _mean(wins / (count * (~same_group).sum(1)))


def group_precision(weights: np.ndarray, group: np.ndarray) -> float:
    """Average precision of each row for the clients of the learner's group, averaged over rows.

    1 is perfect; chance is the share of these clients among the others. Equal weights are one threshold.
    """
    values, same_group = _decidable_rows(weights, group)
    order = np.argsort(-values, axis=1)
    same_group = np.take_along_axis(same_group, order, 1)
    last = _ties(np.take_along_axis(values, order, 1))[1]  # a threshold at this weight selects the entries up to it
    hits = np.take_along_axis(same_group.cumsum(1), last, 1)
    return _mean((same_group * hits / (last + 1)).sum(1) / same_group.sum(1))


def group_mass(weights: np.ndarray, group: np.ndarray) -> float:
    """Share of a row's weight on others that is on clients of its own group, averaged over rows; signs are dropped."""
    values, same_group = _decidable_rows(np.abs(weights), group)
    total = values.sum(1)
    return _mean(np.where(same_group, values, 0).sum(1)[total > 0] / total[total > 0])


def similarity_correlation(weights: np.ndarray, divergence: np.ndarray) -> float:
    """Spearman's correlation, in each row, of the weights with minus the `divergence` [N, N], averaged over rows.

    1: the more alike two clients' targets are, the larger the weight between them. Constant rows are left out.
    """
    count = len(weights)
    if count < 3 or not (np.isfinite(weights).all() and np.isfinite(divergence).all()):
        return float("nan")
    a, b = (_ranks(_off_diagonal(part)) - count / 2 for part in (weights, -divergence))
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return _mean((a * b).sum(1)[size > 0] / size[size > 0])


def row_variation(weights: np.ndarray) -> float:
    """How much rows differ: 0 where every client gets the same mixture of the others, which is not a graph.

    The standard deviation of each column over rows, averaged over columns and divided by the mean weight between two
    clients. NaN for fewer than three clients, or where this mean is 0.
    """
    columns = _off_diagonal(np.asarray(weights, dtype=np.float64).T)
    if len(weights) < 3 or not np.isfinite(columns).all() or not columns.mean():
        return float("nan")
    return float(columns.std(1).mean() / abs(columns.mean()))


def effective_sources(weights: np.ndarray) -> float:
    """How many sources a client learns from, itself included: exp of the entropy of a row's shares, mean over rows.

    N for equal weights on all N clients, 1 for a single source.
    """
    shares = _shares(weights)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return _mean(np.exp(-(shares * logs).sum(1)))


def distance_to_uniform(weights: np.ndarray) -> float:
    """Total variation between a row's shares and equal weights, mean over rows: 0, up to 1 − 1/N for one source."""
    return _mean(np.abs(_shares(weights) - 1 / max(len(weights), 1)).sum(1) / 2)


def distance_to_self(weights: np.ndarray) -> float:
    """Share of a row's weight that is not on the client itself, mean over rows; the total variation to a self loop."""
    return _mean(1 - _shares(weights).diagonal())


def collapse(variation: float, from_self: float) -> str:
    """The key in `COLLAPSES`, or "" for a graph that has not collapsed.

    Args:
        variation: `row_variation` of the graph; NaN counts as no consensus.
        from_self: `distance_to_self` of the graph; NaN counts as no self loops.
    """
    if from_self < ALONE:
        return "self"
    return "consensus" if variation < ALIKE else ""


def _shares(weights: np.ndarray) -> np.ndarray:
    """Absolute weights [N, N] as shares of their row. A client without any source has itself as the only one."""
    sizes = np.abs(np.asarray(weights, dtype=np.float64))
    total = sizes.sum(1, keepdims=True)
    return np.where(total == 0, np.eye(len(sizes)), sizes / np.where(total == 0, 1.0, total))


def _graph_layers(weights: np.ndarray) -> np.ndarray:
    """The layers [K, N, N] of [L, N, N] whose rows differ; all L if there is none."""
    is_graph = (weights != weights[:, :1]).any((1, 2))
    return weights[is_graph] if is_graph.any() else weights


def _off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """The rows of [N, N] without their entries on the diagonal, [N, N - 1]."""
    count = len(matrix)
    return matrix[~np.eye(count, dtype=bool)].reshape(count, -1)


def _decidable_rows(weights: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights on others [R, N - 1], and whether these are of the learner's group, bool [R, N - 1].

    Only rows that have others in the group and outside of it.
    """
    values, same_group = _off_diagonal(np.asarray(weights, dtype=np.float64)), _off_diagonal(group[:, None] == group)
    rows = same_group.any(1) & ~same_group.all(1) & bool(np.isfinite(weights).all())
    return values[rows], same_group[rows]


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The rank of each entry in its row, from 1 on, ties averaged."""
    # Not scipy.stats.rankdata: the import takes a second.
    order = np.argsort(rows, axis=1)
    first, last = _ties(np.take_along_axis(rows, order, 1))
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 + 1, 1)
    return ranks


def _ties(sorted_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each entry in sorted rows [R, M]: positions [R, M] of the first and of the last entry that equals it."""
    places, rows = np.arange(sorted_rows.shape[1]), len(sorted_rows)
    starts = np.concatenate([np.ones((rows, 1), bool), sorted_rows[:, 1:] != sorted_rows[:, :-1]], axis=1)
    ends = np.concatenate([starts[:, 1:], np.ones((rows, 1), bool)], axis=1)
    first = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, places, places.size)[:, ::-1], axis=1)[:, ::-1]
    return first, last


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
