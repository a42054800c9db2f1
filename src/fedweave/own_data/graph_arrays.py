"""Graphs as users hold them, arrays or `Data` of PyTorch Geometric: one of each client, with their split."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedweave import data
from fedweave.data.base import symmetrise_edges
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data import arrays
from fedweave.own_data.array_checks import as_array, check_size

FORM = "give (x [V, F], edge_index [2, E], y [V])"
MASKS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}
UNUSED = ("edge_weight", "edge_attr")  # of `Data`; the models of clients read which nodes are neighbours, and no more


def name_graphs(graphs: Any) -> dict[str, Any]:
    """Name of the client -> its graph."""
    if _is_data(graphs):
        raise BadInput(f"graphs: {graphs} is one graph; give a list or a mapping with one of each client")
    if not isinstance(graphs, Iterable):
        raise BadInput(f"graphs: {format_value(graphs)} is not a list of graphs; give each client's (x, edge_index, y)")
    return arrays.name_clients(graphs, "graphs")


def as_arrays(named: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Features [V, F], edges [2, E] in both directions and classes [V] of each client."""
    parts = [_as_graph(graph, client) for client, graph in named.items()]
    widths = sorted({x.shape[1] for x, _, _ in parts})
    if len(widths) != 1:
        raise BadInput(f"graphs: their numbers of features are {widths}; give at least one, all with the same number")
    return parts


def read_masks(named: Mapping[str, Any]) -> list[list[str]] | None:
    """The part of each node of each client, "" for none, by the masks of `Data`; None if there are no masks."""
    has = {
        client: tuple(part for part, mask in MASKS.items() if _read(graph, mask) is not None)
        for client, graph in named.items()
    }
    first = next(iter(has), "")
    if not any(has.values()):
        return None
    if other := next((client for client, parts in has.items() if parts != has[first]), None):
        own, others = (", ".join(parts) or "none" for parts in (has[first], has[other]))
        raise BadInput(
            f"graphs: {first!r} has masks of {own}, and {other!r} of {others}; give all graphs the same ones, or "
            "split= or shares="
        )
    return [_read_parts(graph, client, has[client]) for client, graph in named.items()]


def describe_unused(named: Mapping[str, Any]) -> tuple[str, ...]:
    """A note for each attribute of edges that `Data` has and no model reads."""
    count = {name: sum(_read(graph, name) is not None for graph in named.values()) for name in UNUSED}
    return tuple(
        f"{name} of {format_count(number, 'graph')} is not used: all edges count the same"
        for name, number in count.items()
        if number
    )


def _is_data(graph: Any) -> bool:
    """Whether a graph is a `Data`, or a batch of them. Its package is not imported: only its users have one."""
    return not isinstance(graph, list | tuple | Mapping) and hasattr(graph, "edge_index") and hasattr(graph, "x")


def _read(graph: Any, name: str) -> Any:
    """An attribute of `Data`; None where it is missing, and of other graphs."""
    return getattr(graph, name, None) if _is_data(graph) else None


def _read_parts(graph: Any, client: str, parts: tuple[str, ...]) -> list[str]:
    """The part of each node of a graph by its masks."""
    masks = {part: np.asarray(_read(graph, MASKS[part])) for part in parts}
    for part, mask in masks.items():
        if mask.dtype != bool or mask.shape != (len(graph.x),):
            several = f"; of several splits choose one, such as {MASKS[part]}[:, 0]" if mask.ndim == 2 else ""
            raise BadInput(
                f"graphs: {client!r} has a {MASKS[part]} of {mask.dtype} {list(mask.shape)}; it must be True or False "
                f"for each of {format_count(len(graph.x), 'node')}{several}"
            )
    stacked = np.stack([*masks.values()])
    if (both := stacked.sum(0) > 1).any():
        raise BadInput(f"graphs: {client!r} has node {int(both.argmax())} in two of its masks; leave it in one")
    return ["" if not own.any() else parts[int(own.argmax())] for own in stacked.T]


def _as_graph(graph: Any, client: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, edges in both directions and classes of one client."""
    if _is_data(graph):
        if missing := [name for name in ("x", "edge_index", "y") if _read(graph, name) is None]:
            raise BadInput(f"graphs: {client!r} has no {missing[0]}: {graph}; {FORM}")
        is_column = getattr(graph.y, "shape", ())[1:] == (1,)
        graph = (graph.x, graph.edge_index, graph.y.reshape(-1) if is_column else graph.y)
    if not isinstance(graph, list | tuple) or len(graph) != 3:
        raise BadInput(f"graphs: {client!r} has {format_value(graph)}; {FORM}")
    x, edges, y = (as_array(part, f"graphs: {client!r}", FORM) for part in graph)
    edges = edges if edges.size else edges.astype(np.int64)  # NumPy takes empty lists for fractions
    fits = x.ndim == 2 and y.shape == (len(x),) and edges.ndim == 2 and len(edges) == 2
    if not fits or x.dtype.kind not in "biuf" or edges.dtype.kind not in "iu":
        raise BadInput(
            f"graphs: {client!r} has x {list(x.shape)}, edge_index {list(edges.shape)} and y {list(y.shape)}; "
            "they must be numbers [V, F], whole numbers [2, E], and a class for each node [V]"
        )
    check_size(x, f"graphs: x of {client!r}")
    x = x.astype(np.float32)
    data.check_finite(x, f"graphs: x of {client!r}", "drop these nodes, or fill them in")
    if edges.size and (edges.min() < 0 or edges.max() >= len(x)):
        node = edges.min() if edges.min() < 0 else edges.max()
        raise BadInput(f"graphs: {client!r} has an edge of node {node}; its nodes are 0 to {len(x) - 1}")
    return x, symmetrise_edges(edges, len(x)), y
