"""Federations of graphs: one subgraph per client, from arrays or from a table of nodes and one of edges."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data import Dataset, Partition
from fedweave.data.base import symmetrise_edges
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data import arrays, data_warnings
from fedweave.own_data.arrangement import Arrangement
from fedweave.own_data.column_encoding import Preprocessing, fit_columns
from fedweave.own_data.column_roles import column_values, feature_columns, named_columns, read_named
from fedweave.own_data.row_options import RowOptions, arrange, client_fields, partition_fields
from fedweave.own_data.user_files import read_pairs


def fields_from_graphs(graphs: Any, options: RowOptions) -> dict[str, Any]:
    """The fields of a federation of one graph (x, edges, y) per client."""
    graph_of = arrays.as_graphs(graphs)
    parts = [*graph_of.values()]
    sizes = [len(x) for x, _, _ in parts]
    first = np.cumsum([0, *sizes[:-1]])
    split = options.split
    if not (split is None or isinstance(split, str | Mapping)):
        split = _join_splits(split, dict(zip(graph_of, sizes, strict=True)))
    owner = np.repeat(np.arange(len(parts)), sizes)
    labels = np.concatenate([y for _, _, y in parts])
    arrangement = arrange(labels, owner, len(owner), replace(options, split=split), tuple(graph_of))
    edges = np.concatenate([pairs + start for (_, pairs, _), start in zip(parts, first, strict=True)], axis=1)
    return _fields(np.concatenate([x for x, _, _ in parts]), edges, arrangement, options, ())


def _join_splits(split: Any, nodes: Mapping[str, int]) -> list[Any]:
    """The labels of all nodes, from one list per client; `nodes` has the number of each client's nodes.

    Raises:
        BadInput: a list is missing, or has another length.
    """
    lists = [[*one] if isinstance(one, Iterable) else [one] for one in split] if isinstance(split, Iterable) else []
    if len(lists) != len(nodes):
        raise BadInput(f"split: {format_value(split)} is not one list for each of {format_count(len(nodes), 'client')}")
    for (client, count), labels in zip(nodes.items(), lists, strict=True):
        if len(labels) != count:
            raise BadInput(
                f"split: {format_count(len(labels), 'label')}, but {client!r} has "
                f"{format_count(count, 'node')}; give one for each"
            )
    return [label for labels in lists for label in labels]


def fields_from_tables(
    nodes: Any,
    edges: Any,
    node: str,
    client: str,
    label: str,
    features: Sequence[str] | None,
    options: RowOptions,
    exclude: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
) -> dict[str, Any]:
    """The fields of a federation of a table of nodes and one of edges.

    Args:
        preprocessing: of the columns; default: fitted on the training rows.
    """
    table = read_named(nodes, vars(options), node, client)
    option_columns = named_columns(table, options)
    selected = feature_columns(table, client, [label], features, {**option_columns, "node": node}, exclude=exclude)
    if node in selected:
        raise BadInput(f"features: {node!r} is the node's own name, which says nothing of other nodes; leave it out")
    options = replace(options, **{key: column_values(table, column) for key, column in option_columns.items()})
    arrangement = arrange(column_values(table, label), column_values(table, client), len(table), options)
    preprocessing = preprocessing or fit_columns(table, selected, arrangement.rows["train"], embed=False)
    pairs = _positions(edges, table[node].tolist())
    within = arrangement.owner[pairs[0]] == arrangement.owner[pairs[1]]
    dropped = int((~within).sum())
    verbs = "joins nodes of two clients and is" if dropped == 1 else "join nodes of two clients and are"
    edge_notes = [f"{dropped} of {len(within)} edges {verbs} left out"] if dropped else []
    notes = (*edge_notes, *data_warnings.find_infinite(table, preprocessing.columns))
    x = preprocessing.encode(table)
    fields = _fields(
        x, symmetrise_edges(pairs[:, within], len(table)), arrangement, options, notes, tuple(preprocessing.as_data())
    )
    dataset = replace(fields["dataset"], client_column=client)
    return {**fields, "dataset": dataset, "preprocessing": preprocessing}


def _positions(edges: Any, ids: Sequence[Any]) -> np.ndarray:
    """Edges [2, E] as rows of the table of nodes.

    Raises:
        BadInput: two nodes have one name, or an edge has a node that is not there.
    """
    position = {one: i for i, one in enumerate(ids)}
    if len(position) < len(ids):
        duplicate = next(one for i, one in enumerate(ids) if position[one] != i)
        raise BadInput(f"nodes: {duplicate!r} occurs twice; each node has one row")
    pairs = read_pairs(edges, "edges")
    if isinstance(edges, str | Path) and all(isinstance(one, str) for one in ids):  # codes without zeros are numbers
        pairs = [(str(first), str(second)) for first, second in pairs]
    unknown = [one for pair in pairs for one in pair if not isinstance(one, Hashable) or one not in position]
    if unknown:
        raise BadInput(f"edges: {unknown[0]!r} is not a node; add its row, or drop its edges")
    return np.array([[position[one] for one in pair] for pair in pairs], dtype=np.int64).reshape(-1, 2).T


def _fields(
    x: np.ndarray,
    edges: np.ndarray,
    arrangement: Arrangement,
    options: RowOptions,
    notes: tuple[str, ...],
    columns: tuple[Any, ...] = (),
) -> dict[str, Any]:
    """Fields of a federation from nodes [V, F] in any order and edges [2, E] within clients, in both directions."""
    owner, count = arrangement.owner, len(arrangement.names)
    if arrangement.labels is None:
        raise BadInput("y: nodes have classes; give whole numbers or names, or target='classes'")
    nodes = tuple(np.flatnonzero(owner == i) for i in range(count))
    local = np.empty(len(owner), dtype=np.int64)
    for rows in nodes:
        local[rows] = np.arange(len(rows))
    subgraphs = tuple(local[edges[:, owner[edges[0]] == i]] for i in range(count))
    parts = {part: tuple(local[rows] for rows in arrangement.rows[part]) for part in PARTS}
    dataset = Dataset(
        options.name, "graph", x, arrangement.labels, classes=len(arrangement.classes), edges=edges,
        class_names=arrangement.classes, columns=columns,
    )  # fmt: skip
    partition = Partition(
        parts["train"], parts["val"], parts["test"], nodes=nodes, edges=subgraphs, **client_fields(arrangement, options)
    )
    return partition_fields(dataset, partition, arrangement, options, x.shape[1:], notes)
