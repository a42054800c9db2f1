"""From names and numbers to objects: federation, task, method, executor and settings of a run."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave import data
from fedweave.attacks import Attack, AttackSpec, liars
from fedweave.config import construct
from fedweave.data import Dataset, Partition
from fedweave.engine import Settings
from fedweave.errors import BadInput, choose
from fedweave.executors import Executor, choose_executor
from fedweave.federation import Federation, check_clients, pad_arrays, pad_rows
from fedweave.methods import METHODS
from fedweave.models import MODELS, build, gcn_norm, options
from fedweave.protocol import Method
from fedweave.schedule import Training
from fedweave.solvers import SOLVERS, Solver
from fedweave.spec import PARAMS, Run, Study, TaskSpec, TrainSpec, parse, read_yaml
from fedweave.task import Forecast, NodeClassification, RowClassification, Task


def folders(task: TaskSpec, name: str, root: Path = Path("data")) -> tuple[Path, Path]:
    """(features of the data set, partition of the task)."""
    return root / "features" / task.dataset, root / "partitions" / name


def load(path: Path | str = PARAMS) -> Study:
    """Read and check params.yaml: form, names, hyper-parameters, and that every method makes sense on its task.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return check(parse(read_yaml(Path(path)), str(path)), str(path))


def check(study: Study, where: str = str(PARAMS)) -> Study:
    """`study` as it is, or the first thing that is wrong with it.

    Raises:
        BadInput: as `load`.
    """
    for name, task in study.tasks.items():
        check_names(task, f"{where}: tasks.{name}")
    for key in study.runs:
        check_run(study.run(key), where)
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            run = study.run(block["run"], extra=settings)
            if check_run(run, f"{where}: ablate.{name}").leaks:
                raise BadInput(f"{where}: ablate.{name}.{variant}: trains on test rows, which no comparison includes; make it a run")
    return study


def check_names(task: TaskSpec, where: str) -> None:
    """Refuse unknown data sets, partitions, models and their options before any work."""
    choose(task.dataset, data.DATASETS, f"{where}.dataset")
    tables: dict[str, Mapping[str, Any]] = {"partition": data.PARTITIONS, "model": MODELS}
    for key, table in tables.items():
        block = getattr(task, key)
        if "name" not in block:
            raise BadInput(f"{where}.{key}.name: missing; choices: {', '.join(sorted(table))}")
        choose(block["name"], table, f"{where}.{key}.name")
    for option in task.model.keys() - {"name"}:
        choose(option, options(task.model["name"]), f"{where}.model")
    for option in task.partition.keys() - {"name", "clients", "seed"}:
        choose(option, data.accepted(task.partition["name"]), f"{where}.partition")
    if task.attack is not None:
        construct(AttackSpec, task.attack, f"{where}.attack")


def check_run(run: Run, where: str) -> Method:
    """The run's method, on a task that is a mere name; refuses what is unknown or makes no sense on the task.

    Raises:
        BadInput: naming the run, the setting and the way out.
    """
    choose(run.method, METHODS, f"{where}: runs.{run.key}.method")
    if run.train.steps and run.train.epochs != 1:
        raise BadInput(f"{where}: runs.{run.key}: train.steps {run.train.steps} and train.epochs {run.train.epochs}: give one of them")
    if run.train.freeze and not run.train.newcomers:
        raise BadInput(f"{where}: runs.{run.key}: train.freeze holds from the round in which train.newcomers join; set both or neither")
    if bool(run.train.newcomers) != bool(run.train.join_round) or run.train.join_round >= run.train.rounds:
        raise BadInput(f"{where}: runs.{run.key}: train.newcomers and train.join_round go together, and the round lies below train.rounds")
    kind = NodeClassification if run.task.model["name"] == "gcn" else RowClassification
    method = build_method(run, kind(lambda: build("mlp", (1,), 1)))  # any model: only the settings are looked at
    if run.task.attack and not method.embeds:
        choices = ", ".join(sorted(name for name, cls in METHODS.items() if cls.embeds))
        raise BadInput(f"{where}: runs.{run.key}: tasks.{run.name}.attack is on embeddings, and {run.method} has none; use {choices}")
    missing = METHODS[run.method].needs - kind_capabilities(run.task)
    if missing:
        raise BadInput(
            f"{where}: runs.{run.key}: {METHODS[run.method].label} needs {' and '.join(sorted(missing))}, which "
            f"{run.task.dataset} with model {run.task.model['name']} does not have; drop the run or change the task"
        )
    return method


def kind_capabilities(task: TaskSpec) -> frozenset[str]:
    """What a task will be able to do, known from its names alone."""
    name, has = task.model["name"], set()
    if name == "gcn":
        has |= {"subgraphs", "classes"}
    elif name not in ("gru", "tpt_mlp"):
        has |= {"classes"}
    with_norm = task.model.get("batch_norm", options(name).get("batch_norm", name in ("aghn_cnn", "small_cnn", "resnet18")))
    return frozenset(has | ({"batch_norm"} if with_norm else set()))


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
    training = Training(train.batch_size, train.epochs, train.steps, drop_last=bool(task.norms))
    cls = METHODS[run.method]
    hidden = {"task": task, "solver": build_solver(train), "training": training}
    return construct(cls, run.options, f"params.yaml: methods.{run.method}", **hidden)


def build_task(run: Run, dataset: Dataset, partition: Partition, dtype: torch.dtype = torch.float32) -> Task:
    """What the run's clients learn, for the shapes of `dataset`."""
    options = {k: v for k, v in run.task.model.items() if k != "name"}
    if dataset.kind == "series":
        window, horizon = partition.layout["window"], partition.layout["horizon"]
        return Forecast(partial(build, run.task.model["name"], (window, 2), horizon, **options), dtype, window, horizon)
    graph = run.task.model["name"] == "gcn"
    if graph != (dataset.kind == "graph"):
        raise BadInput(f"tasks.{run.name}.model.name: {run.task.model['name']!r} does not fit {dataset.name} ({dataset.kind})")
    cls = NodeClassification if graph else RowClassification
    return cls(partial(build, run.task.model["name"], tuple(dataset.x.shape[1:]), dataset.classes, **options), dtype)


def build_federation(dataset: Dataset, partition: Partition, normalize: Any, dtype: torch.dtype = torch.float32) -> Federation:
    """All clients' data as tensors on the CPU.

    Raises:
        BadInput: for a client without training rows.
    """
    check_clients(partition.train, f"partition of {dataset.name}")
    x = np.array(data.normalise(dataset, partition, normalize))  # a copy: what lies on disk is mapped read-only
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
    return replace(federation, attack=Attack(spec.kind, spec.scale, liars(federation.clients, spec.share, task.partition["seed"])))


def cohorts(run: Run, federation: Federation) -> dict[str, list[int]]:
    """Clients that are looked at apart: those who come late, and those who lie; name -> positions."""
    late = range(federation.clients - run.train.newcomers, federation.clients)
    found = {"newcomers": [*late], "from the start": [*range(late.start)]} if late else {}
    if federation.attack is not None:
        lying = federation.attack.liars.tolist()
        found |= {name: [i for i, lies in enumerate(lying) if lies == wanted] for name, wanted in (("honest", False), ("lying", True))}
    return {name: members for name, members in found.items() if members}


def _arrays(dataset: Dataset, partition: Partition, x: np.ndarray, dtype: torch.dtype) -> tuple[dict, dict, dict]:
    """(shared, own, extents) of a federation, by kind of data set."""
    tensor = torch.from_numpy(x).to(dtype)
    if dataset.kind == "images":
        return {"x": tensor, "y": torch.from_numpy(np.array(dataset.y))}, {}, {}
    if dataset.kind == "series":
        return {"x": tensor, "time": torch.from_numpy(np.array(dataset.time)).to(dtype)}, {}, {}
    graphs = [gcn_norm(torch.from_numpy(edges), len(nodes)) for nodes, edges in partition.subgraphs]
    padded, vs = pad_arrays([x[nodes] for nodes, _ in partition.subgraphs])
    y, _ = pad_arrays([dataset.labels[nodes] for nodes, _ in partition.subgraphs])
    edges, es = pad_arrays([g[0].numpy() for g in graphs], axis=1)
    weight, _ = pad_arrays([g[1].numpy() for g in graphs])
    own = {"x": padded.to(dtype), "y": y, "edges": edges, "weight": weight.to(dtype), "nodes": torch.arange(padded.shape[1]) < vs[:, None]}
    return {}, own, {"x": vs, "y": vs, "nodes": vs, "edges": es, "weight": es}


def settings(run: Run, seed: int) -> Settings:
    """The engine's settings of one repetition."""
    t = run.train
    return Settings(t.rounds, seed, t.participation, run.evaluate.every, t.newcomers, t.join_round, t.freeze)


def device(name: str) -> str:
    """The device called `name`.

    Raises:
        BadInput: when a GPU is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("train.device: 'cuda' but no CUDA device is visible; use auto or cpu, or check CUDA_VISIBLE_DEVICES")
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def executor(run: Run, task: Task) -> Executor:
    """The executor of a run."""
    return choose_executor(run.train.executor, task.template, device(run.train.device), run.train.chunk)


def load_inputs(run: Run, root: Path = Path("data")) -> tuple[Dataset, Partition]:
    """The data set and partition that the earlier stages wrote.

    Raises:
        BadInput: when they are not there or damaged.
    """
    features, dealt = folders(run.task, run.name, root)
    return data.load_dataset(features), data.load_partition(dealt / "partition.npz")


def hyperparameters(method: Method) -> Mapping[str, Any]:
    """The method's own settings, defaults included."""
    return {f.name: getattr(method, f.name) for f in fields(method) if f.name not in ("task", "solver", "training")}


def point(run: Run) -> str:
    """The evaluation point that is reported."""
    return METHODS[run.method].point if run.evaluate.point == "method" else run.evaluate.point


def to_cpu(tree: Any) -> Any:
    """A tree of tensors on the CPU."""
    return torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, tree)
