"""What a contestant gets, and what it gives back, as objects of Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.client.data import ClientData
from fedweave.client.task import Task
from fedweave.data.partitions.splits import PARTS
from fedweave.engine.clients import Clients
from fedweave.engine.schedule import evaluation_cohort
from fedweave.runs.build import PreparedRun

if TYPE_CHECKING:
    import pandas as pd

# Predictions of a client for its validation and its test rows; of forecasts the latter may be a function of one window.
Pair = tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class ContestGraph:
    """The graph of one client, whose nodes are its rows.

    Attributes:
        x: features [V, F] of all nodes.
        edges: [2, E] pairs of nodes, both directions, without self loops.
        train, val, test: nodes [n] of the rows of each part, in their order.
    """

    x: np.ndarray
    edges: np.ndarray
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, eq=False)
class ContestClient:
    """The rows of one client. There are no targets of test rows, here or anywhere else in a `ContestTask`.

    Attributes:
        name: of the client.
        train_x, train_y: inputs [n, ...] and targets of the training rows: classes [n] from 0, or numbers [n, K].
        val_x, val_y: of the validation rows, of which there may be none.
        test_x: inputs [m, ...] of the test rows.
        evaluated: whether predictions of this client are wanted. A task may evaluate a sample of its clients; the
            others have no test rows here.
        graph: of its nodes; None where rows are no nodes.
        train_raw, val_raw, test_raw: tables of the same rows before their preparation, with the columns of the task;
            None where rows came neither from a table nor from texts.
        unit, offset: [K] of numbers to predict, which are y * unit + offset in their own unit.
        train_label: those of the training rows in their own unit [n, K], to the last digit; None for classes.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    val_x: np.ndarray
    val_y: np.ndarray
    test_x: np.ndarray
    evaluated: bool = True
    graph: ContestGraph | None = None
    train_raw: "pd.DataFrame | None" = None
    val_raw: "pd.DataFrame | None" = None
    test_raw: "pd.DataFrame | None" = None
    unit: Any = 1.0
    offset: Any = 0.0
    train_label: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class ContestTask:
    """A federation as a contestant sees it: the same scaled inputs and targets as every method trains on, and raw rows.

    Attributes:
        name: of the data.
        kind: "classes" or "numbers".
        outputs: classes C, or numbers K of a target.
        classes: their names, or none.
        metric, higher_is_better: of the scores.
        seed: of this repetition.
        rounds: of training that the other methods have.
        clients: in a fixed order.
        relation: [R, 2] pairs of clients that a given graph joins, or None.
        categories: codes of each input column, 0 for a number; empty if all are numbers.
        columns: of the raw rows, each {"name", "kind"}: "number", "text", or "category" with the "values" of training.
        settings: values of the settings that the contestant declares.
        forecasts: whether rows are windows of series. Then `test_x` has no rows here: test windows are handed out one
            origin at a time, as the inputs of later ones contain the targets of earlier ones.
    """

    name: str
    kind: str
    outputs: int
    classes: tuple[str, ...]
    metric: str
    higher_is_better: bool
    seed: int
    rounds: int
    clients: tuple[ContestClient, ...]
    relation: np.ndarray | None = None
    categories: tuple[int, ...] = ()
    columns: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    forecasts: bool = False

    @property
    def origins(self) -> int:
        """The largest number of test windows of a client, which are handed out one at a time; 0 for other tasks."""
        return max(len(client.test_x) for client in self.clients) if self.forecasts else 0

    def without_origins(self) -> "ContestTask":
        """This task as code from elsewhere gets it first: without the test windows of forecasts."""
        if not self.forecasts:
            return self
        return replace(self, clients=tuple(replace(one, test_x=one.test_x[:0].copy()) for one in self.clients))


@dataclass(frozen=True, eq=False)
class ContestAnswers:
    """What a contestant gives.

    Attributes:
        predictions: name of the client -> (for its validation rows, for its test rows), or these pairs in the order of
            the clients. Probabilities [m, C] of classes, values [m, K] or [m] of numbers, in the scale of the targets.
            Of forecasts, a function for the test windows: (window [1, ...]) -> [1, K], called in the order of time.
        bytes_up, bytes_down: what all clients have sent and received, if the contestant counts it.
        graph: [N, N] who learned from whom, row = learner, or None.
        curves: (round, name, value) of whatever the contestant wants to show; nothing is chosen by them.
    """

    predictions: Mapping[str, Pair] | Sequence[Pair]
    bytes_up: int = 0
    bytes_down: int = 0
    graph: Any = None
    curves: Sequence[tuple[int, str, float]] = ()


def hand_out(prepared: PreparedRun, seed: int) -> ContestTask:
    """The task of a run for the repetition `seed`, without test targets.

    Arrays are copies, as a view would lead to all other rows.
    """
    classes = prepared.classes
    task, federation, run = prepared.method.task, prepared.federation, prepared.run
    clients = tuple(_clients(prepared, federation))
    is_class = task.targets_are == "classes"
    labels = {**federation.shared, **federation.own}["y"] if is_class else None
    width = clients[0].train_y.shape[1] if labels is None else len(classes) or int(labels.max()) + 1
    relation = None if federation.relation is None else federation.relation.mT.cpu().numpy().copy()
    return ContestTask(
        name=run.task.dataset,
        kind="classes" if is_class else "numbers",
        outputs=width,
        classes=classes,
        metric=task.score_metric.name,
        higher_is_better=task.score_metric.higher_is_better,
        seed=seed,
        rounds=run.train.rounds,
        clients=clients,
        relation=relation,
        categories=tuple(int(count) for count in prepared.categories),
        columns=prepared.raw.columns if prepared.raw else (),
        settings={setting.name: getattr(prepared.method, setting.name) for setting in prepared.method.settings()},
        forecasts=task.targets_are == "forecasts",
    )


def _clients(prepared: PreparedRun, federation: Clients) -> list[ContestClient]:
    task, evaluated = prepared.method.task, {*federation.sample.tolist()}
    cohort, clients = evaluation_cohort(federation, 0, 0), []
    for i, name in enumerate(prepared.names):
        data = cohort.client_data(i)
        rows = {part: values[values >= 0] for part in PARTS for values in [getattr(data, part)]}
        if i not in evaluated:
            rows["test"] = rows["test"][:0]
        inputs = {f"{part}_x": _inputs(task, data, places) for part, places in rows.items()}
        known = {f"{part}_y": np.array(task.targets(data, rows[part]).cpu()) for part in ("train", "val")}
        graph = _graph(data, rows) if "edges" in data.arrays else None
        raw: dict[str, Any] = {}
        if prepared.raw:
            raw = {f"{part}_raw": prepared.raw.take(i, np.array(places.cpu())) for part, places in rows.items()}
        units = _units(data, rows["train"]) if "targets" in data.arrays else {}
        more: dict[str, Any] = {**inputs, **known, **raw, **units}
        clients.append(ContestClient(str(name), **more, evaluated=i in evaluated, graph=graph))
    return clients


def _units(data: ClientData, rows: Any) -> dict[str, np.ndarray]:
    """The unit of a client's numbers to predict, and those of its training rows in it."""
    unit, offset, label = (data.arrays[name].cpu().double() for name in ("unit", "offset", "targets"))
    base = data.arrays["base"].cpu() if "base" in data.arrays else 0.0  # which the targets and the offset are without
    parts = {"unit": unit, "offset": offset + base, "train_label": label[rows.cpu()] + base}
    return {name: part.numpy() for name, part in parts.items()}


def _inputs(task: Task, data: ClientData, rows: Any) -> np.ndarray:
    """A copy of inputs of evaluation, in which nothing is random."""
    inputs = data.arrays["x"][rows] if "edges" in data.arrays else task.batch(data, rows)
    return np.array(inputs.cpu())


def _graph(data: ClientData, rows: Mapping[str, Any]) -> ContestGraph:
    """The graph of a client. Edges have been given self loops, which are left out with their padding."""
    ends = data.arrays["edges"][:2].cpu()
    places = {part: np.array(values.cpu()) for part, values in rows.items()}
    nodes = data.arrays["x"][data.arrays["nodes"]]
    return ContestGraph(np.array(nodes.cpu()), np.array(ends[:, ends[0] != ends[1]]), **places)
