"""The task of a run: what its clients learn, with the model that fits the shapes of the data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedweave import exported_model
from fedweave.client.regression import Forecast, RowForecast, RowRegression
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import parse_options
from fedweave.errors import BadInput, first_line
from fedweave.metrics import METRICS, check_fit
from fedweave.models import MODELS, ClientModel, build
from fedweave.study import model_files
from fedweave.study.spec import RunSpec


def build_task(
    run: RunSpec,
    dataset: Dataset,
    partition: Partition,
    dtype: torch.dtype = torch.float32,
    model: Callable[[], ClientModel] | None = None,
) -> Task:
    """What the run's clients learn, for the shapes of `dataset`; `model` replaces the model that the task names.

    Raises:
        BadInput: the model does not fit the data.
    """
    _check_fit(run, dataset, named=model is None)
    task = _build_default_task(run, dataset, partition, dtype, model)
    _check_codes(run, dataset, task)
    return _replace_metric(run, partition, task, dataset.outputs or 2)


def _check_codes(run: RunSpec, dataset: Dataset, task: Task) -> None:
    """Refuse rows that are scaled, or are no codes, where the model looks up codes."""
    if not (codes := task.template.codes):
        return
    name, scaling, where = run.task.model["name"], parse_options(run.task.normalize)[0], f"tasks.{run.name}"
    if scaling != "none":
        raise BadInput(f"{where}.normalize", f"{scaling}, but {name} reads codes, which have no scale; use none")
    if problem := exported_model.find_no_code(dataset.x, codes):
        raise BadInput(f"{where}.model", f"{name} {problem}")


def _replace_metric(run: RunSpec, partition: Partition, task: Task, outputs: int) -> Task:
    """`task` with the metric that the run asks for, if it is not the default one."""
    name, where = run.task.metric, f"tasks.{run.name}.metric"
    if name is None or check_fit(name, task.targets_are, where).name == task.metric:
        return task
    if partition.test_weight is not None:
        raise BadInput(where, f"{name}, but test rows count by weight; use {task.metric}, or test rows of their own")
    METRICS[name].check(task.targets_are, outputs)
    return replace(task, scoring=METRICS[name])


def _build_default_task(
    run: RunSpec, dataset: Dataset, partition: Partition, dtype: torch.dtype, model: Callable[[], ClientModel] | None
) -> Task:
    """What the run's clients learn, with the default metric of the task."""
    model_files.check(run.task.model, f"tasks.{run.name}.model")
    options = {key: value for key, value in run.task.model.items() if key != model_files.DIGEST}
    name, products = options.pop("name"), _product_precision(run)
    try:
        if dataset.kind == "series":
            window, horizon = partition.layout["window"], partition.layout["horizon"]
            forecast = Forecast(
                model or partial(build, name, (window, 2), horizon, **options), dtype, products, window, horizon
            )
            return _check_output_shape(forecast, torch.zeros(1, window + horizon, 2, dtype=dtype), horizon)
        shape = tuple(dataset.x.shape[1:])
        build_model = model or partial(build, name, shape, dataset.outputs, categories=dataset.categories, **options)
        if dataset.kind == "graph":
            return NodeClassification(build_model, dtype)
        rows = _build_row_task(dataset, build_model, run, dtype)
        return _check_output_shape(rows, torch.zeros(1, *shape, dtype=dtype), dataset.outputs)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        if isinstance(error, BadInput) and error.place.startswith("model.adapter"):
            raise BadInput(f"tasks.{run.name}.{error.place}", error.problem) from error
        reason = first_line(error)
        raise BadInput(
            f"tasks.{run.name}.model", f"{run.task.model} does not fit {dataset.name} ({reason}); choose another"
        ) from error


def _product_precision(run: RunSpec) -> torch.dtype | None:
    """Precision of the model's products, if it is not that of the tensors."""
    return torch.bfloat16 if run.train.precision == "bfloat16" else None


def _build_row_task(dataset: Dataset, build_model: Callable[[], ClientModel], run: RunSpec, dtype: torch.dtype) -> Task:
    """What is learnt of rows: classes, numbers, or the next steps of windows."""
    augment = run.train.augment or 0
    settings: dict[str, Any] = {
        "build": build_model,
        "dtype": dtype,
        "products": _product_precision(run),
        "augment": augment,
    }
    if dataset.targets is None:
        return RowClassification(**settings)
    return RowForecast(**settings, channels=dataset.channels) if dataset.channels else RowRegression(**settings)


def _check_fit(run: RunSpec, dataset: Dataset, named: bool = True) -> None:
    """Refuse a setting of training, or a `named` model, that does not fit `dataset`."""
    name, graph = run.task.model["name"], dataset.kind == "graph"
    if run.task.targets not in (None, dataset.targets_are):
        raise BadInput(f"tasks.{run.name}.targets", f"{run.task.targets}, but {dataset.name} has {dataset.targets_are}")
    if named and graph != (MODELS[name].reads == "graph"):
        fitting = ", ".join(sorted(n for n, model in MODELS.items() if graph == (model.reads == "graph")))
        raise BadInput(
            f"tasks.{run.name}.model.name", f"{name!r} does not fit {dataset.name} ({dataset.kind}); choices: {fitting}"
        )
    if graph and run.train.precision == "bfloat16":
        raise BadInput(
            f"tasks.{run.name}.train.precision",
            "'bfloat16', but graphs are summed in full precision; use tf32, or leave it out",
        )
    augment, sides = run.train.augment or 0, dataset.x.shape[2:] if dataset.kind == "images" else ()
    if augment and (len(sides) != 2 or augment >= min(sides)):
        what = f"images of {sides[0]} x {sides[1]}" if len(sides) == 2 else "no images"
        raise BadInput(
            f"tasks.{run.name}.train.augment",
            f"{augment} pixels, but {dataset.name} has {what}; make it smaller, or leave it out",
        )


def _check_output_shape(task: Task, example: Tensor, outputs: int) -> Task:
    """`task`, after a check of its model's output for an example input."""
    with torch.no_grad():
        shape = tuple(task.call(task.init(0), example).shape)
    if shape != (1, outputs):
        raise ValueError(f"its outputs have the shape {shape}, but (1, {outputs}) is needed")
    return task
