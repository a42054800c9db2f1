"""The work that is timed: synthetic clients of the sizes of the papers' data, so that nothing has to be downloaded.

Values are random, which does not change the time of a training step. Every workload is one round of FedAvg.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from fedweave.client.regression import Forecast
from fedweave.client.solvers import SGD, Adam, Solver
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.engine.clients import Clients, pad_rows
from fedweave.engine.protocol import Method
from fedweave.engine.schedule import Training
from fedweave.engine.subgraphs import stack_clients
from fedweave.methods import METHODS
from fedweave.models import build


@dataclass(frozen=True)
class Workload:
    """One round of local training.

    Attributes:
        what: title in the table.
        task, federation, training, solver: as the engine takes them.
    """

    what: str
    task: Task
    federation: Clients
    training: Training
    solver: Solver

    def method(self, name: str = "fedavg", **options: Any) -> Method:
        """A method on this work."""
        return METHODS[name](task=self.task, solver=self.solver, training=self.training, **options)


def images(
    model: str,
    clients: int,
    shape: tuple[int, ...] = (3, 32, 32),
    samples: int = 500,
    classes: int = 10,
    **options: Any,
) -> Workload:
    """`clients` times `samples` training images and a fifth of that for evaluation; batches of 64, one epoch, SGD."""
    g = np.random.default_rng(0)
    rows_per_client = samples + samples // 5
    x = torch.from_numpy(g.standard_normal((clients * rows_per_client, *shape), dtype=np.float32))
    y = torch.from_numpy(g.integers(classes, size=len(x)))
    rows = [np.arange(i * rows_per_client, (i + 1) * rows_per_client) for i in range(clients)]
    train, test = [r[:samples] for r in rows], [r[samples:] for r in rows]
    task = RowClassification(partial(build, model, shape, classes, **options))
    return Workload(
        f"{model} {'x'.join(map(str, shape))}, {clients} clients",
        task,
        Clients(shared={"x": x, "y": y}, own={}, **split(train, test), ids=torch.arange(clients)),
        Training(batch_size=64, epochs=1),
        SGD(lr=0.01),
    )


def subgraphs(
    clients: int = 20, nodes: int = 250, features: int = 1433, words: int = 18, classes: int = 7, epochs: int = 3
) -> Workload:
    """Subgraphs like Cora's: bags of `words` words, four neighbours per node; full-batch steps of Adam."""
    g = np.random.default_rng(0)
    xs = np.zeros((clients, nodes, features), dtype=np.float32)
    np.put_along_axis(xs, g.integers(features, size=(clients, nodes, words)), 1.0 / words, axis=2)
    pairs = g.integers(nodes, size=(clients, 2, 2 * nodes))
    own, extents = stack_clients(
        [*xs], [*g.integers(classes, size=(clients, nodes))], [*np.concatenate([pairs, pairs[:, ::-1]], 2)]
    )
    train, test = [np.arange(50)] * clients, [np.arange(50, 150)] * clients
    return Workload(
        f"gcn {nodes} nodes x {features}, {clients} clients",
        NodeClassification(partial(build, "gcn", (features,), classes)),
        Clients(shared={}, own=own, **split(train, test), ids=torch.arange(clients), extents=extents),
        Training(batch_size=0, epochs=epochs),
        Adam(lr=0.01),
    )


def sensors(
    model: str = "gru", clients: int = 20, length: int = 2000, window: int = 12, horizon: int = 12, steps: int = 10
) -> Workload:
    """Sensors like METR-LA's: `steps` steps of 64 windows, Adam."""
    g = np.random.default_rng(0)
    series = torch.from_numpy(g.uniform(size=(clients, length)).astype(np.float32))
    time = torch.from_numpy((np.arange(length) % 288 / 288).astype(np.float32))
    rows = [i * length + np.arange(length - window - horizon) for i in range(clients)]
    parts = split([r[:1500] for r in rows], [r[1600:1900] for r in rows])
    return Workload(
        f"{model} {window} to {horizon}, {clients} clients",
        Forecast(partial(build, model, (window, 2), horizon), window=window, horizon=horizon),
        Clients(shared={"x": series, "time": time}, own={}, **parts, ids=torch.arange(clients)),
        Training(batch_size=64, steps=steps),
        Adam(lr=0.001),
    )


class Parts(TypedDict):
    """The rows of a federation, as `Federation` takes them."""

    train: Tensor
    val: Tensor
    test: Tensor


def split(train: list[np.ndarray], test: list[np.ndarray]) -> Parts:
    """The rows of a federation: the first half of the rows `test` is for validation, the other half for the test."""
    val, rest = [r[: len(r) // 2] for r in test], [r[len(r) // 2 :] for r in test]
    return {"train": pad_rows(train), "val": pad_rows(val), "test": pad_rows(rest)}


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "cnn": partial(images, "aghn_cnn", 20),
    "lenet16": partial(images, "lenet16", 20, classes=100),
    "mlp": partial(images, "mlp", 200, shape=(32,)),
    "tpt": partial(sensors, "tpt_mlp", window=6, horizon=6, steps=50),
    "gcn": subgraphs,
    "gru": sensors,
}
