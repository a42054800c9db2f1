"""From names and numbers to objects: federation, task, method, executor and settings of a run."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave import data
from fedweave.client.solvers import SOLVERS, Solver
from fedweave.client.task import Forecast, NodeClassification, RowClassification, Task
from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput, choose
from fedweave.federation import subgraphs
from fedweave.federation.engine import Settings
from fedweave.federation.executors import Executor, choose_executor
from fedweave.federation.federation import Federation, check_clients, pad_rows
from fedweave.federation.protocol import Method
from fedweave.federation.schedule import Training
from fedweave.methods import METHODS
from fedweave.models import build
from fedweave.study import checks, search_spaces, spec
from fedweave.study.config import construct
from fedweave.study.schema import TaskSpec, TrainSpec
from fedweave.study.spec import PARAMS, Run, Study, nest
from fedweave.threats.attacks import Attack, AttackSpec, flipped, liars


def folders(task: TaskSpec, name: str, root: Path = Path("data")) -> tuple[Path, Path]:
    """(features of the data set, partition of the task)."""
    return root / "features" / task.dataset, root / "partitions" / name


def load(path: Path | str = PARAMS) -> Study:
    """Read and check params.yaml: form, names, hyper-parameters, search spaces, and that every method makes sense on its task.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return check(spec.load(path), str(path))


def check(study: Study, where: str = str(PARAMS)) -> Study:
    """`study` as it is, or the first thing that is wrong with it.

    Raises:
        BadInput: as `load`.
    """
    checks.check_methods(study, where)
    for name, task in study.tasks.items():
        checks.check_task(task, f"{where}: tasks.{name}")
    for key in study.runs:
        check_run(study.run(key), where)
    search_spaces.check(study, where)
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            run = varied(study, block["run"], {}, settings)
            checks.check_task(run.task, f"{where}: ablate.{name}.{variant}")
            if check_run(run, f"{where}: ablate.{name}").leaks:
                raise BadInput(
                    f"{where}: ablate.{name}.{variant}: trains on test rows, which no comparison includes; make it a run"
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


def check_run(run: Run, where: str) -> Method:
    """The run's method, on a task that is a mere name; refuses what is unknown or makes no sense on the task.

    Raises:
        BadInput: naming the run, the setting and the way out.
    """
    here = f"{where}: runs.{run.key}"
    choose(run.method, METHODS, f"{here}.method")
    checks.check_budget(run, here)
    kind = NodeClassification if run.task.model["name"] == "gcn" else RowClassification
    method = build_method(run, kind(lambda: build("mlp", (1,), 1)))  # any model: only the settings are looked at
    checks.check_wire(run, method, here)
    checks.check_needs(run, here)
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


def build_task(run: Run, dataset: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Task:
    """What the run's clients learn, for the shapes of `dataset`.

    Raises:
        BadInput: the model does not fit the data.
    """
    _check_fit(run, dataset)
    model = dict(run.task.model)
    name, half = model.pop("name"), torch.bfloat16 if run.train.precision == "bfloat16" else None
    try:
        if dataset.kind == "series":
            window, horizon = partition.layout["window"], partition.layout["horizon"]
            forecast = Forecast(partial(build, name, (window, 2), horizon, **model), dtype, half, window, horizon)
            return _tried(forecast, torch.zeros(1, window + horizon, 2, dtype=dtype), horizon)
        shape = tuple(dataset.x.shape[1:])
        built = partial(build, name, shape, dataset.classes, **model)
        if name == "gcn":
            return NodeClassification(built, dtype)
        rows = RowClassification(built, dtype, half, run.train.augment or 0)
        return _tried(rows, torch.zeros(1, *shape, dtype=dtype), dataset.classes)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"tasks.{run.name}.model: {run.task.model} does not fit {dataset.name} ({reason}); choose another"
        ) from error


def _check_fit(run: Run, dataset: Dataset) -> None:
    """Refuse a model or a setting of its training that is not made for `dataset`."""
    name, graph = run.task.model["name"], run.task.model["name"] == "gcn"
    if graph != (dataset.kind == "graph"):
        raise BadInput(f"tasks.{run.name}.model.name: {name!r} does not fit {dataset.name} ({dataset.kind})")
    if graph and run.train.precision == "bfloat16":
        raise BadInput(
            f"tasks.{run.name}.train.precision: 'bfloat16', but graphs are summed in full precision; use tf32, or leave it out"
        )
    augment, sides = run.train.augment or 0, dataset.x.shape[2:] if dataset.kind == "images" else ()
    if augment and (len(sides) != 2 or augment >= min(sides)):
        what = f"images of {sides[0]} x {sides[1]}" if len(sides) == 2 else "no images"
        raise BadInput(
            f"tasks.{run.name}.train.augment: {augment} pixels, but {dataset.name} has {what}; make it smaller, or leave it out"
        )


def _tried(task: Task, example: Tensor, outputs: int) -> Task:
    """`task`, once its model has answered an example input."""
    with torch.no_grad():
        found = tuple(task.call(task.init(0), example).shape)
    if found != (1, outputs):
        raise ValueError(f"it answers with {found} where (1, {outputs}) is needed")
    return task


def build_federation(
    dataset: Dataset, partition: Partition, normalize: Any, dtype: torch.dtype = torch.float32
) -> Federation:
    """All clients' data as tensors on the CPU.

    Raises:
        BadInput: for a client without training rows, a partition of other data, features that are not finite.
    """
    check_clients(partition.train, f"partition of {dataset.name}")
    data.check_fits(dataset, partition)
    data.check_finite(dataset.x, f"dataset {dataset.name}", "run the download stage again")
    x = np.array(data.normalise(dataset, partition, normalize))  # a copy: what lies on disk is mapped read-only
    data.check_finite(
        x, f"dataset {dataset.name}: normalize: {normalize!r}", "choose numbers that its values can be scaled by"
    )
    rows: dict[str, Any] = {name: pad_rows(getattr(partition, name)) for name in ("train", "val", "test")}
    shared, own, extents = _arrays(dataset, partition, x, dtype)
    if partition.test_weight is not None:
        own["test_weight"] = torch.from_numpy(np.array(partition.test_weight)).to(dtype)
    optional = {"relation": partition.relation, "group": partition.group}
    given: dict[str, Any] = {k: torch.from_numpy(np.array(v)) for k, v in optional.items() if v is not None}
    return Federation(shared=shared, own=own, **rows, ids=torch.arange(partition.clients), extents=extents, **given)


def attacked(federation: Federation, task: TaskSpec) -> Federation:
    """`federation` with the liars that the task names; who they are hangs on the seed of the partition."""
    if task.attack is None:
        return federation
    spec = construct(AttackSpec, task.attack, "attack")
    attack = Attack(spec.kind, spec.scale or 0.0, liars(federation.clients, spec.share, task.partition["seed"]))
    return replace(_mislabelled(federation, attack.liars) if spec.kind == "label_flip" else federation, attack=attack)


def _mislabelled(federation: Federation, liars: Tensor) -> Federation:
    """The training labels of `liars` mirrored; what they validate and are tested on stays as it is."""
    rows, shared, own = federation.train[liars], federation.shared, federation.own
    labels = {**shared, **own}["y"]
    classes = int(labels.max()) + 1  # of all clients: a subgraph may lack the last one
    if "y" in shared:
        return replace(federation, shared={**shared, "y": flipped(labels, rows.flatten(), classes)})
    y = labels.clone()
    for liar, mine in zip(liars.nonzero()[:, 0].tolist(), rows, strict=True):
        y[liar] = flipped(labels[liar], mine, classes)
    return replace(federation, own={**own, "y": y})


def cohorts(run: Run, federation: Federation) -> dict[str, list[int]]:
    """Clients that are looked at apart: those who come late, and those who lie; name -> positions."""
    late = range(federation.clients - run.train.newcomers, federation.clients)
    found = {"newcomers": [*late], "from the start": [*range(late.start)]} if late else {}
    if federation.attack is not None:
        lying = federation.attack.liars.tolist()
        found |= {
            name: [i for i, lies in enumerate(lying) if lies == wanted]
            for name, wanted in (("honest", False), ("lying", True))
        }
    return {name: members for name, members in found.items() if members}


def _arrays(dataset: Dataset, partition: Partition, x: np.ndarray, dtype: torch.dtype) -> tuple[dict, dict, dict]:
    """(shared, own, extents) of a federation, by kind of data set."""
    tensor = torch.from_numpy(x).to(dtype)
    if dataset.kind == "images":
        return {"x": tensor, "y": torch.from_numpy(np.array(dataset.y))}, {}, {}
    if dataset.kind == "series":
        return {"x": tensor, "time": torch.from_numpy(np.array(dataset.time)).to(dtype)}, {}, {}
    graphs = partition.subgraphs
    own, extents = subgraphs.stacked(
        [x[v] for v, _ in graphs], [dataset.labels[v] for v, _ in graphs], [e for _, e in graphs], dtype
    )
    return {}, own, extents


def settings(run: Run, seed: int) -> Settings:
    """The engine's settings of one repetition."""
    t = run.train
    return Settings(
        t.rounds, seed, t.participation, run.evaluate.every, t.newcomers, t.join_round, t.freeze, checks.wire(run)
    )


def device(name: str) -> str:
    """The device called `name`.

    Raises:
        BadInput: when a GPU is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "train.device: 'cuda' but no CUDA device is visible; use auto or cpu, or check CUDA_VISIBLE_DEVICES"
        )
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def executor(run: Run, method: Method) -> Executor:
    """The executor of a run of `method`."""
    t = run.train
    return choose_executor(t.executor, method.network, device(t.device), t.chunk, t.rounds * (t.steps or t.epochs))


def load_inputs(run: Run, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set and partition that the earlier stages wrote.

    Raises:
        BadInput: when they are not there or damaged.
    """
    features, dealt = folders(run.task, run.name, root)
    return data.load_dataset(features), data.load_partition(dealt / "partition.npz")


def deal_inputs(run: Run, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set that the earlier stages wrote, dealt in memory as the run's task says.

    Raises:
        BadInput: when it is not there or damaged, or cannot be dealt so.
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
