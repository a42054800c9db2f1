"""Clients that depend on each other, so that tests treat them as one part: same unit, or shared test nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedweave.data.partitions.registry import TRAITS
from fedweave.runs.build import PreparedRun


def find_parts(prepared: PreparedRun) -> list[int] | None:
    """Number of each client's part [N]; None where every client is a part of its own.

    Clients are in one part if they are of one unit, if their test nodes are from one part of a graph, or if a chain of
    such clients connects them.
    """
    group, traits = prepared.federation.group, TRAITS.get(prepared.run.task.partition["name"])
    relations: list[Sequence[Any]] = [prepared.units] if prepared.units else []
    relations += [group.tolist()] if group is not None and traits and traits.shared_test else []
    if not relations:
        return None
    parts = connected_parts(relations, prepared.federation.clients)
    return parts.tolist() if len(np.unique(parts)) < len(parts) else None


def connected_parts(relations: Sequence[Sequence[Any]], count: int) -> np.ndarray:
    """Number of each client's part [count], from 0 in the order of the parts' first clients.

    Args:
        relations: each has one value for each client; equal values join their clients.

    >>> connected_parts([["Ann", "Bob", "Bob", "Cy", "Dee"], [0, 0, 1, 2, 3]], 5).tolist()
    [0, 0, 0, 1, 2]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    values = np.array([np.unique(relation, return_inverse=True)[1] for relation in relations]).reshape(-1, count)
    # A graph whose first nodes are the clients; the others are the values, at most `count` of each relation.
    ends = values + count * np.arange(1, len(values) + 1)[:, None]
    pairs = np.tile(np.arange(count), len(values)), ends.ravel().astype(np.int64)
    size = count * (len(values) + 1)
    graph = coo_array((np.ones(len(pairs[0])), pairs), shape=(size, size))
    return np.unique(connected_components(graph, directed=False)[1][:count], return_inverse=True)[1]
