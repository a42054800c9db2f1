"""Federations of graphs: one subgraph per client, from arrays or from a table of nodes and one of edges."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedweave import exported_model
from fedweave.data import Dataset, Partition
from fedweave.data.base import symmetrise_edges
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data import arrays, data_warnings, graph_arrays
from fedweave.own_data.arrangement import Arrangement, arrange, client_fields, partition_fields
from fedweave.own_data.array_checks import check_missing, concatenate, is_missing
from fedweave.own_data.column_encoding import Preprocessing, fit_columns
from fedweave.own_data.column_roles import column_values, feature_columns, named_columns, read_named
from fedweave.own_data.contents import describe_columns
from fedweave.own_data.pairs import read_pairs
from fedweave.own_data.row_options import DataOptions
from fedweave.own_data.splits import are_shares, labels_from_rows
from fedweave.own_data.user_files import NOTES


def fields_from_graphs(graphs: Any, options: DataOptions) -> dict[str, Any]:
    """The fields of a federation of one graph (x, edges, y) per client."""
    graph_of = graph_arrays.name_graphs(graphs)
    parts = graph_arrays.as_arrays(graph_of)
    sizes = [len(x) for x, _, _ in parts]
    first = np.cumsum([0, *sizes[:-1]])
    chosen = any(value is not None for value in (options.shares, options.time, options.recording))
    split = options.split if chosen or options.split is not None else graph_arrays.read_masks(graph_of)
    if not (split is None or isinstance(split, str | Mapping)):
        split = _join_splits(split, dict(zip(graph_of, sizes, strict=True)))
    owner = np.repeat(np.arange(len(parts)), sizes)
    labels = concatenate([y for _, _, y in parts])
    arrangement, notes = _arrange_nodes(labels, owner, tuple(graph_of), replace(options, split=split))
    edges = np.concatenate([pairs + start for (_, pairs, _), start in zip(parts, first, strict=True)], axis=1)
    notes = (*notes, *graph_arrays.describe_unused(graph_of))
    return _fields(np.concatenate([x for x, _, _ in parts]), edges, arrangement, options, notes)


def _arrange_nodes(
    y: Any, owner: np.ndarray, names: tuple[str, ...], options: DataOptions
) -> tuple[Arrangement, tuple[str, ...]]:
    """Classes and parts of nodes, and warnings. Nodes without a label or a part have neither, but stay in the graph."""
    labels, split = arrays.as_column(y, "y", len(owner)), options.split
    if isinstance(split, Mapping) and not are_shares(split):
        split = labels_from_rows(split, len(owner))
    missing = is_missing(labels) | (labels.astype(object) == "")
    labels, is_mark = _find_unlabelled(labels, missing)
    out = missing | is_mark
    if split is not None and not isinstance(split, str | Mapping):
        words = arrays.as_column(split, "split", len(owner)).astype(object)
        split, out = words, out | is_missing(words) | (words == "")
    if not out.any():
        return arrange(labels, owner, len(owner), replace(options, split=split), names), ()
    inside = np.flatnonzero(~out)
    if not len(inside):
        raise BadInput("y: no node has a label and a part; give some")
    by_node = {
        name: arrays.as_column(value, name, len(owner))[inside]
        for name, value in (("split", split), ("time", options.time), ("recording", options.recording))
        if value is not None and not isinstance(value, str | Mapping)
    }
    part = arrange(labels[inside], owner[inside], len(inside), replace(options, **{"split": split, **by_node}), names)
    classes = np.zeros(len(owner), dtype=np.int64)  # of nodes outside, no part reads it
    if part.labels is not None:
        classes[inside] = part.labels
    rows = {name: tuple(inside[own] for own in part.rows[name]) for name in PARTS}
    marks = f" ({int(is_mark.sum())} have the label -1)" if is_mark.any() else ""
    verb = "has no label or no part: it stays" if out.sum() == 1 else "have no label or no part: they stay"
    note = (
        f"{int(out.sum())} of {format_count(len(owner), 'node')} {verb} in the graph, outside training and test{marks}"
    )
    return replace(part, owner=owner, labels=None if part.labels is None else classes, rows=rows), (note,)


def _find_unlabelled(labels: np.ndarray, missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels, whole numbers beside missing ones as such, and which of them are -1 beside classes 0, 1, ..."""
    given = np.array(labels[~missing].tolist())
    if {"-1", "0", "1"} <= {*map(str, given)} and given.dtype.kind == "U":
        return labels, np.asarray(labels == "-1") & ~missing
    if given.dtype.kind not in "iuf" or (given.dtype.kind == "f" and (given != given.round()).any()):
        return labels, np.zeros(len(labels), dtype=bool)
    whole = np.zeros(len(labels), dtype=np.int64)
    whole[~missing] = given
    others = np.unique(given[given != -1])
    is_mark = (whole == -1) & ~missing & (len(others) > 1 and others[0] == 0)
    return (whole if missing.any() else labels), is_mark


def _join_splits(split: Any, nodes: Mapping[str, int]) -> list[Any]:
    """The labels of all nodes, from one list per client; `nodes` has the number of each client's nodes."""
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
    options: DataOptions,
    exclude: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
) -> dict[str, Any]:
    """The fields of a federation of a table of nodes and one of edges.

    Args:
        preprocessing: of the columns; default: fitted on the training rows.
    """
    table = read_named(nodes, {**vars(options), "target": "classes"}, (node, client), label)
    option_columns = named_columns(table, options)
    selected = feature_columns(
        table, client, [label], features, {**option_columns, "node": node}, exclude=exclude, labelled=False
    )
    if node in selected:
        raise BadInput(f"features: {node!r} is the node's own name, which says nothing of other nodes; leave it out")
    options = replace(options, **{key: column_values(table, column) for key, column in option_columns.items()})
    owner, names = arrays.as_clients(column_values(table, client), len(table))
    arrangement, node_notes = _arrange_nodes(column_values(table, label), owner, names, options)
    preprocessing = preprocessing or fit_columns(table, selected, arrangement.rows["train"], embed=False)
    pairs = _positions(edges, table[node].tolist())
    within = arrangement.owner[pairs[0]] == arrangement.owner[pairs[1]]
    dropped = int((~within).sum())
    verbs = "joins nodes of two clients and is" if dropped == 1 else "join nodes of two clients and are"
    edge_notes = [f"{dropped} of {len(within)} edges {verbs} left out"] if dropped else []
    notes = (
        *table.attrs.get(NOTES, ()),
        *node_notes,
        *edge_notes,
        *data_warnings.find_infinite(table, preprocessing.columns),
    )
    x = preprocessing.encode(table)
    fields = _fields(
        x, symmetrise_edges(pairs[:, within], len(table)), arrangement, options, notes, tuple(preprocessing.as_data())
    )
    names = tuple(map(exported_model.name_of, table[node].tolist()))
    dataset = replace(
        fields["dataset"], client_column=client, node_column=node, node_names=names, raw=preprocessing.read(table)
    )
    roles = dict.fromkeys(selected, "feature") | {column: role for role, column in option_columns.items()}
    content = describe_columns({**roles, node: "node", label: "label", client: "client"}, table)
    return {**fields, "dataset": dataset, "preprocessing": preprocessing, "content": content}


def _positions(edges: Any, ids: Sequence[Any]) -> np.ndarray:
    """Edges [2, E] as rows of the table of nodes."""
    check_missing(ids, "nodes")
    names = [exported_model.name_of(one) for one in ids]
    position = {name: i for i, name in enumerate(names)}
    if len(position) < len(names):
        duplicate = next(name for i, name in enumerate(names) if position[name] != i)
        raise BadInput(f"nodes: {duplicate!r} occurs twice; each node has one row")
    pairs = read_pairs(edges, "edges", position)
    return np.array([[position[one] for one in pair] for pair in pairs], dtype=np.int64).reshape(-1, 2).T


def _fields(
    x: np.ndarray,
    edges: np.ndarray,
    arrangement: Arrangement,
    options: DataOptions,
    notes: tuple[str, ...],
    columns: tuple[Any, ...] = (),
) -> dict[str, Any]:
    """Fields of a federation from nodes [V, F] in any order and edges [2, E] within clients, in both directions."""
    owner, count = arrangement.owner, len(arrangement.names)
    if unused := next((key for key in ("window", "horizon") if getattr(options, key) is not None), ""):
        raise BadInput(f"{unused}: is for forecasts, and nodes have classes; leave it out")
    if options.min_rows:
        raise BadInput("min_rows: does not fit graphs, whose edges would be cut; leave out the nodes of small clients")
    if arrangement.labels is None:
        raise BadInput("y: nodes have classes; give whole numbers or names, or target='classes'")
    nodes = tuple(np.flatnonzero(owner == i) for i in range(count))
    local = np.empty(len(owner), dtype=np.int64)
    for rows in nodes:
        local[rows] = np.arange(len(rows))
    subgraphs = tuple(local[edges[:, owner[edges[0]] == i]] for i in range(count))
    parts = {part: tuple(local[rows] for rows in arrangement.rows[part]) for part in PARTS}
    dataset = Dataset(
        options.name,
        "graph",
        x,
        arrangement.labels,
        classes=len(arrangement.classes),
        edges=edges,
        class_names=arrangement.classes,
        class_type=arrangement.class_type,
        columns=columns,
    )
    partition = Partition(
        parts["train"], parts["val"], parts["test"], nodes=nodes, edges=subgraphs, **client_fields(arrangement, options)
    )
    return partition_fields(dataset, partition, arrangement, options, x.shape[1:], notes)
