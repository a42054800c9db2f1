"""Subgraph clients: METIS parts of the largest connected component, disjoint or overlapping.

Source: J. Baek et al., "Personalized Subgraph Federated Learning" (ICML 2023), JinheonBaek/FED-PUB; shares
40/30/30 and the global permutation as in CarrieWFF/FedSheafHN. Legend: V nodes, E directed edges, N clients.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from fedweave.data.base import Dataset, Partition
from fedweave.data.partitions.registry import rule
from fedweave.data.partitions.splits import PARTS, Shares, parse_split, part_sizes
from fedweave.errors import BadInput
from fedweave.settings import Above, AtLeast, AtMost
from fedweave.tensors.random_streams import stream

ROLES, SAMPLES = range(2)  # purposes of the random streams
SHARES = {"train": 0.4, "val": 0.3, "test": 0.3}


@rule("metis", kinds=("graph",))
def metis(dataset: Dataset, clients: int, seed: int, *, split: Shares = SHARES) -> Partition:
    """One METIS part of the largest connected component a client, with the edges inside it."""
    component = largest_component(dataset.links, len(dataset.x))
    assignment = metis_parts(dataset, component, clients)
    nodes = [component[assignment == i] for i in range(clients)]
    return _build_partition(dataset, nodes, component, seed, split, None)


@rule("metis_overlap", kinds=("graph",), shared_test=True)
def metis_overlap(
    dataset: Dataset,
    clients: int,
    seed: int,
    *,
    copies: Annotated[int, AtLeast(1), "clients per METIS part"] = 5,
    share: Annotated[float, Above(0), AtMost(1), "of a part's nodes that each of its clients has"] = 0.5,
    split: Shares = SHARES,
) -> Partition:
    """N / `copies` METIS parts; from each, `copies` independent random `share`s of its nodes."""
    if clients % copies:
        raise BadInput(f"partition.clients: {clients} is not a multiple of copies: {copies}")
    component = largest_component(dataset.links, len(dataset.x))
    assignment = metis_parts(dataset, component, clients // copies)
    nodes = []
    for i in range(clients):
        part = component[assignment == i // copies]
        nodes.append(np.sort(stream(seed, SAMPLES, i).permutation(part)[: int(len(part) * share)]))
    return _build_partition(dataset, nodes, component, seed, split, np.arange(clients) // copies)


def largest_component(edges: np.ndarray, count: int) -> np.ndarray:
    """Sorted nodes of the largest connected component of `edges` [2, E] between `count` nodes."""
    from scipy.sparse.csgraph import connected_components

    labels = connected_components(_csr(edges, count), directed=False)[1]
    return np.flatnonzero(labels == np.bincount(labels).argmax())


def metis_parts(dataset: Dataset, nodes: np.ndarray, parts: int) -> np.ndarray:
    """Part of each of `nodes` [V] of a graph: METIS k-way edge cut of the subgraph they induce.

    Raises:
        BadInput: METIS leaves a part empty.
    """
    import pymetis

    graph = _csr(induced_edges(dataset.links, nodes, len(dataset.x)), len(nodes))
    adjacency = pymetis.CSRAdjacency(graph.indptr.tolist(), graph.indices.tolist())
    assignment = np.asarray(pymetis.part_graph(parts, adjacency, recursive=False).vertex_part)
    if len(np.unique(assignment)) < parts:
        raise BadInput(f"partition.clients: METIS cannot cut {len(nodes)} nodes in {parts} parts; use fewer clients")
    return assignment


def induced_edges(edges: np.ndarray, nodes: np.ndarray, count: int) -> np.ndarray:
    """Edges [2, E'] inside `nodes`, as positions in `nodes`, of a graph with `count` nodes."""
    position = np.full(count, -1, dtype=np.int64)
    position[nodes] = np.arange(len(nodes))
    local = position[edges]
    return local[:, (local >= 0).all(0)]


def _csr(edges: np.ndarray, count: int) -> Any:
    from scipy.sparse import csr_matrix

    ones = np.ones(edges.shape[1], dtype=np.int32)
    return csr_matrix((ones, (edges[0], edges[1])), shape=(count, count))


def _build_partition(
    dataset: Dataset,
    nodes: list[np.ndarray],
    component: np.ndarray,
    seed: int,
    split: Mapping[str, float],
    group: np.ndarray | None,
) -> Partition:
    """Clients on `nodes`; one global permutation of `component` gives each node the same role in every client."""
    shares = parse_split(split, 0.1, tested=True)
    role = np.full(len(dataset.x), -1)
    train, val, test = part_sizes(len(component), shares, dataset.name)
    role[stream(seed, ROLES).permutation(component)] = np.repeat([0, 2, 1], [train, test, val])
    parts = [tuple(np.flatnonzero(role[client] == part) for client in nodes) for part in range(len(PARTS))]
    for key, rows, share in zip(PARTS, parts, shares, strict=True):
        empty = [i for i, client_rows in enumerate(rows) if not len(client_rows)]
        if empty and share:  # there may be no validation part, see `parse_split`
            raise BadInput(f"partition.clients: client {empty[0]} has no {key} node; use fewer clients")
    edges = tuple(induced_edges(dataset.links, client, len(dataset.x)) for client in nodes)
    return Partition(parts[0], parts[1], parts[2], nodes=tuple(nodes), edges=edges, group=group)
