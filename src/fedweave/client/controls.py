"""Controls: outputs without a model, computed from the client's training rows."""

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.regression import Forecast, RowForecast
from fedweave.client.task import Task


def control_outputs(task: Task, data: ClientData, rows: Tensor) -> dict[str, Tensor]:
    """Name of the control -> outputs [B, ...] for `rows` [B] of a client, without padding.

    For classes, the shares of the classes in the training rows and one more row of each class (Laplace's rule of
    succession), so that the most frequent class is predicted and no class is impossible. For numbers, the mean of the
    training targets, each number by itself. For forecasts, the last value of the window, repeated, and the mean of the
    training targets.
    """
    targets = task.targets(data, data.train[data.train >= 0])
    if task.targets_are == "classes":
        counts = torch.bincount(targets, minlength=int(data.arrays["y"].max()) + 1).to(task.dtype) + 1
        return {"Majority class": (counts / counts.sum()).expand(len(rows), -1)}
    if isinstance(task, Forecast):
        last = data.arrays["x"].reshape(-1)[rows + task.window - 1]
        mean = targets.mean().expand(len(rows), task.horizon)
        return {"Last value": last[:, None].expand(len(rows), task.horizon), "Training mean": mean}
    mean = targets.mean(0).expand(len(rows), *targets.shape[1:])
    if isinstance(task, RowForecast):
        return {"Last value": task.last_values(data, rows, targets.shape[1]), "Training mean": mean}
    return {"Training mean": mean}
