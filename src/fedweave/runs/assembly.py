"""From names and numbers to objects: federation, task, method, executor and settings of a run."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave import data
from fedweave.client.solvers import SOLVERS, Solver
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.data import Dataset, Partition
from fedweave.engine.executors import Executor, Loop, choose_executor
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput, choose, format_value
from fedweave.families.base import check_local_names, check_shared_part
from fedweave.families.server_solvers import server_optimizer
from fedweave.methods import METHODS
from fedweave.metrics import check_fit
from fedweave.models import MODELS, build
from fedweave.models.registry import capabilities as model_capabilities
from fedweave.runs import graph_controls, tasks
from fedweave.runs.inputs import Inputs
from fedweave.runs.metric_check import check_metric
from fedweave.study import checks, search_spaces, spec
from fedweave.study.config import construct
from fedweave.study.schema import TaskSpec, TrainSpec
from fedweave.study.spec import PARAMS, RunSpec, StudySpec, nest
from fedweave.study.task_blocks import drop_replaced_seed

EXAMPLES = {"partition": "iid", "model": "mlp"}


def data_folders(task: TaskSpec, name: str, root: Path = Path("data")) -> tuple[Path, Path]:
    """(features of the data set, partition of the task)."""
    return root / "features" / task.dataset, root / "partitions" / name


def load(path: Path | str = PARAMS) -> StudySpec:
    """Read and check params.yaml: form, names, hyper-parameters, search spaces, and whether every method fits its task.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return check(spec.load(path), str(path))


def check(study: StudySpec, where: str = str(PARAMS), inputs: Inputs | None = None) -> StudySpec:
    """`study` unchanged, or the first error in it.

    Args:
        inputs: data and model of all its tasks in memory; their names are then not looked up.

    Raises:
        BadInput: as `load`.
    """
    checks.check_methods(study, where)
    for name, task in study.tasks.items() if inputs is None else ():
        checks.check_task(task, f"{where}: tasks.{name}")
    runs = [study.run(key) for key in study.runs]
    for run in runs:
        own_settings = study.runs[run.key].set  # the other settings of its method were found right above
        with _rename(study, run.key, where, f"{where}: runs.{run.key}.set") if own_settings else nullcontext():
            check_run(run, where, inputs)
        checks.check_splits(run, study.tune.trials, where)
    checks.check_samples(runs, where)
    search_spaces.check(study, where)
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            place = f"{where}: ablate.{name}.{variant}"
            with _rename(study, block["run"], where, place):
                run = build_variant(study, block["run"], {}, settings)
                checks.check_samples([study.run(block["run"]), run], place)
                checks.check_task(run.task, place)
                checks.check_splits(run, study.tune.trials, place)
                if check_run(run, where).leaks:
                    raise BadInput(f"{place}: trains on test rows, which no comparison includes; make it a run")
    return study


@contextmanager
def _rename(study: StudySpec, key: str, where: str, place: str) -> Iterator[None]:
    """Begin messages about the run `key` with `place`, which holds the settings that make it wrong."""
    try:
        yield
    except BadInput as error:
        names = "|".join(map(re.escape, (f"runs.{key}", f"methods.{study.runs[key].method}")))
        message = re.sub(rf"^{re.escape(where)}: ({names})(?=[.:])", lambda _: place, str(error))
        raise BadInput(message if message.startswith(where) else f"{place}.{message}") from error


def build_variant(study: StudySpec, key: str, tuned: Mapping[str, Any], settings: Mapping[str, Any]) -> RunSpec:
    """The run `key` with `settings`, which may also reach the `partition` and the `model` of its task.

    A partition or model with another name keeps no option of the old one, except the number of clients and the seed.
    """
    nested = nest(settings)
    blocks = {block: nested.pop(block) for block in ("partition", "model") if block in nested}
    run = study.run(key, tuned, nested)
    for block, changes in blocks.items():
        if not isinstance(changes, Mapping):
            raise BadInput(
                f"{block}: {format_value(changes)} is not a mapping of settings; "
                f"for example {block}.name={EXAMPLES[block]}"
            )
        old = getattr(run.task, block)
        if "name" in changes:
            old = {name: value for name, value in old.items() if name in ("clients", "seed", "seeds")}
        if block == "partition":
            old = drop_replaced_seed(old, changes)
        merged: dict[str, Any] = {block: {**old, **changes}}
        run = replace(run, task=replace(run.task, **merged))
    return run


def check_run(run: RunSpec, where: str, inputs: Inputs | None = None) -> Method:
    """The run's method, on `inputs` or on a placeholder of its task; refuses unknown names and methods that do not fit.

    Raises:
        BadInput: naming the run, the setting and the way out.
    """
    prefix = f"{where}: runs.{run.key}"
    choose(run.method, METHODS, f"{prefix}.method")
    checks.check_budget(run, prefix, inputs.partition.clients if inputs else run.task.partition.get("clients"))
    graph_controls.check_setting(run, prefix)
    if inputs:
        graph_controls.check_given_graph(run, inputs.partition, prefix)
        task = tasks.build_task(run, inputs.dataset, inputs.partition, model=inputs.model)
    else:
        kind = NodeClassification if MODELS[run.task.model["name"]].reads == "graph" else RowClassification
        task = kind(lambda: build("mlp", (1,), 1))  # any model, because only settings are checked
    name, options = run.task.model["name"], run.task.model
    capabilities = task.capabilities if inputs else model_capabilities(name, options)
    capabilities -= {"classes"} if run.task.targets not in (None, "classes") else set()
    method = build_method(run, task, spec.file_of(where))
    if inputs:
        check_local_names(method)
        check_shared_part(method, name, prefix)
    if run.task.metric is not None:
        expected = run.task.targets or ("classes" if "classes" in capabilities else "forecasts")
        targets = task.targets_are if inputs else expected
        check_fit(run.task.metric, targets, f"{where}: tasks.{run.name}.metric")
    if inputs:
        check_metric(run, inputs.dataset, inputs.partition)
    checks.check_uploads(run, method, prefix, capabilities)
    checks.check_needs(run, prefix, capabilities)
    return method


def build_solver(train: TrainSpec) -> Solver:
    """The clients' optimiser."""
    options = {"lr": train.lr, "weight_decay": train.weight_decay, "clip": train.clip}
    return SOLVERS[train.optimizer](**options, **({"momentum": train.momentum} if train.optimizer == "sgd" else {}))


def build_server_optimizer(train: TrainSpec, where: str) -> Solver | None:
    """The optimiser of a server that averages, or None.

    Raises:
        BadInput: for a setting that it does not read.
    """
    names = ("server_lr", "server_momentum", "server_beta2", "server_tau")
    return server_optimizer(train.server_optimizer, {name: getattr(train, name) for name in names}, where)


def build_method(run: RunSpec, task: Task, file: str = str(PARAMS)) -> Method:
    """The run's method; `file` is the name of the settings file in messages.

    Raises:
        BadInput: for a misspelt or ill-typed hyper-parameter.
    """
    train = run.train
    average = train.bn_buffers == "average"
    training = Training(
        train.batch_size,
        train.epochs,
        train.steps,
        drop_last=bool(task.norms),
        average_buffers=average,
        keep_optimizer=train.client_optimizer == "kept",
        uniform_mean=train.averaging == "uniform",
        server=build_server_optimizer(train, f"{file}: runs.{run.key}.train"),
    )
    cls = METHODS[run.method]
    run_fields = {"task": task, "solver": build_solver(train), "training": training, "control": None}
    return construct(cls, run.options, f"{file}: methods.{run.method}", **run_fields)


def build_settings(run: RunSpec, seed: int = 0) -> Settings:
    """The engine's settings of one repetition."""
    train = run.train
    return Settings(
        train.rounds,
        seed,
        train.participation,
        run.evaluate.every,
        train.newcomers,
        train.join_round,
        train.freeze,
        checks.build_upload_path(run),
        run.evaluate.edges,
    )


def choose_device(name: str) -> str:
    """The device called `name`.

    Raises:
        BadInput: for 'cuda' on a machine without a visible GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "train.device: 'cuda' but no CUDA device is visible; use auto or cpu, or check CUDA_VISIBLE_DEVICES"
        )
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def build_executor(run: RunSpec, method: Method, device: str) -> Executor:
    """The executor of a run of `method` on `device`."""
    train = run.train
    if method.pools and train.executor == "auto":
        return Loop()  # one client takes two and a half times as long in a batched executor
    return choose_executor(
        train.executor, method.network, device, train.chunk, train.rounds * (train.steps or train.epochs)
    )


def load_inputs(run: RunSpec, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set and partition that the earlier stages wrote.

    Raises:
        BadInput: when they are not there or damaged.
    """
    features, folder = data_folders(run.task, run.name, root)
    return data.load_dataset(features), data.load_partition(folder / "partition.npz")


def partition_inputs(run: RunSpec, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set that the earlier stages wrote, and its first split, partitioned in memory as the run's task says.

    Raises:
        BadInput: when it is missing or damaged, or cannot be partitioned so.
    """
    dataset = data.load_dataset(data_folders(run.task, run.name, root)[0])
    return dataset, data.partition(dataset, **data.splits(run.task.partition)[0])


def hyperparameters(method: Method) -> Mapping[str, Any]:
    """The method's own settings, defaults included."""
    return {setting.name: getattr(method, setting.name) for setting in method.settings()}


def evaluation_point(run: RunSpec) -> str:
    """The evaluation point that is reported."""
    method = METHODS[run.method]
    return method.point if run.evaluate.point == "method" or method.fixed_point else run.evaluate.point


def to_cpu(tree: Any) -> Any:
    """A tree of tensors on the CPU."""
    return torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, tree)
