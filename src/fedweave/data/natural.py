"""Clients that the data come with: sensors, states, owners of images; and the relation between them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, Partition, Rows
from fedweave.data.options import integer, real
from fedweave.data.split import Split, chronological, parse, random_parts
from fedweave.errors import BadInput
from fedweave.streams import stream

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}


def natural(
    dataset: Dataset,
    clients: int,
    seed: int,
    *,
    window: int | None = None,
    horizon: int | None = None,
    stride: int = 1,
    split: Mapping[str, float] = SHARES,
    val: float = 0.1,
) -> Partition:
    """One client per sensor, state or owner.

    A series is cut into windows of `window` steps in and `horizon` steps out that start every `stride` steps;
    rows are sensor * T + start; the first windows train, the last test. Source: Li et al., DCRNN (ICLR 2018),
    liyaguang/DCRNN.

    Raises:
        BadInput: `clients` is not what the data have, or the windows do not fit.
    """
    shares = parse(split, real("val", val, 0.0, 0.5), tested=True)
    found = len(dataset.x) if dataset.owner is None else int(dataset.owner.max()) + 1
    if clients != found:
        raise BadInput(f"partition.clients: {clients}, but {dataset.name} has {found} natural clients")
    if dataset.owner is None:
        layout = _layout(dataset, window, horizon, stride)
        train, held, test = _windows(dataset, layout, shares)
        return Partition(train, held, test, layout=layout, **_identities(dataset))
    if (window, horizon, stride) != (None, None, 1):
        raise BadInput(f"partition.window: {dataset.name} is no series; leave window, horizon and stride out")
    train, held, test = _owned(dataset.owner, found, shares, seed)
    return Partition(train, held, test, **_identities(dataset))


def _identities(dataset: Dataset) -> dict[str, Any]:
    """What the data set knows of its natural clients: names, groups and the given relation between them."""
    known = {"names": dataset.names, "group": dataset.group, "group_names": dataset.group_names}
    return {"relation": dataset.relation, **known}


def _layout(dataset: Dataset, window: int | None, horizon: int | None, stride: int) -> dict[str, int]:
    layout = {"window": window, "horizon": horizon, "stride": stride}
    return {key: integer(key, value, 1, dataset.x.shape[1]) for key, value in layout.items()}


def _windows(dataset: Dataset, layout: dict[str, int], split: Split) -> list[Rows]:
    """Starts of the windows of each sensor in time order: train, val, test."""
    sensors, steps = dataset.x.shape
    starts = np.arange(0, steps - layout["window"] - layout["horizon"] + 1, layout["stride"])
    parts = np.split(starts, chronological(len(starts), split, dataset.name))
    return [tuple(sensor * steps + part for sensor in range(sensors)) for part in parts]


def _owned(owner: np.ndarray, clients: int, split: Split, seed: int) -> list[Rows]:
    """Random rows of each owner: train, val, test."""
    rows = [np.flatnonzero(owner == i) for i in range(clients)]
    parts = [random_parts(mine, split, stream(seed, i), f"client {i}") for i, mine in enumerate(rows)]
    return [tuple(part) for part in zip(*parts, strict=True)]
