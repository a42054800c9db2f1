"""Checks of partition rules: whole numbers among their options, and the rows that they give to clients."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np

from fedweave.data.base import RAGGED, Dataset, Partition, find_repeated_row
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_value

CONTENTS = {
    "images": "rows: leave nodes, edges and layout out",
    "graph": "subgraphs: give nodes and edges",
    "series": "windows: give layout, with window, horizon and stride",
}


def check_integer(key: str, value: Any, low: int, high: int | None = None, block: str = "partition") -> int:
    """`value` of `key` in `block` if it is a whole number in [low, high]."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= low and (high is None or value <= high):
        return int(value)
    bound = f"at least {low}" + ("" if high is None else f" and at most {high}")
    if value is None:
        raise BadInput(f"{block}.{key}: missing; give a whole number, {bound}")
    raise BadInput(f"{block}.{key}: {format_value(value)} must be a whole number, {bound}")


def check_partition(partition: Any, dataset: Dataset, clients: int | None, rule: str) -> Partition:
    """Return `partition`, the result of a rule, if it is a partition of `dataset`.

    Args:
        clients: how many the caller asks for; None where the data set gives them.
        rule: name of the rule in messages.
    """
    if not isinstance(partition, Partition):
        raise BadInput(
            f"{rule}: returned an object of type {type(partition).__name__}; return a fedweave.data.Partition"
        )
    if clients is not None and partition.clients != clients:
        raise BadInput(f"{rule}: returned {partition.clients} clients, but {clients} are requested; return that number")
    duplicate = next((name for name, count in Counter(partition.names).items() if count > 1), None)
    if duplicate is not None:
        raise BadInput(
            f"{rule}: client {partition.names.index(duplicate)} and another one have the name {duplicate!r}; rename one"
        )
    for i in range(partition.clients):
        if empty := next((part for part in ("train", "test") if not len(getattr(partition, part)[i])), None):
            raise BadInput(f"{rule}: client {i} has no row in {empty}; give it some, or use fewer clients")
    check_fits(dataset, partition, rule, "correct the rule")
    if dataset.kind != "graph":  # subgraphs may share nodes, and each client numbers its own
        _check_parts(partition, _row_count(dataset), rule)
    return partition


def check_fits(
    dataset: Dataset, partition: Partition, where: str = "partition", way: str = "run the partition stage again"
) -> None:
    """Refuse a partition that does not fit `dataset`, or that gives a client a row twice.

    Args:
        where: beginning of messages.
        way: end of messages.
    """
    graph, series = dataset.kind == "graph", dataset.kind == "series"
    if (partition.nodes is not None, partition.edges is not None, bool(partition.layout)) != (graph, graph, series):
        raise BadInput(f"{where}: its clients must hold {CONTENTS[dataset.kind]}; {way}")
    if series:
        _check_windows(dataset, partition, where, way)
    for i in range(partition.clients):
        rows = np.concatenate([getattr(partition, part)[i] for part in PARTS])
        if partition.nodes is None:
            _check_rows(rows, _row_count(dataset), f"{where}: client {i}", way)
        else:
            _check_rows(rows, len(partition.nodes[i]), f"{where}: client {i}", way)
            _check_rows(partition.nodes[i], len(dataset.x), f"{where}: client {i}", way)


def _check_windows(dataset: Dataset, partition: Partition, where: str, way: str) -> None:
    layout, steps = partition.layout, dataset.x.shape[1]
    is_valid = {*layout} == {"window", "horizon", "stride"} and all(type(v) is int and v > 0 for v in layout.values())
    if not is_valid or layout["window"] + layout["horizon"] > steps:
        raise BadInput(f"{where}: layout {layout} does not fit the {steps} steps of {dataset.name}; {way}")
    last = max(int((rows % steps).max(initial=0)) for part in PARTS for rows in getattr(partition, part))
    if last + layout["window"] + layout["horizon"] > steps:
        raise BadInput(f"{where}: a window starts at step {last} of {steps} and is longer than what is left; {way}")


def check_determinism(partition: Any, repeat: Any, rule: str) -> None:
    """Refuse a rule whose second call gives other rows, nodes or edges: results could not be repeated."""
    if not (isinstance(partition, Partition) and isinstance(repeat, Partition)):
        return
    for field in RAGGED:
        first, second = (getattr(result, field) or () for result in (partition, repeat))
        if len(first) != len(second) or not all(map(np.array_equal, first, second)):
            raise BadInput(
                f"{rule}: returned other rows for the same seed when it was called again; "
                "draw numbers with numpy.random.default_rng(seed)"
            )


def _row_count(dataset: Dataset) -> int:
    """Number of rows that clients can have; of a series, each value of x can be the start of a window."""
    return dataset.x.size if dataset.kind == "series" else len(dataset.x)


def _check_rows(rows: np.ndarray, limit: int, where: str, way: str) -> None:
    if rows.max(initial=-1) >= limit:  # a partition refuses negative rows itself
        raise BadInput(f"{where} has row {rows.max()}, but rows are 0 to {limit - 1}; {way}")
    if (row := find_repeated_row(rows)) is not None:
        raise BadInput(f"{where} has row {row} twice; {way}")


def _check_parts(partition: Partition, count: int, rule: str) -> None:
    """Refuse a row in different parts of two clients: one would test on a row from which the other one learns."""
    masks = {part: np.zeros(count, dtype=bool) for part in PARTS}
    for part, mask in masks.items():
        for rows in getattr(partition, part):
            mask[rows] = True
    for pair in combinations(PARTS, 2):
        both = masks[pair[0]] & masks[pair[1]]
        if both.any():
            row = int(both.argmax())
            first, second = (next(i for i, rows in enumerate(getattr(partition, part)) if row in rows) for part in pair)
            raise BadInput(
                f"{rule}: row {row} is in {pair[0]} of client {first} and in {pair[1]} of client {second}; "
                "give it to one part"
            )
