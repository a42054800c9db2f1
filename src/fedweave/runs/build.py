"""The objects of a run, built once: method, data, executor, settings and device. All other code receives them."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave import data
from fedweave.client.model_check import check_codes, check_model, find_softmax
from fedweave.client.task import Task
from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import fit_scaling
from fedweave.data.raw_rows import RawRows, find_raw
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Batched, Executor, Loop, Processes, choose_device, choose_executor, set_precision
from fedweave.engine.graph_truth import jensen_shannon, target_shares
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_sample
from fedweave.errors import BadInput
from fedweave.families.base import check_parts
from fedweave.graphs.weights import is_recordable
from fedweave.models import MODELS, ClientModel, parameter_count
from fedweave.models.base import weight_count
from fedweave.processes.parallel import allocate_workers, cores, keep_memory
from fedweave.registry import users_file
from fedweave.runs import federations, frozen_bodies, graph_controls, row_checks, tasks
from fedweave.runs.inputs import Inputs
from fedweave.study import checks, objects
from fedweave.study.spec import PARAMS, RunSpec

CHECKED_ROWS = 8  # on which a user's model is checked
LOG = "log-{}.txt"  # what a program printed, by seed; in the folder of the run
# Rows times weights of all rounds of a repetition, below which it ends before the fork of a process would pay.
SMALL_RUN = 2**24
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
        names: of the clients.
        group_names: of the groups, or none.
        units: unit of each client, or none.
        classes: names of the classes, or none.
        categories: codes of each input column, 0 for a number; empty if all are numbers.
        raw: rows before their preparation, for code from elsewhere in place of a method; else None.
        logs: folder for what programs print, if code from elsewhere takes the place of the method.
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
    classes: tuple[str, ...] = ()
    categories: tuple[int, ...] = ()
    raw: RawRows | None = None
    logs: Path | None = None
    split: Callable[[int], "PreparedRun"] | None = None

    def for_seed(self, seed: int) -> "PreparedRun":
        """The objects of the repetition `seed`."""
        return self if self.split is None else self.split(seed)

    def with_logs(self, folder: Path) -> "PreparedRun":
        """These objects, with a folder for what programs print."""
        split = self.split and (lambda seed: self.for_seed(seed).with_logs(folder))
        return replace(self, logs=folder, split=split)

    def share_cores(self, repetitions: int) -> tuple["PreparedRun", int, int]:
        """(these objects, processes, threads of each) for `repetitions` that share the cores of this machine.

        Code from elsewhere runs in this process, one repetition after the other: its threads could disturb a fork.
        """
        if not self.method.has_models:
            return self, 1, 1
        workers, threads = allocate_workers(self.method.network, repetitions, self.device, self.federation.clients)
        shared = self.with_cores(cores() // workers)
        is_small = threads == 1 and self._row_passes * weight_count(self.method.network) < SMALL_RUN
        return shared, 1 if is_small else workers, threads

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
        networks = (self.method.task.template, self.method.network)
        return 4 * max(map(parameter_count, networks)) * self.federation.clients > LARGE_TABLE

    @property
    def _row_passes(self) -> int:
        """How many rows one repetition trains on, those of every pass counted, if all clients take part."""
        train = self.run.train
        rows = int(self.federation.sizes.sum())
        by_steps = train.steps * (train.batch_size * self.federation.clients or rows)
        return self.rounds * (by_steps or train.epochs * rows)

    @property
    def rounds(self) -> int:
        """Number of rounds of one repetition, over all stages of the method."""
        return sum(stage.rounds for stage in self.method.stages(self.run.train.rounds))


def prepare(
    run: RunSpec,
    dataset: Dataset,
    partition: Partition,
    model: Callable[[], ClientModel] | None = None,
    features: bool = True,
) -> PreparedRun:
    """Build the objects of `run`, and prepare this process for it. All checks that need no training are made here.

    If the task has several splits, `partition` is the first one. The others are made when they are needed.

    Args:
        model: makes client models, instead of the model that the task names.
        features: whether a frozen body runs once for all rows, before training, see `frozen_bodies`.

    Raises:
        BadInput: the data, the model or the device do not fit the settings; one line that names the setting.
    """
    device = choose_device(run.train.device)  # first, because it needs no data
    splits = data.splits(run.task.partition)

    @cache
    def prepare_split(i: int) -> PreparedRun:
        own_partition = partition if i == 0 else data.partition(dataset, **splits[i])
        if i:
            row_checks.check_equal_units(
                run.key, {splits[0]["seed"]: partition.units, splits[i]["seed"]: own_partition.units}
            )
        one_split = replace(run, task=replace(run.task, partition=splits[i]))
        evaluated = evaluation_sample(splits[0]["seed"], torch.arange(partition.clients), run.evaluate.clients)
        prepared = _prepare_split(one_split, Inputs(dataset, own_partition, model), evaluated, device, features)
        return replace(prepared, run=run)

    first = prepare_split(0)
    if len(splits) == 1:
        return first
    # A seed that is none of the run's, such as that of a benchmark, has the first split.
    return replace(first, split=lambda seed: prepare_split(run.seeds.index(seed) if seed in run.seeds else 0))


def build_method(run: RunSpec, inputs: Inputs, where: str = str(PARAMS)) -> Method:
    """The method of `run` with its task, on the data of `inputs`; `where` is as in `objects.build_method`.

    Raises:
        BadInput: model, method or settings do not fit the data, or each other.
    """
    task = tasks.build_task(run, inputs.dataset, inputs.partition, model=inputs.model)
    method = objects.build_method(run, task, where)
    checks.check_method(run, method, f"{where}: runs.{run.key}", task.capabilities)
    check_parts(method, run.task.model["name"], f"{where}: runs.{run.key}")
    return method


def check_on_data(run: RunSpec, where: str, inputs: Inputs) -> None:
    """Refuse a run that does not fit its data, before features are scaled, as `validate.check_run` without data."""
    place = f"{where}: runs.{run.key}"
    checks.check_budget(run, place, inputs.partition.clients)
    checks.check_graph(run, place)
    graph_controls.check_given_graph(run, inputs.partition, place)
    row_checks.check_hidden(run, build_method(run, inputs, where), inputs.partition)
    row_checks.check_metric(run, inputs.dataset, inputs.partition)


def _prepare_split(run: RunSpec, inputs: Inputs, evaluated: Tensor | None, device: str, features: bool) -> PreparedRun:
    """The objects of `run` on one split; `evaluated` are the clients that are evaluated, bool [N], or None for all."""
    dataset, partition = inputs.dataset, inputs.partition
    method = build_method(run, inputs)
    settings, point = objects.build_settings(run), objects.evaluation_point(run)
    checks.check_budget(run, f"runs.{run.key}", partition.clients)

    federation = replace(_build_federation(run, method, dataset, partition), evaluated=evaluated)
    row_checks.check_metric(run, dataset, partition)
    row_checks.check_hidden(run, method, partition)
    row_checks.check_validation(run, method, federation)
    if is_recordable(1, federation.clients):
        divergence = torch.from_numpy(jensen_shannon(target_shares(method.task, federation)))
        federation = replace(federation, divergence=divergence)
    row_checks.check_edges(run, len(method.task.layers), federation.clients)
    if control := graph_controls.build(run, method, federation, partition.client_names):
        method = replace(method, control=control)

    set_precision(device, run.train.precision == "tf32")
    keep_memory()
    task = method.task
    if features:
        method, federation = frozen_bodies.run_once(method, federation, device)
    prepared = PreparedRun(
        run,
        method,
        federation.to(device),
        _choose_executor(run, method, federation, device),
        settings,
        device,
        point,
        dataset.note,
        partition.client_names,
        partition.group_names,
        partition.units,
        dataset.class_names or tuple(map(str, range(dataset.classes))),
        dataset.categories,
        None if method.has_models else find_raw(dataset, partition),  # for code from elsewhere alone
    )
    if prepared.has_mapped_tables:
        check_memory(prepared)
    name = run.task.model["name"]
    if inputs.model is None and dataset.kind == "images" and users_file(MODELS[name]):
        try_model(task, run.task.normalize, dataset, partition, name, prepared.executor)
    return prepared


def _build_federation(run: RunSpec, method: Method, dataset: Dataset, partition: Partition) -> Clients:
    """The clients of a run, with what its task and its training add to their rows."""
    federation = federations.build_federation(dataset, partition, run.task.normalize)
    federation = federations.add_attackers(federation, run.task)
    if run.train.class_weights:
        federation = federations.add_balanced_weights(federation)
    if ranks := method.task.adapter_ranks:
        federation = federations.add_adapter_ranks(federation, ranks)
    return federation


def _choose_executor(run: RunSpec, method: Method, federation: Clients, device: str) -> Executor:
    """The executor that the run asks for, or one that suits its work."""
    if not method.has_models:
        return Loop()  # its predictions are looked up one client after the other
    train = run.train
    batches = -(-int(federation.sizes.max()) // train.batch_size) if train.batch_size else 1  # of the largest client
    by_kernel = not (train.precision or train.augment)  # it multiplies in float32 alone, and moves no images
    steps = train.rounds * (train.steps or train.epochs * batches) if by_kernel else 0
    return choose_executor(train.executor, method.network, device, train.chunk, steps, method.pools)


def check_memory(prepared: PreparedRun) -> None:
    """Refuse an evaluation of more clients than fit into memory, with models as sent, before and after training."""
    count, memory = len(prepared.federation.sample), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = 3 * 4 * parameter_count(prepared.method.task.template)
    if count * size > memory:
        raise BadInput(
            f"runs.{prepared.run.key}: evaluate.clients",
            f"{count} clients are evaluated at once, whose models need "
            f"{count * size / 2**30:.0f} GiB of the machine's {memory / 2**30:.0f}; evaluate a sample of up to "
            f"{memory // size // 2} clients, as evaluate: {{clients: 100}}",
        )


def try_model(
    task: Task, normalize: Any, dataset: Dataset, partition: Partition, name: str, executor: Executor
) -> None:
    """Try a user's model on rows of the data, for several clients at once if `executor` is going to run it so.

    The rows are scaled as in training: a model that looks up codes fails on scaled ones.

    Raises:
        BadInput: as `check_model`.
    """
    rows = check_all_codes(task, normalize, dataset, partition, name)
    check_model(task, rows, dataset.outputs, name, isinstance(executor, Batched))
    if dataset.classes and (line := find_softmax(task, rows, name)):
        warnings.warn(line, stacklevel=2)


def check_all_codes(task: Task, normalize: Any, dataset: Dataset, partition: Partition, name: str) -> Tensor:
    """Look at the codes of all rows, where a model has tables of vectors; returns a few rows of training.

    Raises:
        BadInput: as `check_codes`.
    """
    scaling = fit_scaling(dataset, partition, normalize)
    few = torch.from_numpy(scaling.apply_to_client(dataset.x[partition.train[0][:CHECKED_ROWS]], 0))
    check_codes(task, few, lambda: torch.from_numpy(scaling.apply(dataset.x)), name)
    return few
