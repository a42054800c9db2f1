"""Tasks whose targets are numbers: regression of rows, forecasts of windows, forecasts of the series of sensors."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import RowClassification, Task
from fedweave.models.base import Inputs


class SquaredError(Task):
    """Loss and metric of each row are the mean squared error over its targets."""

    metric = "mse"
    higher_is_better = False

    def row_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(-1)

    def row_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.row_loss(outputs, targets)


@dataclass(frozen=True)
class RowRegression(SquaredError, RowClassification):
    """Numbers of rows: a client is a list of rows of shared arrays "x" [M, ...] and "targets" [M, K].

    Models learn (target - "offset") / "unit"; each client has an "offset" [K] and a "unit" [K], and a "base" [K] in
    float64 if its "targets" are without it. The loss is the MSE of these values, the metric is the MSE in the unit of
    the targets.
    """

    targets_are = "numbers"

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities - {"classes"}

    def targets(self, data: ClientData, rows: Tensor) -> Tensor:
        return (data.arrays["targets"][rows] - data.arrays["offset"]) / data.arrays["unit"]

    def score(self, outputs: Tensor, data: ClientData, rows: Tensor, shared_test: bool = False) -> Tensor:
        targets = self.targets(data, rows.clamp(min=0))
        unit = data.arrays["unit"]
        weight = (rows >= 0).to(outputs.dtype)
        return (self.row_score(outputs * unit, targets * unit) * weight).sum() / weight.sum()

    def in_unit(self, values: Tensor, data: ClientData) -> Tensor:
        unscaled = values * data.arrays["unit"] + data.arrays["offset"]
        if "base" in data.arrays:  # float32 has no numbers between large ones
            unscaled = unscaled.double() + data.arrays["base"]
        return unscaled[..., 0] if self.targets_are == "numbers" and unscaled.shape[-1] == 1 else unscaled


@dataclass(frozen=True)
class RowForecast(RowRegression):
    """Next steps of windows: rows of "x" [M, C, 1, T]; targets are the next K / len(channels) steps of `channels`.

    "offset" and "unit" are the numbers that scale the channels of "x".

    Attributes:
        channels: positions of the channels that the targets [M, K] continue, in turn.
    """

    channels: tuple[int, ...] = (0,)

    targets_are = "forecasts"

    def last_values(self, data: ClientData, rows: Tensor, width: int) -> Tensor:
        """The last value of each channel, repeated over its steps [B, width]."""
        values = data.arrays["x"][rows][:, list(self.channels)].flatten(2)[..., -1]
        return values.repeat_interleave(width // len(self.channels), -1)


@dataclass(frozen=True)
class Forecast(SquaredError, Task):
    """Series of sensors: row = sensor · T + start; `window` values in, `horizon` values out.

    Attributes:
        window, horizon: lengths in time steps.
    """

    window: int = 12
    horizon: int = 12

    targets_are = "forecasts"

    def batch(self, data: ClientData, rows: Tensor, key: Tensor | None = None) -> Inputs:
        series, time = data.arrays["x"], data.arrays["time"]
        span = torch.arange(self.window + self.horizon, device=rows.device)
        values = series.reshape(-1)[rows[:, None] + span[: self.window]]
        hours = time[(rows % series.shape[1])[:, None] + span]
        padded = F.pad(values, (0, self.horizon))
        return torch.stack([padded, hours], dim=-1)

    def targets(self, data: ClientData, rows: Tensor) -> Tensor:
        span = torch.arange(self.window, self.window + self.horizon, device=rows.device)
        return data.arrays["x"].reshape(-1)[rows[:, None] + span]
