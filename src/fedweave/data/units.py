"""Targets that are numbers, as models learn them: centred, and divided by a unit fitted to training rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, Partition
from fedweave.data.normalisation import Scaling, fit_scaling
from fedweave.errors import BadInput, choose, format_value

UNITS = ("pooled", "client", "none")  # what the targets of a regression are scaled by


def fit_units(dataset: Dataset, partition: Partition, name: str | Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(offset, unit) of every client, [N, K] in the type of the targets: models learn (target - offset) / unit.

    For forecasts, these are the numbers by which `fit_scaling` scales their channels. For other numbers, they are mean
    and standard deviation of the training rows of all clients. `name` may choose others: {..., targets: client} takes
    each client's own training rows, {..., targets: none} gives 0 and 1, and {..., targets: {offset: [K], unit: [K]}}
    gives the numbers themselves.

    Raises:
        BadInput: as `fit_scaling`, an unknown word or impossible numbers for `targets`, or a data set without targets.
    """
    if dataset.targets is None:
        raise BadInput(f"dataset {dataset.name}: has no numbers to predict")
    clients, width = partition.clients, dataset.targets.shape[1]
    if dataset.channels:
        scaling = fit_scaling(dataset, partition, name)
        return _channel_units(scaling, dataset.channels, clients, width)
    units = name.get("targets", UNITS[0]) if isinstance(name, Mapping) else UNITS[0]
    dtype = dataset.targets.dtype
    if isinstance(units, Mapping):
        return _given_units(units, clients, width, dtype)
    choice = choose(str(units), UNITS, "normalize.targets")
    if choice == "none":
        return np.zeros((clients, width), dtype), np.ones((clients, width), dtype)
    values = dataset.targets.astype(np.float64)
    pooled = values[np.concatenate(partition.train)]
    parts = [values[rows] if choice == "client" else pooled for rows in partition.train]
    offset, std = (np.stack([getattr(part, word)(0) for part in parts]) for word in ("mean", "std"))
    # A constant, such as the target of a client with one row, has the unit of all clients.
    unit = np.where(std > 1e-12 * np.abs(offset), std, np.where(pooled.std(0) > 0, pooled.std(0), 1.0))
    return offset.astype(dtype), unit.astype(dtype)


def _given_units(
    units: Mapping[str, Any], clients: int, width: int, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a setting, which are those of all clients or have a row for each."""
    try:
        offset, unit = (
            np.ascontiguousarray(np.broadcast_to(np.asarray(units[key], dtype=dtype), (clients, width)))
            for key in ("offset", "unit")
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        offset, unit = np.full((2, 1, 1), np.nan)
    if not (np.isfinite(offset).all() and np.isfinite(unit).all() and (unit > 0).all()):
        raise BadInput(
            f"normalize.targets: {format_value(dict(units))} must have an offset and a unit above 0 for each of the "
            f"{width} targets, such as {{offset: {[0] * width}, unit: {[1] * width}}}"
        )
    return offset, unit


def _channel_units(
    scaling: Scaling, channels: Sequence[int], clients: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    steps = width // len(channels)
    pairs = []
    for part in (scaling.subtracted, scaling.divisor):
        matrix = part.reshape(len(part), -1) if part.ndim == 4 else part.reshape(1, -1)
        by_channel = matrix if matrix.shape[1] > 1 else np.repeat(matrix, max(channels) + 1, axis=1)
        by_target = np.repeat(by_channel[:, list(channels)], steps, axis=1)
        pairs.append(np.ascontiguousarray(np.broadcast_to(by_target, (clients, width)), dtype=part.dtype))
    return pairs[0], pairs[1]
