"""What a contestant gets, and what it gives back, as objects of Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedweave.engine.clients import Clients
from fedweave.engine.schedule import evaluation_cohort
from fedweave.runs.build import PreparedRun

Pair = tuple[Any, Any]  # predictions of a client for its validation and its test rows


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
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    val_x: np.ndarray
    val_y: np.ndarray
    test_x: np.ndarray
    evaluated: bool = True


@dataclass(frozen=True, eq=False)
class ContestTask:
    """A federation as a contestant sees it: the same scaled inputs and targets as every method trains on.

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
        settings: values of the settings that the contestant declares.
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
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ContestAnswers:
    """What a contestant gives.

    Attributes:
        predictions: name of the client -> (for its validation rows, for its test rows), or these pairs in the order of
            the clients. Probabilities [m, C] of classes, values [m, K] or [m] of numbers, in the scale of the targets.
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
    targets = federation.shared["y" if task.targets_are == "classes" else "targets"]
    width = int(targets.shape[1]) if targets.ndim > 1 else len(classes) or int(targets.max()) + 1
    relation = None if federation.relation is None else federation.relation.mT.cpu().numpy().copy()
    return ContestTask(
        name=run.task.dataset,
        kind=task.targets_are,
        outputs=width,
        classes=classes,
        metric=task.score_metric.name,
        higher_is_better=task.score_metric.higher_is_better,
        seed=seed,
        rounds=run.train.rounds,
        clients=tuple(_clients(prepared, federation)),
        relation=relation,
        categories=tuple(int(count) for count in prepared.categories),
        settings={setting.name: getattr(prepared.method, setting.name) for setting in prepared.method.settings()},
    )


def _clients(prepared: PreparedRun, federation: Clients) -> list[ContestClient]:
    task, evaluated = prepared.method.task, {*federation.sample.tolist()}
    names = prepared.names or [f"client {i}" for i in range(federation.clients)]
    cohort, clients = evaluation_cohort(federation, 0, 0), []
    for i, name in enumerate(names):
        data = cohort.client_data(i)
        rows = {part: values[values >= 0] for part in ("train", "val", "test") for values in [getattr(data, part)]}
        if i not in evaluated:
            rows["test"] = rows["test"][:0]
        # Indexing copies the rows. They are inputs of evaluation, so that nothing is random in them.
        inputs = {f"{part}_x": np.array(task.batch(data, places).cpu()) for part, places in rows.items()}
        known = {f"{part}_y": np.array(task.targets(data, rows[part]).cpu()) for part in ("train", "val")}
        clients.append(ContestClient(str(name), **inputs, **known, evaluated=i in evaluated))
    return clients
