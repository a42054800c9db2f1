"""What every partition rule promises: rows of the data set, each in one part, and rows for every client asked for."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, Partition, find_repeated_row
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput

HOLDS = {"images": "rows: leave nodes, edges and layout out", "graph": "subgraphs: give nodes and edges",
         "series": "windows: give layout, with window, horizon and stride"}  # fmt: skip


def check_partition(made: Any, dataset: Dataset, clients: int | None, here: str) -> Partition:
    """What a rule returned, if it is a partition of `dataset`.

    Args:
        clients: how many were asked for; None where they come with the data.
        here: the rule, as messages name it.

    Raises:
        BadInput: naming the rule, and the client and the row that are wrong.
    """
    if not isinstance(made, Partition):
        raise BadInput(f"{here}: returned a {type(made).__name__}; return a fedweave.data.Partition")
    if clients is not None and made.clients != clients:
        raise BadInput(f"{here}: returned {made.clients} clients, but {clients} are asked for; return so many")
    _check_form(made, dataset, here)
    for i in range(made.clients):
        _check_client(made, dataset, i, here)
    if dataset.kind != "graph":  # subgraphs may share nodes, and each client numbers its own
        _check_parts(made, _row_count(dataset), here)
    return made


def check_determinism(made: Any, again: Any, here: str) -> None:
    """Refuse a rule that deals other rows when it is asked again: results could not be repeated.

    Raises:
        BadInput: naming the rule.
    """
    if not (isinstance(made, Partition) and isinstance(again, Partition)):
        return
    for part in PARTS:
        pairs = zip(getattr(made, part), getattr(again, part), strict=False)
        if made.clients != again.clients or not all(np.array_equal(*pair) for pair in pairs):
            raise BadInput(
                f"{here}: dealt other rows for the same seed when it was called again; "
                "draw numbers with numpy.random.default_rng(seed)"
            )


def _check_form(made: Partition, dataset: Dataset, here: str) -> None:
    """Refuse two clients of one name, and clients that hold what the data set is not made of."""
    twice = next((name for name, count in Counter(made.names).items() if count > 1), None)
    if twice is not None:
        raise BadInput(f"{here}: client {made.names.index(twice)} and another one have the name {twice!r}; rename one")
    graph, series = dataset.kind == "graph", dataset.kind == "series"
    if (made.nodes is not None, made.edges is not None, bool(made.layout)) != (graph, graph, series):
        raise BadInput(f"{here}: its clients must hold {HOLDS[dataset.kind]}")


def _row_count(dataset: Dataset) -> int:
    """Rows that a client can have; of series each value of x can be the start of a window."""
    return dataset.x.size if dataset.kind == "series" else len(dataset.x)


def _check_client(made: Partition, dataset: Dataset, i: int, here: str) -> None:
    """Refuse a client without rows to train or to test, and one with a row twice or a row that is not there."""
    rows = {part: getattr(made, part)[i] for part in PARTS}
    empty = next((part for part in ("train", "test") if not rows[part].size), None)
    if empty:
        raise BadInput(f"{here}: client {i} has no row in {empty}; give it some, or use fewer clients")
    limit = _row_count(dataset) if made.nodes is None else len(made.nodes[i])
    _check_rows(np.concatenate([*rows.values()]), limit, i, here)
    if made.nodes is not None:
        _check_rows(made.nodes[i], len(dataset.x), i, here)


def _check_rows(rows: np.ndarray, limit: int, i: int, here: str) -> None:
    if rows.max() >= limit:  # a partition refuses negative rows itself
        raise BadInput(f"{here}: client {i} has row {rows.max()}, but rows are 0 to {limit - 1}; give rows that exist")
    if (row := find_repeated_row(rows)) is not None:
        raise BadInput(f"{here}: client {i} has row {row} twice; give each row once, in one part")


def _check_parts(made: Partition, count: int, here: str) -> None:
    """Refuse a row that is in different parts of two clients: who tests on it would have learned from it."""
    held = {part: np.zeros(count, dtype=bool) for part in PARTS}
    for part, holds in held.items():
        for rows in getattr(made, part):
            holds[rows] = True
    for pair in combinations(PARTS, 2):
        both = held[pair[0]] & held[pair[1]]
        if both.any():
            row = int(both.argmax())
            first, second = (next(i for i, rows in enumerate(getattr(made, part)) if row in rows) for part in pair)
            raise BadInput(
                f"{here}: row {row} is in {pair[0]} of client {first} and in {pair[1]} of client {second}; "
                "give it to one part"
            )
