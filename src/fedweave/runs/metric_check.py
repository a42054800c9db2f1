"""Whether the rows of any client define the metric of a task, checked before training."""

import numpy as np

from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput
from fedweave.metrics import METRICS, Metric
from fedweave.study.spec import RunSpec
from fedweave.tensors.random_streams import stream

NOISE = 0.01  # of the outputs, relative to the targets


def check_metric(run: RunSpec, dataset: Dataset, partition: Partition) -> None:
    """Refuse a metric that is not a number for any client: no method would have a score, as if all had diverged.

    Each client's rows are scored with outputs near its targets, validation rows too where they choose the round. A
    metric that some clients define passes; results name the other clients.

    Raises:
        BadInput: naming the metric, the rows, and what the metric needs.
    """
    metric = METRICS.get(str(run.task.metric))
    if metric is None or dataset.kind == "series" or partition.test_weight is not None:
        return
    for part in ("test",) if run.evaluate.select == "last" else ("test", "val"):
        clients = [rows for rows in _rows_in_dataset(partition, part) if len(rows)]
        if clients and not any(np.isfinite(_score(metric, dataset, rows)) for rows in clients):
            raise BadInput(
                f"tasks.{run.name}.metric: {metric.name} is not a number for the {part} rows of any client"
                f"{f', as it needs {metric.needs}' if metric.needs else ''}; choose another metric, or give clients "
                "other rows"
            )


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
