"""The clients' predictions of validation and test rows, and metrics of them that are not a mean over rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData, remove_padding
from fedweave.client.task import Task
from fedweave.engine.clients import Cohort
from fedweave.engine.executors import Executor
from fedweave.engine.protocol import Method
from fedweave.tensors.trees import Tree

PARTS = ("val", "test")


class ClientPredictions(NamedTuple):
    """Predictions of one client for one part of its rows: rows [m], targets and outputs [m, ...]."""

    rows: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray


def predict_clients(
    method: Method, models: Tree, executor: Executor, cohort: Cohort
) -> dict[str, list[ClientPredictions]]:
    """ "val" and "test" -> the predictions of every client for its rows.

    Args:
        models: personalized models [N, ...] of the clients in `cohort`.
    """

    def predict(model: Tree, data: ClientData) -> dict[str, Tensor]:
        parts = [remove_padding(getattr(data, part)) for part in PARTS]
        outputs = method.predict(model, data, torch.cat(parts)).split([len(rows) for rows in parts])
        return {part: _pad(values, len(getattr(data, part))) for part, values in zip(PARTS, outputs, strict=True)}

    outputs = executor.for_evaluation(cohort).map(predict, (models,), cohort)
    return {
        part: [
            _client_predictions(method.task, cohort.client_data(i), part, values)
            for i, values in enumerate(outputs[part])
        ]
        for part in PARTS
    }


def scores(method: Method, models: Tree, executor: Executor, cohort: Cohort) -> dict[str, Tensor]:
    """ "val" and "test" -> the metric of the method's task for every client, float64 [N]; NaN where it is undefined."""
    task = method.task
    values = {
        part: [task.score_metric.value(task.targets_are, answer.targets, answer.outputs) for answer in clients]
        for part, clients in predict_clients(method, models, executor, cohort).items()
    }
    return {part: torch.tensor(numbers, dtype=torch.float64) for part, numbers in values.items()}


def _pad(outputs: Tensor, length: int) -> Tensor:
    """`outputs` [m, ...] with zeros behind, as long as the longest client's."""
    return F.pad(outputs, (0, 0) * (outputs.ndim - 1) + (0, length - len(outputs)))


def _client_predictions(task: Task, data: ClientData, part: str, outputs: Tensor) -> ClientPredictions:
    rows = getattr(data, part)
    rows = rows[rows >= 0]
    pair = (task.in_unit(values, data) for values in (task.targets(data, rows), outputs[: len(rows)]))
    return ClientPredictions(rows.cpu().numpy(), *(values.cpu().numpy() for values in pair))
