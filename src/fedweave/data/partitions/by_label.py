"""Rules that distribute rows by their labels: a table of class counts, then random rows of each class.

Every random number is from `fedweave.tensors.random_streams.stream(seed, purpose)`; the same seed gives the same
partition on every machine.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from fedweave.data.base import Dataset, Partition, Rows
from fedweave.data.partitions.label_skew import ALLOCATORS, Allocation, ClassSizes, draw_counts
from fedweave.data.partitions.quotas import split_proportionally
from fedweave.data.partitions.registry import rule
from fedweave.data.partitions.splits import ValShare, parse_split, random_parts, stratified_parts
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream

LOCAL = {"train": 0.7, "val": 0.1, "test": 0.2}
SHARED = {"train": 0.9, "val": 0.1}
ALLOCATION, ROWS, SPLIT, TEST_ALLOCATION, TEST_ROWS = range(5)  # purposes of the random streams


def by_label(
    allocate: Callable[..., Allocation],
    dataset: Dataset,
    clients: int,
    seed: int,
    *,
    split: Annotated[Mapping[str, float] | None, "shares of a client's rows that train, validate and test"] = None,
    val: ValShare = 0.1,
    stratify: Annotated[bool, "parts have the class mix of the client"] = False,
    pool: Annotated[
        Literal["all", "train"] | None, "what is distributed: all rows, or the official training rows"
    ] = None,
    test: Annotated[Literal["local", "weighted", "proportional"], "where test rows come from"] = "local",
    **options: Any,
) -> Partition:
    """Distribute rows by a table of class counts, then cut each client's rows into train, validation and test.

    `test` is "local" (a part of the client's own rows), "weighted" (the whole official test set, with the
    client's training label distribution as class weights: pFedGraph, pFedGAT) or "proportional" (the official
    test set in the client's class proportions: SHN). `pool` says which rows are distributed: "all" rows (default with
    a local test part) or the official "train" rows. Without `split.val` the share `val` of train becomes
    validation.
    """
    default = LOCAL if test == "local" else SHARED
    shares = parse_split(default if split is None else split, val, test == "local")
    pools = _pools(dataset, test, pool)
    allocation = allocate(_class_sizes(dataset, pools[0]), clients, stream(seed, ALLOCATION), **options)
    rows = _draw_rows(allocation.counts, dataset.labels, pools[0], stream(seed, ROWS))
    cut = partial(stratified_parts, y=dataset.labels) if stratify else random_parts
    parts = [cut(r, split=shares, rng=stream(seed, SPLIT, i), who=f"client {i}") for i, r in enumerate(rows)]
    train, validation, test_rows = zip(*parts, strict=True)
    weight = None
    if test == "weighted":
        test_rows = (pools[1],) * clients
        weight = np.stack([_histogram(dataset, r) / len(r) for r in train]).astype(np.float64)
    if test == "proportional":
        counts = _test_counts(allocation, _class_sizes(dataset, pools[1]).counts, stream(seed, TEST_ALLOCATION))
        test_rows = _draw_rows(counts, dataset.labels, pools[1], stream(seed, TEST_ROWS))
    return Partition(train, validation, tuple(test_rows), test_weight=weight, group=allocation.group)


def _pools(dataset: Dataset, test: str, pool: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows to distribute, and the official test rows."""
    pool = pool or ("all" if test == "local" else "train")
    if dataset.official is None and (pool == "train" or test != "local"):
        raise BadInput(f"partition.test: {dataset.name} has no official test set; use test: local and pool: all")
    if pool == "all" and test != "local":
        raise BadInput(f"partition.pool: all would train on the official test rows that test: {test} asks for")
    official = np.zeros(len(dataset.labels), dtype=np.int64) if dataset.official is None else dataset.official
    test_rows = np.flatnonzero(official == 1)
    return (np.arange(len(dataset.labels)) if pool == "all" else np.flatnonzero(official == 0)), test_rows


def _histogram(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    return np.bincount(dataset.labels[rows], minlength=dataset.classes)


def _class_sizes(dataset: Dataset, rows: np.ndarray) -> ClassSizes:
    parents = None
    if dataset.coarse is not None:
        parents = np.zeros(dataset.classes, dtype=np.int64)
        parents[dataset.labels[rows]] = dataset.coarse[rows]
    return ClassSizes(_histogram(dataset, rows), parents)


def _draw_rows(counts: np.ndarray, y: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> Rows:
    """Random disjoint rows for a table of counts [N, C]: one sorted array a client."""
    clients: list[list[np.ndarray]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        class_rows = rng.permutation(rows[y[rows] == c])
        ends = np.cumsum(counts[:, c])
        for client, part in zip(clients, np.split(class_rows[: ends[-1]], ends[:-1]), strict=True):
            client.append(part)
    return tuple(np.sort(np.concatenate(client)) for client in clients)


def _test_counts(allocation: Allocation, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts [N, C] of official test rows: drawn from the shares, or in proportion to the training rows."""
    if allocation.shares is not None:
        return draw_counts(sizes, allocation.shares, rng)
    columns = [
        split_proportionally(column, int(size)) if column.any() else np.zeros_like(column)
        for column, size in zip(allocation.counts.T, sizes, strict=True)
    ]
    return np.stack(columns, axis=1)


for name, allocate in ALLOCATORS.items():
    rule(name, kinds=("images",))(partial(by_label, allocate))
