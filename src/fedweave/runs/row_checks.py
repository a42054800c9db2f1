"""Checks of the clients' rows before training: of the metric, of validation, of splits, and of what is recorded."""

from collections.abc import Mapping

import numpy as np

from fedweave.data import Dataset, Partition
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.graphs.weights import is_recordable
from fedweave.metrics import METRICS, Metric
from fedweave.study.spec import RunSpec
from fedweave.tensors.random_streams import stream

NOISE = 0.01  # of the outputs, relative to the targets


def check_metric(run: RunSpec, dataset: Dataset, partition: Partition) -> None:
    """Refuse a metric that is not a number for any client: no method would have a score, as if all had diverged.

    Each client's rows are scored with outputs near its targets, validation rows too where they choose the round. A
    metric that some clients define passes; results name the other clients.
    """
    metric = METRICS.get(str(run.task.metric))
    if metric is None or dataset.kind == "series" or partition.test_weight is not None:
        return
    for part in ("test",) if run.evaluate.select == "last" else ("test", "val"):
        clients = [rows for rows in _rows_in_dataset(partition, part) if len(rows)]
        if clients and not any(np.isfinite(_score(metric, dataset, rows)) for rows in clients):
            raise BadInput(
                f"tasks.{run.name}.metric",
                f"{metric.name} is not a number for the {part} rows of any client"
                f"{f', as it needs {metric.needs}' if metric.needs else ''}; choose another metric, or give clients "
                "other rows",
            )


def check_hidden(run: RunSpec, method: Method, partition: Partition) -> None:
    """Refuse code from elsewhere where the label of a test row cannot be hidden, as another client trains on it."""
    if method.has_models:
        return
    known, hidden = (
        np.concatenate([np.zeros(0, np.int64), *(rows for part in parts for rows in _rows_in_dataset(partition, part))])
        for parts in (("train", "val"), ("test",))
    )
    if len(shared := np.intersect1d(known, hidden)):
        problem = f"row {shared[0]} is a test row of one client, and a training or validation row of another"
        raise BadInput(f"runs.{run.key}: {run.method}", f"{problem}, so that its target cannot be hidden")


def _rows_in_dataset(partition: Partition, part: str) -> list[np.ndarray]:
    """Rows of `dataset` of each client; in graphs, parts number the nodes of a client."""
    rows: tuple[np.ndarray, ...] = getattr(partition, part)
    if partition.nodes is None:
        return [*rows]
    return [nodes[own] for nodes, own in zip(partition.nodes, rows, strict=True)]


def _score(metric: Metric, dataset: Dataset, rows: np.ndarray) -> float:
    """The metric of outputs that are near the targets of `rows` [M], but differ from row to row."""
    if dataset.targets is None:
        labels = dataset.labels[rows]
        outputs = np.eye(dataset.classes)[labels]
        noise = stream(0, len(rows)).normal(size=outputs.shape)
        return metric.value("classes", labels, outputs + NOISE * noise)
    targets = dataset.targets[rows] if dataset.channels else dataset.targets[rows, 0]
    noise = stream(0, len(rows)).normal(size=targets.shape)
    return metric.value(dataset.targets_are, targets, targets * (1 + NOISE * noise))


def check_validation(run: RunSpec, method: Method, federation: Clients) -> None:
    """Refuse clients without validation rows where the choice of the round or the method needs them."""
    has_val = (federation.val >= 0).any(1)
    empty = (~has_val).nonzero().flatten().tolist()
    if empty and method.needs_validation:
        raise BadInput(
            f"runs.{run.key}",
            f"client {empty[0]} has no validation rows, {method.needs_validation}; "
            "or give every client some in partition.split",
        )
    if not has_val[federation.sample].any() and run.evaluate.select != "last":
        which = "evaluated client" if run.evaluate.clients else "client"
        raise BadInput(
            f"runs.{run.key}: evaluate.select",
            f"{run.evaluate.select} needs validation rows, but no {which} has any in "
            f"the partition {run.task.partition.get('name')!r}; use last, or give val a share in partition.split",
        )


def check_edges(run: RunSpec, layers: int, clients: int) -> None:
    """Refuse to measure the edges of a graph that is too large to be recorded."""
    if run.evaluate.edges and not is_recordable(layers, clients):
        raise BadInput(
            f"runs.{run.key}: evaluate.edges",
            f"{run.evaluate.edges} needs the whole graph of {clients} clients, which "
            "is too large to be recorded; leave it out",
        )


def check_equal_units(run: str, units: Mapping[int, tuple[str, ...]]) -> None:
    """Refuse splits whose clients are of different units, because tests use the clients of all repetitions together.

    Args:
        run: its key.
        units: seed of a split -> the unit of each client.
    """
    (first_seed, first_units), (other_seed, other_units) = units.items()
    if first_units != other_units:
        raise BadInput(
            f"runs.{run}: partition.seeds",
            f"clients of split {other_seed} are of other units "
            f"than those of split {first_seed}; "
            "let the rule give client i the same unit in every split, or give no units",
        )
