"""Clients that the data set itself has: sensors, states, owners of images; and the relation between them."""

from typing import Annotated, Any

import numpy as np

from fedweave.data.base import Dataset, Partition, Rows
from fedweave.data.partitions.checks import check_integer
from fedweave.data.partitions.registry import rule
from fedweave.data.partitions.splits import Shares, Split, ValShare, chronological_parts, parse_split, random_parts
from fedweave.errors import BadInput
from fedweave.settings import AtLeast
from fedweave.tensors.random_streams import stream

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}


@rule("natural", kinds=("images", "series"), owners=True)
def natural(
    dataset: Dataset,
    clients: int,
    seed: int,
    *,
    window: Annotated[int | None, AtLeast(1), "steps that go in, of a series"] = None,
    horizon: Annotated[int | None, AtLeast(1), "steps to forecast, of a series"] = None,
    stride: Annotated[int, AtLeast(1), "steps between the starts of two windows"] = 1,
    gap: Annotated[int | None, AtLeast(0), "windows between two parts that are in none"] = None,
    split: Shares = SHARES,
    val: ValShare = 0.1,
) -> Partition:
    """One client per sensor, state or owner.

    A series is cut into windows of `window` steps in and `horizon` steps out that start every `stride` steps;
    rows are sensor * T + start; the first windows train, the last test. Source: Li et al., DCRNN (ICLR 2018),
    liyaguang/DCRNN. Rows that are cut from recordings are split in the same way inside each recording, other rows of an
    owner at random. `gap` windows between two parts are left out; by default as many as share samples with a window, in
    a series none.

    Raises:
        BadInput: `clients` is not what the data have, the windows do not fit, or the gap is too small.
    """
    shares = parse_split(split, val, tested=True)
    owners = dataset.natural_clients
    if clients != owners:
        raise BadInput(f"partition.clients: {clients}, but {dataset.name} has {owners} natural clients")
    about: dict[str, Any] = {
        key: getattr(dataset, key) for key in ("names", "group", "group_names", "relation", "units")
    }
    gap_size = dataset.overlap if gap is None else check_integer("gap", gap, dataset.overlap)
    if dataset.owner is None:
        given = {"window": window, "horizon": horizon, "stride": stride}
        layout = {key: check_integer(key, value, 1, dataset.x.shape[1]) for key, value in given.items()}
        train, validation, test = _windows(dataset, layout, shares, gap_size)
        return Partition(train, validation, test, layout=layout, **about)
    if (window, horizon, stride) != (None, None, 1):
        raise BadInput(f"partition.window: {dataset.name} is not a series; leave window, horizon and stride out")
    if dataset.recording is None and gap is not None:
        raise BadInput(f"partition.gap: {gap}, but the rows of {dataset.name} have no time order; leave it out")
    rows = [np.flatnonzero(dataset.owner == i) for i in range(owners)]
    if dataset.recording is None:
        parts = [random_parts(own, shares, stream(seed, i), f"client {i}") for i, own in enumerate(rows)]
    else:
        parts = [_split_by_time(dataset, own, shares, gap_size) for own in rows]
    train, validation, test = (tuple(part) for part in zip(*parts, strict=True))
    return Partition(train, validation, test, **about)


def _windows(dataset: Dataset, layout: dict[str, int], split: Split, gap: int) -> list[Rows]:
    """Starts of the windows of each sensor in time order: train, val, test."""
    sensors, steps = dataset.x.shape
    starts = np.arange(0, steps - layout["window"] - layout["horizon"] + 1, layout["stride"])
    parts = [starts[part] for part in chronological_parts(len(starts), split, dataset.name, gap)]
    return [tuple(sensor * steps + part for sensor in range(sensors)) for part in parts]


def _split_by_time(dataset: Dataset, rows: np.ndarray, split: Split, gap: int) -> list[np.ndarray]:
    """Sorted train, val, test of one owner's `rows`: the first ones of each recording train, the last ones test."""
    assert dataset.recording is not None
    recording = dataset.recording[rows]
    parts: list[list[np.ndarray]] = [[], [], []]
    for number in np.unique(recording):
        recording_rows = rows[recording == number]
        cuts = chronological_parts(len(recording_rows), split, f"recording {number} of {dataset.name}", gap)
        for part, positions in zip(parts, cuts, strict=True):
            part.append(recording_rows[positions])
    return [np.sort(np.concatenate(part)) for part in parts]
