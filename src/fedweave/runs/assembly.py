"""From names and numbers to objects: federation, task, method, executor and settings of a run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave import data
from fedweave.client.regression import Forecast, RowForecast, RowRegression
from fedweave.client.solvers import SOLVERS, Solver
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput, choose
from fedweave.federation.executors import Executor, choose_executor
from fedweave.federation.protocol import Method
from fedweave.federation.records import Settings
from fedweave.federation.schedule import Training
from fedweave.methods import METHODS
from fedweave.metrics import METRICS, check_fit
from fedweave.models import MODELS, ClientModel, build
from fedweave.models.registry import capabilities as model_capabilities
from fedweave.runs.inputs import Inputs
from fedweave.study import checks, search_spaces, spec
from fedweave.study.config import construct
from fedweave.study.schema import TaskSpec, TrainSpec
from fedweave.study.spec import PARAMS, Run, Study, nest


def folders(task: TaskSpec, name: str, root: Path = Path("data")) -> tuple[Path, Path]:
    """(features of the data set, partition of the task)."""
    return root / "features" / task.dataset, root / "partitions" / name


def load(path: Path | str = PARAMS) -> Study:
    """Read and check params.yaml: form, names, hyper-parameters, search spaces, and whether every method fits its task.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return check(spec.load(path), str(path))


def check(study: Study, where: str = str(PARAMS), inputs: Inputs | None = None) -> Study:
    """`study` unchanged, or the first error in it.

    Args:
        inputs: data and model of all its tasks in memory; their names are then not looked up.

    Raises:
        BadInput: as `load`.
    """
    checks.check_methods(study, where)
    for name, task in study.tasks.items() if inputs is None else ():
        checks.check_task(task, f"{where}: tasks.{name}")
    for key in study.runs:
        check_run(study.run(key), where, inputs)
    search_spaces.check(study, where)
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            run = varied(study, block["run"], {}, settings)
            checks.check_task(run.task, f"{where}: ablate.{name}.{variant}")
            if check_run(run, f"{where}: ablate.{name}").leaks:
                raise BadInput(
                    f"{where}: ablate.{name}.{variant}: trains on test rows, which no comparison includes; "
                    "make it a run"
                )
    return study


def varied(study: Study, key: str, tuned: Mapping[str, Any], settings: Mapping[str, Any]) -> Run:
    """The run `key` with `settings`, which may also reach the `partition` and the `model` of its task.

    Another partition or model by name takes none of the old one's options, but for the number of clients and the seed.
    """
    nested = nest(settings)
    parts = {part: nested.pop(part) for part in ("partition", "model") if part in nested}
    run = study.run(key, tuned, nested)
    for part, own in parts.items():
        old = getattr(run.task, part)
        if "name" in own:
            old = {name: value for name, value in old.items() if name in ("clients", "seed")}
        merged: dict[str, Any] = {part: {**old, **own}}
        run = replace(run, task=replace(run.task, **merged))
    return run


def check_run(run: Run, where: str, inputs: Inputs | None = None) -> Method:
    """The run's method, on `inputs` or on a placeholder of its task; refuses unknown names and methods that do not fit.

    Raises:
        BadInput: naming the run, the setting and the way out.
    """
    here = f"{where}: runs.{run.key}"
    choose(run.method, METHODS, f"{here}.method")
    checks.check_budget(run, here)
    if inputs:
        task = build_task(run, inputs.dataset, inputs.partition, model=inputs.model)
    else:
        kind = NodeClassification if MODELS[run.task.model["name"]].reads == "graph" else RowClassification
        task = kind(lambda: build("mlp", (1,), 1))  # any model: only the settings are looked at
    name, options = run.task.model["name"], run.task.model
    capabilities = task.capabilities if inputs else model_capabilities(name, options)
    capabilities -= {"classes"} if run.task.targets not in (None, "classes") else set()
    method = build_method(run, task)
    if run.task.metric is not None:
        implied = run.task.targets or ("classes" if "classes" in capabilities else "forecasts")
        targets = task.targets_are if inputs else implied
        check_fit(run.task.metric, targets, f"{where}: tasks.{run.name}.metric")
    checks.check_uploads(run, method, here, capabilities)
    checks.check_needs(run, here, capabilities)
    return method


def build_solver(train: TrainSpec) -> Solver:
    """The clients' optimiser."""
    chosen = {"lr": train.lr, "weight_decay": train.weight_decay, "clip": train.clip}
    return SOLVERS[train.optimizer](**chosen, **({"momentum": train.momentum} if train.optimizer == "sgd" else {}))


def build_method(run: Run, task: Task) -> Method:
    """The run's method.

    Raises:
        BadInput: for a misspelt or ill-typed hyper-parameter.
    """
    train = run.train
    average = train.bn_buffers == "average"
    training = Training(
        train.batch_size, train.epochs, train.steps, drop_last=bool(task.norms), average_buffers=average
    )
    cls = METHODS[run.method]
    hidden = {"task": task, "solver": build_solver(train), "training": training}
    return construct(cls, run.options, f"params.yaml: methods.{run.method}", **hidden)


def build_task(
    run: Run,
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
    return _scored(run, partition, _built(run, dataset, partition, dtype, model), dataset.outputs or 2)


def _scored(run: Run, partition: Partition, task: Task, outputs: int) -> Task:
    """`task` with the metric that the run asks for, unless that is its own."""
    name, where = run.task.metric, f"tasks.{run.name}.metric"
    if name is None or check_fit(name, task.targets_are, where).name == task.metric:
        return task
    if partition.test_weight is not None:
        raise BadInput(f"{where}: {name}, but test rows count by weight; use {task.metric}, or test rows of their own")
    METRICS[name].check(task.targets_are, outputs)
    return replace(task, scoring=METRICS[name])


def _built(
    run: Run, dataset: Dataset, partition: Partition, dtype: torch.dtype, model: Callable[[], ClientModel] | None
) -> Task:
    """What the run's clients learn, scored by the metric of its own."""
    options = dict(run.task.model)
    name, half = options.pop("name"), torch.bfloat16 if run.train.precision == "bfloat16" else None
    try:
        if dataset.kind == "series":
            window, horizon = partition.layout["window"], partition.layout["horizon"]
            forecast = Forecast(
                model or partial(build, name, (window, 2), horizon, **options), dtype, half, window, horizon
            )
            return _tried(forecast, torch.zeros(1, window + horizon, 2, dtype=dtype), horizon)
        shape = tuple(dataset.x.shape[1:])
        built = model or partial(build, name, shape, dataset.outputs, categories=dataset.categories, **options)
        if dataset.kind == "graph":
            return NodeClassification(built, dtype)
        rows = _of_rows(dataset, built, dtype, half, run.train.augment or 0)
        return _tried(rows, torch.zeros(1, *shape, dtype=dtype), dataset.outputs)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"tasks.{run.name}.model: {run.task.model} does not fit {dataset.name} ({reason}); choose another"
        ) from error


def _of_rows(dataset: Dataset, *settings: Any) -> Task:
    """What is learnt of rows: classes, numbers, or the next steps of windows."""
    if dataset.targets is None:
        return RowClassification(*settings)
    return replace(RowForecast(*settings), channels=dataset.channels) if dataset.channels else RowRegression(*settings)


def _check_fit(run: Run, dataset: Dataset, named: bool = True) -> None:
    """Refuse a model, if it is `named`, or a setting of its training that is not made for `dataset`."""
    name, graph = run.task.model["name"], dataset.kind == "graph"
    if run.task.targets not in (None, dataset.targets_are):
        raise BadInput(f"tasks.{run.name}.targets: {run.task.targets}, but {dataset.name} has {dataset.targets_are}")
    if named and graph != (MODELS[name].reads == "graph"):
        raise BadInput(f"tasks.{run.name}.model.name: {name!r} does not fit {dataset.name} ({dataset.kind})")
    if graph and run.train.precision == "bfloat16":
        raise BadInput(
            f"tasks.{run.name}.train.precision: 'bfloat16', but graphs are summed in full precision; "
            "use tf32, or leave it out"
        )
    augment, sides = run.train.augment or 0, dataset.x.shape[2:] if dataset.kind == "images" else ()
    if augment and (len(sides) != 2 or augment >= min(sides)):
        what = f"images of {sides[0]} x {sides[1]}" if len(sides) == 2 else "no images"
        raise BadInput(
            f"tasks.{run.name}.train.augment: {augment} pixels, but {dataset.name} has {what}; "
            "make it smaller, or leave it out"
        )


def _tried(task: Task, example: Tensor, outputs: int) -> Task:
    """`task`, once its model has answered an example input."""
    with torch.no_grad():
        shape = tuple(task.call(task.init(0), example).shape)
    if shape != (1, outputs):
        raise ValueError(f"its outputs have the shape {shape}, but (1, {outputs}) is needed")
    return task


def settings(run: Run, seed: int = 0) -> Settings:
    """The engine's settings of one repetition."""
    t = run.train
    return Settings(
        t.rounds,
        seed,
        t.participation,
        run.evaluate.every,
        t.newcomers,
        t.join_round,
        t.freeze,
        checks.upload_path(run),
    )


def device(name: str) -> str:
    """The device called `name`.

    Raises:
        BadInput: for 'cuda' on a machine without a visible GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "train.device: 'cuda' but no CUDA device is visible; use auto or cpu, or check CUDA_VISIBLE_DEVICES"
        )
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def executor(run: Run, method: Method, device: str) -> Executor:
    """The executor of a run of `method` on `device`."""
    t = run.train
    return choose_executor(t.executor, method.network, device, t.chunk, t.rounds * (t.steps or t.epochs))


def load_inputs(run: Run, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set and partition that the earlier stages wrote.

    Raises:
        BadInput: when they are not there or damaged.
    """
    features, dealt = folders(run.task, run.name, root)
    return data.load_dataset(features), data.load_partition(dealt / "partition.npz")


def deal_inputs(run: Run, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set that the earlier stages wrote, partitioned in memory as the run's task says.

    Raises:
        BadInput: when it is missing or damaged, or cannot be partitioned so.
    """
    dataset = data.load_dataset(folders(run.task, run.name, root)[0])
    return dataset, data.partition(dataset, **run.task.partition)


def hyperparameters(method: Method) -> Mapping[str, Any]:
    """The method's own settings, defaults included."""
    return {setting.name: getattr(method, setting.name) for setting in method.settings()}


def point(run: Run) -> str:
    """The evaluation point that is reported."""
    return METHODS[run.method].point if run.evaluate.point == "method" else run.evaluate.point


def to_cpu(tree: Any) -> Any:
    """A tree of tensors on the CPU."""
    return torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, tree)
