"""The objects of a run, built once: method, data, executor, settings and device. All other code receives them."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from fedweave import data
from fedweave.client.model_check import check_model, find_softmax
from fedweave.client.task import Task
from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import to_float32
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Batched, Executor, Processes, set_precision
from fedweave.engine.graph_truth import jensen_shannon, target_shares
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_sample
from fedweave.errors import BadInput
from fedweave.families.base import check_local_names, check_shared_part
from fedweave.graphs.weights import is_recordable
from fedweave.models import MODELS, ClientModel, parameter_count
from fedweave.processes.parallel import allocate_workers, cores, keep_memory
from fedweave.registry import users_file
from fedweave.runs import assembly, federations, graph_controls, tasks
from fedweave.runs.metric_check import check_metric
from fedweave.runs.units import check_equal_units
from fedweave.study import checks
from fedweave.study.spec import RunSpec

CHECKED_ROWS = 8  # on which a user's model is checked
LARGE_TABLE = 2**31  # bytes of the models of all clients above which their tables are stored in files


@dataclass(frozen=True)
class PreparedRun:
    """The objects of a run.

    Attributes:
        run: its specification.
        method, federation: on their device.
        executor: maps the clients' work.
        settings: of the engine, with seed 0; a repetition replaces the seed by its own.
        device: where tensors are.
        point: the evaluation point that is reported, "pre" or "post".
        note: the note of the data set.
        names, group_names: of clients and of groups, or none.
        units: unit of each client, or none.
        split: if the task has several splits: seed of a repetition -> the objects of its split. These objects are
            those of the first split.
    """

    run: RunSpec
    method: Method
    federation: Clients
    executor: Executor
    settings: Settings
    device: str
    point: str
    note: str = ""
    names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    split: Callable[[int], "PreparedRun"] | None = None

    def for_seed(self, seed: int) -> "PreparedRun":
        """The objects of the repetition `seed`."""
        return self if self.split is None else self.split(seed)

    def share_cores(self, repetitions: int) -> tuple["PreparedRun", int, int]:
        """(these objects, processes, threads of each) for `repetitions` that share the cores of this machine."""
        workers, threads = allocate_workers(self.method.network, repetitions, self.device, self.federation.clients)
        return self.with_cores(cores() // workers), workers, threads

    def with_cores(self, count: int) -> "PreparedRun":
        """These objects, for repetitions that may use `count` cores each."""
        split = self.split and (lambda seed: self.for_seed(seed).with_cores(count))
        executor = (
            replace(self.executor, count=max(1, count)) if isinstance(self.executor, Processes) else self.executor
        )
        return replace(self, executor=executor, split=split)

    @property
    def has_mapped_tables(self) -> bool:
        """Whether tables of all clients are in memory-mapped files: by `train.store`, or by size if it is auto."""
        if self.run.train.store != "auto" or self.method.pools:
            return self.run.train.store == "mapped"
        return 4 * parameter_count(self.method.task.template) * self.federation.clients > LARGE_TABLE

    @property
    def rounds(self) -> int:
        """Number of rounds of one repetition, over all stages of the method."""
        return sum(stage.rounds for stage in self.method.stages(self.run.train.rounds))


def prepare(
    run: RunSpec, dataset: Dataset, partition: Partition, model: Callable[[], ClientModel] | None = None
) -> PreparedRun:
    """Build the objects of `run`, and prepare this process for it. All checks that need no training are made here.

    If the task has several splits, `partition` is the first one. The others are made when they are needed.

    Args:
        model: makes client models, instead of the model that the task names.

    Raises:
        BadInput: as the functions of `assembly`.
    """
    splits = data.splits(run.task.partition)
    sample = splits[0]["seed"]
    first = _prepare_split(_replace_partition(run, splits[0]), dataset, partition, model, sample)
    if len(splits) == 1:
        return replace(first, run=run)

    @cache
    def prepare_for_seed(seed: int) -> PreparedRun:
        # A seed that is none of the run's, such as that of a benchmark, has the first split.
        split = splits[run.seeds.index(seed)] if seed in run.seeds else splits[0]
        if split is splits[0]:
            return replace(first, run=run)
        split_partition = data.partition(dataset, **split)
        check_equal_units(run.key, {splits[0]["seed"]: partition.units, split["seed"]: split_partition.units})
        return replace(_prepare_split(_replace_partition(run, split), dataset, split_partition, model, sample), run=run)

    return replace(first, run=run, split=prepare_for_seed)


def check_validation(run: RunSpec, method: Method, federation: Clients) -> None:
    """Refuse clients without validation rows where the choice of the round or the method needs them.

    Raises:
        BadInput: naming a client and the way out.
    """
    has_val = (federation.val >= 0).any(1)
    empty = (~has_val).nonzero().flatten().tolist()
    if empty and method.needs_validation:
        raise BadInput(
            f"runs.{run.key}: client {empty[0]} has no validation rows, {method.needs_validation}; "
            "or give every client some in partition.split"
        )
    if not has_val[federation.sample].any() and run.evaluate.select != "last":
        which = "evaluated client" if run.evaluate.clients else "client"
        raise BadInput(
            f"runs.{run.key}: evaluate.select: {run.evaluate.select} needs validation rows, but no {which} has any in "
            f"the partition {run.task.partition.get('name')!r}; use last, or give val a share in partition.split"
        )


def check_memory(prepared: PreparedRun) -> None:
    """Refuse an evaluation of more clients than fit into memory, with their models as sent, before and after training.

    Raises:
        BadInput: naming the setting, and how many clients would fit.
    """
    count, memory = len(prepared.federation.sample), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = 3 * 4 * parameter_count(prepared.method.task.template)
    if count * size > memory:
        raise BadInput(
            f"runs.{prepared.run.key}: evaluate.clients: {count} clients are evaluated at once, whose models need "
            f"{count * size / 2**30:.0f} GiB of the machine's {memory / 2**30:.0f}; evaluate a sample of up to "
            f"{memory // size // 2} clients, as evaluate: {{clients: 100}}"
        )


def _replace_partition(run: RunSpec, split: dict[str, Any]) -> RunSpec:
    return replace(run, task=replace(run.task, partition=split))


def _prepare_split(
    run: RunSpec, dataset: Dataset, partition: Partition, model: Callable[[], ClientModel] | None, sample: int
) -> PreparedRun:
    """The objects of `run` on one split; `sample` is the seed of the clients that are evaluated."""
    device = assembly.choose_device(run.train.device)
    set_precision(device, run.train.precision == "tf32")
    keep_memory()
    task = tasks.build_task(run, dataset, partition, model=model)
    federation = federations.add_attackers(
        federations.build_federation(dataset, partition, run.task.normalize), run.task
    )
    federation = federations.add_class_weights(federation, run.train.class_weights)
    federation = replace(federation, evaluated=evaluation_sample(sample, federation.ids, run.evaluate.clients))
    method = assembly.build_method(run, task)
    check_local_names(method)
    checks.check_budget(run, f"runs.{run.key}", federation.clients)
    check_shared_part(method, run.task.model["name"], f"runs.{run.key}")
    check_metric(run, dataset, partition)
    check_validation(run, method, federation)
    if is_recordable(1, federation.clients):
        divergence = torch.from_numpy(jensen_shannon(target_shares(task, federation)))
        federation = replace(federation, divergence=divergence)
    if run.evaluate.edges and not is_recordable(len(task.layers), federation.clients):
        raise BadInput(
            f"runs.{run.key}: evaluate.edges: {run.evaluate.edges} needs the whole graph of {federation.clients} "
            "clients, which is too large to be recorded; leave it out"
        )
    if control := graph_controls.build(run, method, federation, partition.names):
        method = replace(method, control=control)
    prepared = PreparedRun(
        run, method, federation.to(device), assembly.build_executor(run, method, device),
        assembly.build_settings(run), device, assembly.evaluation_point(run), dataset.note, partition.names,
        partition.group_names, partition.units,
    )  # fmt: skip
    if prepared.has_mapped_tables:
        check_memory(prepared)
    if model is None:
        _try_plug_in(prepared, dataset, partition)
    return prepared


def _try_plug_in(prepared: PreparedRun, dataset: Dataset, partition: Partition) -> None:
    name = prepared.run.task.model["name"]
    if dataset.kind == "images" and users_file(MODELS[name]):
        try_model(prepared.method.task, dataset, partition, name, prepared.executor)


def try_model(task: Task, dataset: Dataset, partition: Partition, name: str, executor: Executor) -> None:
    """Try a user's model on rows of the data, for several clients at once if `executor` is going to run it so.

    Raises:
        BadInput: as `check_model`.
    """
    rows = torch.from_numpy(to_float32(dataset.x[partition.train[0][:CHECKED_ROWS]]))
    check_model(task, rows, dataset.outputs, name, isinstance(executor, Batched))
    if dataset.classes and (line := find_softmax(task, rows, name)):
        warnings.warn(line, stacklevel=2)
