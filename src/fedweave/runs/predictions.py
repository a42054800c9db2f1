"""Predictions of the reported models for validation and test rows, on disk, so that another metric needs no training.

predictions-SEED.npz has `client`, `row`, `test` [R], `targets` and `outputs` [R, ...], with one entry for each row.
controls.npz has the same for test rows and controls, with `names` [K] and `outputs` [K, R, ...].
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedweave.client.controls import control_outputs
from fedweave.engine.predictions import ClientPredictions, predict_clients
from fedweave.engine.schedule import evaluation_cohort
from fedweave.files.atomic import atomic_path
from fedweave.metrics import Metric
from fedweave.runs.build import PreparedRun
from fedweave.runs.history import History, select_rows
from fedweave.tensors import trees

LARGEST = 2**25  # most bytes of the outputs of a repetition, see `choose_precision`
FILES = ("predictions-*.npz", "controls.npz")
FittedControls = Callable[[PreparedRun], Mapping[str, Sequence[Tensor]]]
WEIGHTED = "none: test rows count by weight, which only the metric of the task does"


class PredictionTable(NamedTuple):
    """The content of a file; outputs are [R, ...] for a model and [K, R, ...] for rules."""

    client: np.ndarray
    row: np.ndarray
    test: np.ndarray
    targets: np.ndarray
    outputs: np.ndarray


def of_models(prepared: PreparedRun, history: History, seed: int) -> dict[str, list[ClientPredictions]] | None:
    """ "val" and "test" -> predictions of every evaluated client in the reported round.

    None if no round can be chosen.
    """
    if not history.snapshot or select_rows(history, prepared) is None:
        return None
    models = trees.tree_map(lambda t: t.to(prepared.device), history.snapshot["models"])
    count = len(tree_leaves(models)[0])  # fewer in a round before the newcomers joined
    positions = prepared.federation.sample[:count]
    cohort = evaluation_cohort(prepared.federation, seed, history.snapshot["round"], positions=positions)
    with torch.no_grad():
        return predict_clients(prepared.method, models, prepared.executor, cohort)


def build_table(predictions: Mapping[str, list[ClientPredictions]], clients: Sequence[int]) -> PredictionTable:
    """Predictions of `clients` as one table; validation rows first."""
    entries = [
        (part == "test", i, answer)
        for part, of_part in predictions.items()
        for i, answer in zip(clients, of_part, strict=False)
    ]
    lengths = [len(answer.rows) for _, _, answer in entries]
    return PredictionTable(
        np.repeat(np.array([i for _, i, _ in entries], dtype=np.int32), lengths),
        np.concatenate([answer.rows for _, _, answer in entries]),
        np.repeat(np.array([test for test, _, _ in entries]), lengths),
        np.concatenate([answer.targets for _, _, answer in entries]),
        np.concatenate([answer.outputs for _, _, answer in entries]),
    )


def choose_precision(values: int, kind: str) -> str:
    """The type in which this many outputs for targets of a kind are stored; "none: ..." if they are too many.

    The three digits of float16 are enough for scores of classes, and too few for numbers, such as 1013.2.
    """
    types = ("float32", "float16") if kind == "classes" else ("float32",)
    for name in types:
        size = values * np.dtype(name).itemsize
        if size <= LARGEST:
            return name
    return f"none: {size / 2**20:.0f} MiB of outputs a repetition, more than {LARGEST / 2**20:.0f}"


def write(path: Path, table: PredictionTable, dtype: str, **more: Any) -> None:
    """Write a table; outputs as `dtype`, but float64 as such, since there it is needed."""
    dtype = "float64" if table.outputs.dtype == np.float64 else dtype
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, **table._replace(outputs=table.outputs.astype(dtype))._asdict(), **more)


def has_test_weights(prepared: PreparedRun) -> bool:
    """Whether test rows have weights by the client's own distribution of classes."""
    return "test_weight" in prepared.federation.own


def of_controls(prepared: PreparedRun, fitted: FittedControls, width: int = 0) -> dict[str, list[ClientPredictions]]:
    """Control -> its predictions for the test rows of every evaluated client.

    Args:
        fitted: gives the outputs of controls that need the rows of several clients.
        width: smallest number of classes of the outputs.
    """
    answers: dict[str, list[ClientPredictions]] = {}
    task = prepared.method.task
    for data, rows, outputs in _control_outputs(prepared, fitted):
        targets = task.in_unit(task.targets(data, rows), data).cpu().numpy()
        for name, values in outputs.items():
            padded = _pad_classes(task.in_unit(values, data), width).cpu().numpy()
            answers.setdefault(name, []).append(ClientPredictions(rows.cpu().numpy(), targets, padded))
    return answers


def control_values(splits: Sequence[PreparedRun], fitted: FittedControls) -> dict[str, list[float]]:
    """Control -> the metric of every evaluated client's test rows, as for models; the mean over the run's `splits`.

    A control that some splits do not have, as boosting of small clients, is left out.
    """
    if all(split is splits[0] for split in splits):
        return _control_values(splits[0], fitted)
    split_values = [_control_values(split, fitted) for split in splits]
    shared = [name for name in split_values[0] if all(name in values for values in split_values)]
    return {name: np.mean([values[name] for values in split_values], axis=0).tolist() for name in shared}


def _control_values(prepared: PreparedRun, fitted: FittedControls) -> dict[str, list[float]]:
    task = prepared.method.task
    if task.scoring is not None:
        return {
            name: [task.scoring.value(task.targets_are, answer.targets, answer.outputs) for answer in answers]
            for name, answers in of_controls(prepared, fitted).items()
        }
    values: dict[str, list[float]] = {}
    for data, rows, outputs in _control_outputs(prepared, fitted):
        for name, one in outputs.items():
            values.setdefault(name, []).append(float(task.score(one, data, rows, shared_test=True)))
    return values


def _control_outputs(prepared: PreparedRun, fitted: FittedControls) -> Iterator[tuple[Any, Tensor, dict[str, Tensor]]]:
    """(data, test rows, control -> outputs) of every evaluated client."""
    of_all = fitted(prepared)
    for position, data in enumerate(_evaluated_clients(prepared)):
        rows = data.test[data.test >= 0]
        own = control_outputs(prepared.method.task, data, rows)
        yield data, rows, own | {name: outputs[position] for name, outputs in of_all.items()}


def score_pooled_rows(metric: Metric, kind: str, table: PredictionTable) -> float:
    """The metric of all clients' test rows together."""
    return metric.value(kind, table.targets[table.test], table.outputs[table.test])


def _evaluated_clients(prepared: PreparedRun) -> list[Any]:
    cohort = evaluation_cohort(prepared.federation, 0, 0, positions=prepared.federation.sample)
    return [cohort.client_data(i) for i in range(len(cohort))]


def _pad_classes(outputs: Tensor, width: int) -> Tensor:
    missing = width - outputs.shape[-1] if outputs.ndim > 1 else 0
    return torch.nn.functional.pad(outputs, (0, missing)) if missing > 0 else outputs
