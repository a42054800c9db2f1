"""Features as the models see them: float32, scaled by numbers of the training part or of the literature."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, Partition
from fedweave.errors import BadInput, choose

# Channel means and standard deviations that are in general use for the data set, on the scale 0..1.
PUBLISHED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "emnist": ((0.1736,), (0.3248,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "compcars": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def normalise(dataset: Dataset, partition: Partition, name: str | Mapping[str, Any]) -> np.ndarray:
    """A float32 copy of the features, scaled by the normalisation `name`, in the shape of `dataset.x`.

    `name` is a key of NORMALISATIONS, or a mapping with given numbers: {name: standard, mean: [...], std:
    [...]} or {name: minmax, low: ..., high: ...}.

    Raises:
        BadInput: an unknown name, one that does not fit the data set, or a bad option.
    """
    if not isinstance(name, str | Mapping):
        raise BadInput(
            f"normalize: {name!r} must be a name, or a mapping with a name and numbers; "
            f"names: {', '.join(NORMALISATIONS)}"
        )
    options = {"name": name} if isinstance(name, str) else dict(name)
    key = choose(str(options.pop("name", "missing")), NORMALISATIONS, "normalize")
    if key not in KINDS[dataset.kind]:
        choices = ", ".join(KINDS[dataset.kind])
        raise BadInput(f"normalize: {key} does not fit {dataset.name} ({dataset.kind}); choices: {choices}")
    for option in options:
        if option not in GIVEN.get(key, ()):
            options_of_key = ", ".join(GIVEN.get(key, ())) or "none"
            raise BadInput(f"normalize.{option}: not an option of {key}; options: {options_of_key}")
        _check_numbers(option, options[option])
    return NORMALISATIONS[key](dataset, partition, **options)


def _check_numbers(option: str, value: Any) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BadInput(f"normalize.{option}: {value!r} must be a finite number, or a list of them")


def none(dataset: Dataset, partition: Partition) -> np.ndarray:
    """As stored; images on the scale 0..1."""
    del partition
    if dataset.x.dtype == np.uint8:
        return (np.arange(256) / 255.0).astype(np.float32)[dataset.x]
    return np.array(dataset.x, dtype=np.float32)


def unit(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Images from 0..1 to -1..1: (x - 0.5) / 0.5."""
    x = none(dataset, partition)
    x -= 0.5
    x /= 0.5
    return x


def standard(
    dataset: Dataset,
    partition: Partition,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> np.ndarray:
    """(x - mean) / std per channel of images, or over all values of series.

    The numbers are those given, else the published ones of the data set, else those of the training part.
    """
    x = none(dataset, partition)
    if (mean is None) != (std is None):
        raise BadInput("normalize: mean and std go together; give both or neither")
    if mean is None:
        mean, std = PUBLISHED.get(dataset.name) or _moments(dataset, partition, x)
    centre, scale = (
        np.atleast_1d(np.asarray(mean, dtype=np.float32)),
        np.atleast_1d(np.asarray(std, dtype=np.float32)),
    )
    channels = x.shape[1] if dataset.kind == "images" else 1
    if centre.shape != (channels,) or scale.shape != (channels,) or not (scale > 0).all():
        raise BadInput(f"normalize: mean {mean} and std {std} must hold {channels} numbers, std above 0")
    shape = (1, channels, 1, 1) if dataset.kind == "images" else (1, 1)
    x -= centre.reshape(shape)
    x /= scale.reshape(shape)
    return x


def _moments(dataset: Dataset, partition: Partition, x: np.ndarray) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the training part, per channel or overall."""
    if dataset.kind == "series":
        values = x[_trained(dataset, partition)].astype(np.float64)
        return [values.mean()], [values.std()]
    rows = x[np.unique(np.concatenate(partition.train))].astype(np.float64)
    return list(rows.mean((0, 2, 3))), list(rows.std((0, 2, 3)))


def rows(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Graph features whose rows sum to one, (x - min) / max(1, sum): torch-geometric's NormalizeFeatures."""
    x = none(dataset, partition)
    x -= x.min()
    x /= np.maximum(x.sum(1, keepdims=True), 1.0)
    return x


def minmax(dataset: Dataset, partition: Partition, low: float | None = None, high: float | None = None) -> np.ndarray:
    """Series with `low` to `high` on 0..1, by default the range of the training part of all clients."""
    x = none(dataset, partition)
    if low is None and high is None:
        values = x[_trained(dataset, partition)]
        return _scaled(x, values.min(), values.max())
    if low is None or high is None or not low < high:
        raise BadInput(f"normalize: low {low} and high {high} go together, low below high")
    return _scaled(x, low, high)


def minmax_client(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Series with the range of each client's own training part on 0..1."""
    x = none(dataset, partition)
    is_training = _trained(dataset, partition)
    low = np.where(is_training, x, np.inf).min(1, keepdims=True)
    high = np.where(is_training, x, -np.inf).max(1, keepdims=True)
    return _scaled(x, low, high)


def _scaled(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    bottom, span = np.float32(low), np.float32(high) - np.float32(low)
    x -= bottom
    x /= np.where(span > 0, span, np.float32(1.0))
    return x


def _trained(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Steps [N, T] that some training window of the sensor covers, inputs and targets."""
    sensors, steps = dataset.x.shape
    layout = partition.layout
    if not layout:
        raise BadInput("normalize: the partition of a series has no window layout; run the partition stage again")
    sensor, start = np.divmod(np.concatenate(partition.train), steps)
    change = np.zeros((sensors, steps + 1), dtype=np.int64)
    np.add.at(change, (sensor, start), 1)
    np.add.at(change, (sensor, start + layout["window"] + layout["horizon"]), -1)
    return change.cumsum(1)[:, :-1] > 0


NORMALISATIONS: dict[str, Callable[..., np.ndarray]] = {
    "none": none,
    "unit": unit,
    "standard": standard,
    "rows": rows,
    "minmax": minmax,
    "minmax_client": minmax_client,
}
GIVEN = {"standard": ("mean", "std"), "minmax": ("low", "high")}
KINDS = {
    "images": ("none", "unit", "standard"),
    "graph": ("none", "rows"),
    "series": ("none", "standard", "minmax", "minmax_client"),
}
