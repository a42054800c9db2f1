"""One graph per client as a data set and a partition."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedweave.api import arrays
from fedweave.api.splits import split_rows
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput

Graph = tuple[Any, Any, Any]  # x [V, F], edge_index [2, E], y [V]


class Packed(NamedTuple):
    """Graphs as one data set; `notes` name classes that no training node has."""

    dataset: Dataset
    partition: Partition
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def pack_graphs(
    graphs: Sequence[Graph] | Mapping[str, Graph], split: Any, val: float | None, name: str, seed: int
) -> Packed:
    """The graphs of all clients one after the other; arguments are those of `Federation.from_graphs`.

    Raises:
        BadInput: shapes that do not fit each other, or parts that overlap or are empty.
    """
    named = dict(graphs) if isinstance(graphs, Mapping) else {f"client {i}": graph for i, graph in enumerate(graphs)}
    parts = [arrays.as_graph(graph, client) for client, graph in named.items()]
    if not parts or len({x.shape[1] for x, _, _ in parts}) > 1:
        raise BadInput(
            f"graphs: {len(parts)} of them, with {sorted({x.shape[1] for x, _, _ in parts})} features; they must agree"
        )
    sizes = [len(x) for x, _, _ in parts]
    first, owner = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(parts)), sizes)
    labels, classes = arrays.as_classes(np.concatenate([y for _, _, y in parts]), sum(sizes))
    labelled = not (split is None or isinstance(split, Mapping))
    whole = [part for given in split for part in given] if labelled else split
    rows = split_rows(owner, labels, tuple(named), whole, None, val, seed)
    local = {part: tuple(mine - start for mine, start in zip(rows[part], first, strict=True)) for part in PARTS}
    edges = np.concatenate([e + start for (_, e, _), start in zip(parts, first, strict=True)], axis=1)
    dataset = Dataset(
        name, "graph", np.concatenate([x for x, _, _ in parts]), labels, classes=len(classes), edges=edges
    )
    nodes = tuple(np.arange(size) + start for size, start in zip(sizes, first, strict=True))
    partition = Partition(
        local["train"],
        local["val"],
        local["test"],
        nodes=nodes,
        edges=tuple(e for _, e, _ in parts),
        names=tuple(named),
    )
    return Packed(dataset, partition, classes, arrays.unseen_classes(labels, rows, classes))
