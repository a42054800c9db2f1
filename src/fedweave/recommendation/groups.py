"""Groups of clients in a collaboration graph, if the weights are denser within groups in every seed."""

from collections.abc import Sequence

import numpy as np

MIN_MODULARITY = 0.1
MIN_AGREEMENT = 0.8  # mean adjusted Rand index between the groups of a seed and those of all seeds
MIN_SHARE_OF_OTHERS = 0.1  # of all weights; with less, every client learns from itself


def groups(graphs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Number of each client's group [N], or None where the graphs show no groups.

    Average linkage on the symmetric weights between clients proposes 2 to N - 1 groups; the number with the largest
    modularity (Newman, 2006) is taken. The modularity must be at least 0.1, and the graphs of single seeds must show
    the same groups.

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
    to_others = mean - np.diag(np.diag(mean))
    if to_others.sum() < MIN_SHARE_OF_OTHERS * mean.sum():
        return None
    members, quality = partition(mean)
    if quality < MIN_MODULARITY:
        return None
    if len(graphs) > 1:
        from sklearn.metrics import adjusted_rand_score

        if np.mean([adjusted_rand_score(members, partition(graph)[0]) for graph in graphs]) < MIN_AGREEMENT:
            return None
    return members


def partition(weights: np.ndarray) -> tuple[np.ndarray, float]:
    """(group of each client [N], numbered by first members; modularity) of one graph [N, N]."""
    from scipy.cluster.hierarchy import fcluster, linkage

    affinity = (weights + weights.T) / 2
    np.fill_diagonal(affinity, 0.0)
    count = len(affinity)
    distances = (affinity.max() - affinity)[np.triu_indices(count, 1)]
    tree = linkage(distances, "average")
    partitions = [fcluster(tree, k, "maxclust") for k in range(2, count)]
    scores = [modularity(affinity, groups) for groups in partitions]
    best = int(np.argmax(scores))
    _, first_members, numbers = np.unique(partitions[best], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_members))[numbers], scores[best]


def modularity(affinity: np.ndarray, group: np.ndarray) -> float:
    """Newman's modularity of `group` [N] on symmetric weights [N, N] without a diagonal; 0 without weights."""
    total = affinity.sum()
    if total <= 0:
        return 0.0
    strength = affinity.sum(1)
    expected = np.outer(strength, strength) / total
    return float(((affinity - expected) * (group[:, None] == group)).sum() / total)
