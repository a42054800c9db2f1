"""Checks of what a partition rule returns: rows of the data set, each in one part, and rows for every client."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np

from fedweave.data.base import RAGGED, Dataset, Partition, find_repeated_row
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput

CONTENTS = {
    "images": "rows: leave nodes, edges and layout out",
    "graph": "subgraphs: give nodes and edges",
    "series": "windows: give layout, with window, horizon and stride",
}


def check_partition(partition: Any, dataset: Dataset, clients: int | None, rule: str) -> Partition:
    """Return `partition`, the result of a rule, if it is a partition of `dataset`.

    Args:
        clients: how many the caller asks for; None where the data set gives them.
        rule: name of the rule in messages.

    Raises:
        BadInput: names the rule, the client and the row.
    """
    if not isinstance(partition, Partition):
        raise BadInput(
            f"{rule}: returned an object of type {type(partition).__name__}; return a fedweave.data.Partition"
        )
    if clients is not None and partition.clients != clients:
        raise BadInput(f"{rule}: returned {partition.clients} clients, but {clients} are requested; return that number")
    _check_form(partition, dataset, rule)
    for i in range(partition.clients):
        _check_client(partition, dataset, i, rule)
    if dataset.kind != "graph":  # subgraphs may share nodes, and each client numbers its own
        _check_parts(partition, _row_count(dataset), rule)
    return partition


def check_determinism(partition: Any, repeat: Any, rule: str) -> None:
    """Refuse a rule whose second call gives other rows, nodes or edges: results could not be repeated.

    Raises:
        BadInput: naming the rule.
    """
    if not (isinstance(partition, Partition) and isinstance(repeat, Partition)):
        return
    for field in RAGGED:
        first, second = (getattr(result, field) or () for result in (partition, repeat))
        if len(first) != len(second) or not all(map(np.array_equal, first, second)):
            raise BadInput(
                f"{rule}: returned other rows for the same seed when it was called again; "
                "draw numbers with numpy.random.default_rng(seed)"
            )


def _check_form(partition: Partition, dataset: Dataset, rule: str) -> None:
    """Refuse two clients of one name, and clients that hold what the data set is not made of."""
    duplicate = next((name for name, count in Counter(partition.names).items() if count > 1), None)
    if duplicate is not None:
        raise BadInput(
            f"{rule}: client {partition.names.index(duplicate)} and another one have the name {duplicate!r}; rename one"
        )
    graph, series = dataset.kind == "graph", dataset.kind == "series"
    if (partition.nodes is not None, partition.edges is not None, bool(partition.layout)) != (graph, graph, series):
        raise BadInput(f"{rule}: its clients must hold {CONTENTS[dataset.kind]}")


def _row_count(dataset: Dataset) -> int:
    """Number of rows that clients can have; of a series, each value of x can be the start of a window."""
    return dataset.x.size if dataset.kind == "series" else len(dataset.x)


def _check_client(partition: Partition, dataset: Dataset, i: int, rule: str) -> None:
    """Refuse a client without rows to train or to test, and one with a row twice or a row that is not there."""
    rows = {part: getattr(partition, part)[i] for part in PARTS}
    empty = next((part for part in ("train", "test") if not rows[part].size), None)
    if empty:
        raise BadInput(f"{rule}: client {i} has no row in {empty}; give it some, or use fewer clients")
    limit = _row_count(dataset) if partition.nodes is None else len(partition.nodes[i])
    _check_rows(np.concatenate([*rows.values()]), limit, i, rule)
    if partition.nodes is not None:
        _check_rows(partition.nodes[i], len(dataset.x), i, rule)


def _check_rows(rows: np.ndarray, limit: int, i: int, rule: str) -> None:
    if rows.max() >= limit:  # a partition refuses negative rows itself
        raise BadInput(f"{rule}: client {i} has row {rows.max()}, but rows are 0 to {limit - 1}; give rows that exist")
    if (row := find_repeated_row(rows)) is not None:
        raise BadInput(f"{rule}: client {i} has row {row} twice; give each row once, in one part")


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
