"""Clients that join after training: their rows, prepared like the rows of training."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import data, exported_model
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput
from fedweave.own_data import arrays, data_warnings, features, graphs, rows
from fedweave.own_data.array_checks import convert_input_errors
from fedweave.own_data.column_encoding import Preprocessing
from fedweave.own_data.federation import Federation
from fedweave.own_data.row_options import DataOptions, follow_rule, row_options


def add_newcomers(
    federation: Federation,
    raw: Any,
    client: Any = None,
    label: Any = None,
    options: Mapping[str, Any] | None = None,
    edges: Any = None,
    node: str = "node",
) -> Federation:
    """`federation` with more clients behind the others; what was fitted on its training rows stays as it is.

    Args:
        raw: rows of newcomers, as `Federation.from_pandas`, `from_arrays` or `from_graphs` takes them: a table,
            features [M, ...], or a graph for each newcomer.
        client, label: name of a column, or one value for each row; None for graphs without a table.
        options: such as time, split and shares.
        edges, node: of a table of nodes, and the column with their names.

    Raises:
        BadInput: rows of another form, a class that training did not have, or the name of a client that is there.
    """
    if federation.dataset.kind == "series" or federation.partition.test_weight is not None:
        raise BadInput(f"join: {federation.name} holds {federation.dataset.kind}; newcomers need rows of their own")
    given = options or {}
    if federation.dataset.kind == "graph":
        newcomers = _read_graphs(federation, raw, client, label, given, edges, node)
    else:
        newcomers = _read_rows(federation, raw, client, label, given)
    duplicates = [name for name in newcomers.names if name in federation.names]
    if duplicates:
        raise BadInput(f"join: client {duplicates[0]!r} already exists; give newcomers other names")
    names = data_warnings.find_similar_names("clients", newcomers.names, federation.names)
    partition = _extend_partition(federation, newcomers)
    dataset = _extend_dataset(federation, newcomers)
    is_encoded = exported_model.is_encoded(dataset.columns)
    return replace(
        federation,
        dataset=dataset,
        partition=partition,
        partition_block=arrays.partition_block(dataset, partition),
        normalize=_freeze_scaling(federation),
        preprocessing=Preprocessing.from_data(dataset.columns) if is_encoded else None,
        notes=tuple(dict.fromkeys((*newcomers.notes, *names))),
    )


def _extend_partition(federation: Federation, newcomers: Federation) -> Partition:
    """The partition with the newcomers' rows, or nodes, behind the others."""
    count, old, new = len(federation.dataset.x), federation.partition, newcomers.partition
    if old.nodes is None:
        parts = {part: getattr(old, part) + tuple(rows + count for rows in getattr(new, part)) for part in PARTS}
    else:  # parts and edges number the nodes of a client
        parts = {part: getattr(old, part) + getattr(new, part) for part in (*PARTS, "edges")}
        parts["nodes"] = old.nodes + tuple(nodes + count for nodes in new.nodes or ())
    names, units = federation.names + newcomers.names, _units(federation, newcomers)
    group, group_names = None, tuple[str, ...]()
    if old.group is not None and new.group is not None and old.group_names:  # else no client has one
        own = [part.group_names[i] for part, members in ((old, old.group), (new, new.group)) for i in members]
        group, group_names = arrays.as_groups(dict(zip(names, own, strict=True)), np.zeros(0), names)
    return Partition(**parts, relation=old.relation, names=names, group=group, group_names=group_names, units=units)


def _units(federation: Federation, newcomers: Federation) -> tuple[str, ...]:
    """Units of all clients; a newcomer may be of the unit of another client."""
    old, new = federation.partition.units, newcomers.partition.units
    if bool(old) != bool(new):
        whose, advice = ("training", "give unit= of the newcomers") if old else ("newcomers", "leave unit= out")
        raise BadInput(f"join: only the clients of {whose} have units; {advice}")
    return old + new


def _options(federation: Federation, given: Mapping[str, Any]) -> DataOptions:
    """How the newcomers' rows are read and split; they need not have every class."""
    options = replace(row_options(given), name=federation.name, least_classes=1)
    return follow_rule(options, str(federation.rules.get("split", "")))


def _read_graphs(
    federation: Federation, raw: Any, client: Any, label: Any, given: Mapping[str, Any], edges: Any, node: str
) -> Federation:
    """The newcomers' graphs as a federation of their own; their nodes are encoded as those of training were."""
    options = _options(federation, given)
    preprocessing = federation.preprocessing
    if (preprocessing is None) != (edges is None):
        advice = "no tables; leave edges= out" if preprocessing is None else "a table of nodes; give one, and edges="
        raise BadInput(f"join: {federation.name} was made from {advice}")
    if preprocessing is None:
        return Federation(**graphs.fields_from_graphs(raw, options))
    columns = (node, client or "client", label or "label", [column.name for column in preprocessing.columns])
    newcomers = Federation(**graphs.fields_from_tables(raw, edges, *columns, options, preprocessing=preprocessing))
    _warn_of_columns(newcomers.dataset.raw, preprocessing)
    return newcomers


def _read_rows(federation: Federation, raw: Any, client: Any, label: Any, given: Mapping[str, Any]) -> Federation:
    """The newcomers as a federation of their own; their rows are encoded as those of training were."""
    if isinstance(raw, str | Path):
        raise BadInput(
            f"join: {str(raw)!r} is a file; give its table, such as pd.read_csv(file, dtype={{{client!r}: str}})"
        )
    if client is None or label is None:
        raise BadInput("join: rows need client= and label=, names of columns or one value for each row")
    channels = federation.dataset.channels
    task: dict[str, Any] = {} if channels else {"target": federation.dataset.targets_are}
    if channels:
        task = {"window": federation.shape[0], "horizon": federation.dataset.outputs // len(channels)}
        task |= {} if "stride" in given else {"stride": federation.rules["stride"]}
    options = replace(_options(federation, given), **task)
    preprocessing = federation.preprocessing
    if preprocessing is not None and rows.are_texts(raw):
        raw, client, label = rows.text_table(raw, label, client), "client", "label"
    if exported_model.has_inputs(federation.dataset.columns):
        with convert_input_errors():
            raw = exported_model.join_inputs(raw, federation.dataset.columns)
    if preprocessing is None and not (channels and hasattr(raw, "columns")):
        return Federation(**rows.fields_from_arrays(raw, label, client, options))
    names = [column["name"] for column in federation.dataset.columns if column.get("role", "value") == "value"]
    options = replace(options, features=names if preprocessing is not None else names[len(channels) :])
    newcomers = Federation(**rows.fields_from_table(raw, client, label, options, preprocessing))
    if preprocessing is not None:
        _warn_of_columns(raw, preprocessing)
    return newcomers


def _warn_of_columns(table: Any, preprocessing: Preprocessing) -> None:
    """Warn of columns without any value, and of numbers that are far from training, as in another unit."""
    exported_model.warn_of_empty(table, [column.name for column in preprocessing.columns])
    for column in preprocessing.columns:
        if not (column.levels or column.is_text or column.own):
            numbers = exported_model.as_numbers(table[column.name], column.name)
            exported_model.warn_of_numbers(column.name, numbers[np.isfinite(numbers)], column.mean, column.std)


def _extend_dataset(federation: Federation, newcomers: Federation) -> Dataset:
    old, new = federation.dataset, newcomers.dataset
    if new.x.shape[1:] != old.x.shape[1:] or old.targets_are != new.targets_are or old.channels != new.channels:
        raise BadInput(
            f"join: rows of shape {[*new.x.shape[1:]]} with {new.targets_are}, but training had {[*old.x.shape[1:]]} "
            f"with {old.targets_are}"
        )
    x = np.concatenate([old.x, features.like_training(new.x, old, federation.partition)])
    old = replace(old, raw=None)  # no contestant takes part where clients join
    columns = old.columns if newcomers.preprocessing is None else tuple(newcomers.preprocessing.as_data())
    if old.targets is not None and new.targets is not None:
        return replace(old, x=x, targets=np.concatenate([old.targets, new.targets]), columns=columns)
    unknown = [name for name in newcomers.classes if name not in federation.classes]
    if unknown:
        raise BadInput(f"join: class {unknown[0]!r} was not in training, so no model knows it; drop its rows")
    class_numbers = np.array([federation.classes.index(name) for name in newcomers.classes])
    old = replace(old, node_names=old.node_names + new.node_names)
    edges = None if old.edges is None else np.concatenate([old.links, new.links + len(old.x)], axis=1)
    return replace(old, x=x, y=np.concatenate([old.labels, class_numbers[new.labels]]), columns=columns, edges=edges)


def _freeze_scaling(federation: Federation) -> Any:
    """The scaling of training with its numbers, so that newcomers do not change it."""
    normalize = federation.normalize
    block = dict(normalize) if isinstance(normalize, Mapping) else {"name": normalize}
    if block["name"] == "standard":
        scaling = data.fit_scaling(federation.dataset, federation.partition, normalize)
        pair = (part.ravel().astype(float).tolist() for part in (scaling.subtracted, scaling.divisor))
        block |= dict(zip(("mean", "std"), pair, strict=True))
    if federation.dataset.targets_are == "numbers" and block.get("targets", "pooled") == "pooled":
        offset, unit = data.fit_units(federation.dataset, federation.partition, normalize)
        block["targets"] = {"offset": offset[0].astype(float).tolist(), "unit": unit[0].astype(float).tolist()}
    return block if len(block) > 1 else normalize
