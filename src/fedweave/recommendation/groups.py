"""Groups of clients in a collaboration graph: found only where the weights are denser within them, in every seed."""

from collections.abc import Sequence

import numpy as np

DENSER = 0.1  # least modularity
AGREEMENT = 0.8  # least mean adjusted Rand index between the groups of a seed and those of all seeds
OTHERS = 0.1  # least weight that a client gives to others; below, everybody learns from itself


def groups(graphs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Number of each client's group [N], or None where the graphs show no groups.

    Average linkage on the symmetric weights between clients proposes 2 to N - 1 groups; the number with the largest
    modularity (Newman, 2006) is taken. It must be at least 0.1, and the graphs of single seeds must show the same
    groups.

    Args:
        graphs: weights [N, N] of each seed; row = learner, column = source.

    >>> blocks = np.kron(np.eye(2), np.ones((3, 3))) / 3
    >>> groups([blocks, blocks]).tolist()
    [0, 0, 0, 1, 1, 1]
    >>> groups([np.ones((6, 6)) / 6] * 2) is None
    True
    """
    mean = np.mean(graphs, axis=0)
    if len(mean) < 4 or not np.isfinite(mean).all():
        return None
    between = mean - np.diag(np.diag(mean))
    if between.sum() < OTHERS * mean.sum():
        return None
    members, quality = partition(mean)
    if quality < DENSER:
        return None
    if len(graphs) > 1:
        from sklearn.metrics import adjusted_rand_score

        if np.mean([adjusted_rand_score(members, partition(graph)[0]) for graph in graphs]) < AGREEMENT:
            return None
    return members


def partition(weights: np.ndarray) -> tuple[np.ndarray, float]:
    """(group of each client [N], numbered by first members; modularity) of one graph [N, N]."""
    from scipy.cluster.hierarchy import fcluster, linkage

    affinity = (weights + weights.T) / 2
    np.fill_diagonal(affinity, 0.0)
    count = len(affinity)
    apart = (affinity.max() - affinity)[np.triu_indices(count, 1)]
    tree = linkage(apart, "average")
    cuts = [fcluster(tree, k, "maxclust") for k in range(2, count)]
    scores = [modularity(affinity, cut) for cut in cuts]
    best = int(np.argmax(scores))
    _, first, numbers = np.unique(cuts[best], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers], scores[best]


def modularity(affinity: np.ndarray, group: np.ndarray) -> float:
    """Newman's modularity of `group` [N] on symmetric weights [N, N] without a diagonal; 0 without weights."""
    total = affinity.sum()
    if total <= 0:
        return 0.0
    strength = affinity.sum(1)
    expected = np.outer(strength, strength) / total
    return float(((affinity - expected) * (group[:, None] == group)).sum() / total)
