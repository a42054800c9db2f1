"""Features as the models see them: float32, scaled by numbers of the training part or of the literature."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedweave import exported_model
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


@dataclass(frozen=True)
class Scaling:
    """The numbers of a normalisation: features become (x - subtracted) / divisor.

    Attributes:
        subtracted, divisor: float32, or float64 where features are centred in float64, in a shape that broadcasts to
            a batch: [1, C, 1, 1] of images, [1, 1] of series,
            [N, 1] or [N, C, 1, 1] where each client has its own, [1] where one number serves all.
        rows: whether a row is divided by its sum if the sum is above one, in place of `divisor`.
        owner: client of each row of images [M], where each client has its own numbers; -1 for a row without a client.
    """

    subtracted: np.ndarray
    divisor: np.ndarray
    rows: bool = False
    owner: np.ndarray | None = None

    def apply(self, x: np.ndarray) -> np.ndarray:
        """A scaled float32 copy of `x`: images [M, C, H, W], nodes [V, F], or the series of all clients [N, T]."""
        scaled = self._widen(x)
        if self.owner is None:
            return self._scale(scaled, self.subtracted, self.divisor).astype(np.float32, copy=False)
        for client in range(len(self.subtracted)):
            rows = np.flatnonzero(self.owner == client)
            scaled[rows] = self._scale(scaled[rows], *self.numbers(client))
        return scaled.astype(np.float32, copy=False)

    def apply_to_client(self, x: np.ndarray, client: int) -> np.ndarray:
        """A scaled float32 copy of rows of one client: images, nodes, or windows of its series [B, T]."""
        return self._scale(self._widen(x), *self.numbers(client)).astype(np.float32, copy=False)

    def undo(self, x: np.ndarray, client: int) -> np.ndarray:
        """The inverse of `apply_to_client` for series [B, T] of one client, float32."""
        subtracted, divisor = self.numbers(client)
        return np.asarray(x * divisor + subtracted, dtype=np.float32)

    def numbers(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """(subtracted, divisor) of one client, in shapes that broadcast to its rows."""
        row = slice(client, client + 1)
        both = self.subtracted, self.divisor
        subtracted, divisor = (value[row] if value.ndim in (2, 4) and len(value) > 1 else value for value in both)
        return subtracted, divisor

    def _widen(self, x: np.ndarray) -> np.ndarray:
        """A copy of stored features in the type of the numbers, without gaps in memory."""
        return to_float32(x) if x.dtype == np.uint8 else np.array(x, dtype=self.subtracted.dtype, order="C")

    def _scale(self, x: np.ndarray, subtracted: np.ndarray, divisor: np.ndarray) -> np.ndarray:
        if not self.rows and not subtracted.any() and (divisor == 1).all():
            return x
        x -= subtracted
        x /= np.maximum(x.sum(1, keepdims=True), 1.0) if self.rows else divisor
        return x


def normalise(dataset: Dataset, partition: Partition, name: str | Mapping[str, Any]) -> np.ndarray:
    """A float32 copy of the features, scaled by the normalisation `name`, in the shape of `dataset.x`.

    `name` is a key of NORMALISATIONS, or a mapping with given numbers: {name: standard, mean: [...], std:
    [...]} or {name: minmax, low: ..., high: ...}.

    Raises:
        BadInput: as `fit_scaling`.
    """
    return fit_scaling(dataset, partition, name).apply(dataset.x)


def parse_options(name: object) -> tuple[str, dict[str, Any]]:
    """The name of a normalisation and its options, with all checks that need no data set.

    Raises:
        BadInput: an unknown name or option, or an option that is not a number.
    """
    if not isinstance(name, str | Mapping):
        raise BadInput(
            f"normalize: {name!r} must be a name, or a mapping with a name and numbers; "
            f"names: {', '.join(NORMALISATIONS)}"
        )
    options = {"name": name} if isinstance(name, str) else dict(name)
    options.pop("targets", None)  # see fit_units
    if "name" not in options:
        raise BadInput(f"normalize.name: missing; choices: {', '.join(NORMALISATIONS)}")
    key = choose(str(options.pop("name")), NORMALISATIONS, "normalize")
    for option in options:
        if option not in OPTIONS.get(key, ()):
            options_of_key = ", ".join(OPTIONS.get(key, ())) or "none"
            raise BadInput(f"normalize.{option}: not an option of {key}; options: {options_of_key}")
        _check_numbers(option, options[option])
    return key, options


def fit_scaling(dataset: Dataset, partition: Partition, name: str | Mapping[str, Any]) -> Scaling:
    """Fit the normalisation `name`, as `normalise` applies it.

    Raises:
        BadInput: an unknown name, one that does not fit the data set, or a bad option.
    """
    key, options = parse_options(name)
    if key not in NAMES_BY_KIND[dataset.kind]:
        choices = ", ".join(NAMES_BY_KIND[dataset.kind])
        raise BadInput(f"normalize: {key} does not fit {dataset.name} ({dataset.kind}); choices: {choices}")
    if dataset.categories and key != "none":
        raise BadInput(
            f"normalize: {key}, but {dataset.name} holds codes of categories, which no scaling fits; use none"
        )
    return NORMALISATIONS[key](dataset, partition, **options)


def _check_numbers(option: str, value: Any) -> None:
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BadInput(f"normalize.{option}: {value!r} must be a finite number, or a list of them")


def to_float32(x: np.ndarray) -> np.ndarray:
    """A float32 copy of stored features, without gaps in memory; images of bytes are divided by 255."""
    if x.dtype == np.uint8:
        return exported_model.divide_bytes(np.ascontiguousarray(x))
    return np.array(x, dtype=np.float32, order="C")


def _float_array(values: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.atleast_1d(np.asarray(values, dtype=dtype))


def _precision(dataset: Dataset) -> Any:
    """The type of the numbers that scale a data set: float64 where its features have it."""
    return np.float64 if dataset.x.dtype == np.float64 else np.float32


def none(dataset: Dataset, partition: Partition) -> Scaling:
    """As stored; images on the scale 0..1."""
    del dataset, partition
    return Scaling(_float_array(0.0), _float_array(1.0))


def unit(dataset: Dataset, partition: Partition) -> Scaling:
    """Images from 0..1 to -1..1: (x - 0.5) / 0.5."""
    del dataset, partition
    return Scaling(_float_array(0.5), _float_array(0.5))


def standard(
    dataset: Dataset,
    partition: Partition,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> Scaling:
    """(x - mean) / std per channel of images, or over all values of series.

    The numbers are `mean` and `std`, else the published ones of the data set, else those of the training part.
    """
    if (mean is None) != (std is None):
        raise BadInput("normalize: mean and std go together; give both or neither")
    if mean is None:
        mean, std = PUBLISHED.get(dataset.name) or training_moments(dataset, partition)
    centre, scale = _float_array(mean, _precision(dataset)), _float_array(std, _precision(dataset))
    channels = dataset.x.shape[1] if dataset.kind == "images" else 1
    if centre.shape != (channels,) or scale.shape != (channels,) or not (scale > 0).all():
        raise BadInput(f"normalize: mean {mean} and std {std} must be lists of length {channels}, with std above 0")
    shape = (1, channels, 1, 1) if dataset.kind == "images" else (1, 1)
    return Scaling(centre.reshape(shape), scale.reshape(shape))


def training_moments(dataset: Dataset, partition: Partition) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the training part: of each channel of images (1 if constant), or of all series."""
    if dataset.kind == "series":
        values = to_float32(dataset.x)[_training_steps(dataset, partition)].astype(np.float64)
        return [float(values.mean())], [float(values.std())]
    mean, scale = _channel_moments(dataset, np.unique(np.concatenate(partition.train)))
    return mean.tolist(), scale.tolist()


def _channel_moments(dataset: Dataset, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (1 if constant) of each channel; those of images among several inputs are 0 and 1."""
    stored = dataset.x[rows]
    pixels = stored if stored.dtype == np.float64 else to_float32(stored).astype(np.float64)
    mean, scale = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
    start = 0
    for one in dataset.columns if exported_model.has_inputs(dataset.columns) else ():
        end = start + math.prod(one["shape"])
        if one["pixels"]:
            mean[start:end], scale[start:end] = 0.0, 1.0
        start = end
    return mean, scale


def scale_by_own_rows(dataset: Dataset, partition: Partition, name: Any) -> Any:
    """The normalisation `name` of a user's rows: by their own numbers where a known data set has the same name."""
    block = dict(name) if isinstance(name, Mapping) else {"name": name}
    is_plain = block.get("name") == "standard" and not {"mean", "std"} & block.keys()
    if dataset.name not in PUBLISHED or dataset.kind != "images" or not is_plain:
        return name
    mean, std = training_moments(dataset, partition)
    return {**block, "mean": mean, "std": std}


def standard_client(dataset: Dataset, partition: Partition) -> Scaling:
    """Images: (x - mean) / std per channel, by the numbers of each client's own training rows.

    Raises:
        BadInput: two clients have the same row, which cannot be scaled by the numbers of both.
    """
    owner = np.full(len(dataset.x), -1, dtype=np.int64)
    moments: list[tuple[np.ndarray, np.ndarray]] = []
    for i, train in enumerate(partition.train):
        client_rows = np.concatenate([train, partition.val[i], partition.test[i]])
        if (owner[client_rows] >= 0).any():
            raise BadInput(
                "normalize: standard_client, but clients share rows, as a common test set; use standard, or another "
                "partition"
            )
        owner[client_rows] = i
        moments.append(_channel_moments(dataset, train))
    shape = (len(moments), dataset.x.shape[1], 1, 1)
    dtype = _precision(dataset)
    centre, scale = (np.asarray(part, dtype=dtype).reshape(shape) for part in zip(*moments, strict=True))
    return Scaling(centre, scale, owner=owner)


def rows(dataset: Dataset, partition: Partition) -> Scaling:
    """Graph features whose rows sum to one, (x - min) / max(1, sum): torch-geometric's NormalizeFeatures."""
    del partition
    return Scaling(_float_array(to_float32(dataset.x).min()), _float_array(1.0), rows=True)


def minmax(dataset: Dataset, partition: Partition, low: float | None = None, high: float | None = None) -> Scaling:
    """Series with `low` to `high` on 0..1, by default the range of the training part of all clients."""
    if low is None and high is None:
        values = to_float32(dataset.x)[_training_steps(dataset, partition)]
        return _range_scaling(values.min(), values.max())
    if low is None or high is None or not low < high:
        raise BadInput(f"normalize: low {low} and high {high} go together, low below high")
    return _range_scaling(low, high)


def minmax_client(dataset: Dataset, partition: Partition) -> Scaling:
    """Series with the range of each client's own training part on 0..1."""
    x, is_training = to_float32(dataset.x), _training_steps(dataset, partition)
    low = np.where(is_training, x, np.inf).min(1, keepdims=True)
    high = np.where(is_training, x, -np.inf).max(1, keepdims=True)
    return _range_scaling(low, high)


def _range_scaling(low: np.ndarray | float, high: np.ndarray | float) -> Scaling:
    bottom = _float_array(low)
    span = _float_array(high) - bottom
    return Scaling(bottom, np.where(span > 0, span, np.float32(1.0)))


def _training_steps(dataset: Dataset, partition: Partition) -> np.ndarray:
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


NORMALISATIONS: dict[str, Callable[..., Scaling]] = {
    "none": none,
    "unit": unit,
    "standard": standard,
    "standard_client": standard_client,
    "rows": rows,
    "minmax": minmax,
    "minmax_client": minmax_client,
}
OPTIONS = {"standard": ("mean", "std"), "minmax": ("low", "high")}
NAMES_BY_KIND = {
    "images": ("none", "unit", "standard", "standard_client"),
    "graph": ("none", "rows"),
    "series": ("none", "standard", "minmax", "minmax_client"),
}
