"""Toy tasks: small enough for every method, with clients of different sizes to find methods that forget padding."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from fedweave.client.regression import Forecast
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.engine.clients import Clients, pad_rows
from fedweave.engine.subgraphs import stack_clients
from fedweave.models import build
from fedweave.models.base import ClientModel
from fedweave.models.cnn import Block, ConvNet

CLIENTS, CLASSES = 5, 3


class ToyCNN(ConvNet):
    """Two convolutions with batch normalisation (845 parameters on 1x8x8 with 3 classes)."""

    head = ("fc",)
    blocks = (Block(4, 3, padding=1), Block(6, 3, padding=1))
    widths = (20,)

    batch_norm = has_batch_norm = True


def rows_task(model: str = "mlp", dtype: torch.dtype = torch.float64) -> RowClassification:
    """Vectors (`mlp`) or small images (`cnn`)."""
    build_model: dict[str, Callable[[], ClientModel]] = {
        "mlp": lambda: build("mlp", (6,), CLASSES, hidden=5),
        "cnn": lambda: ToyCNN((1, 8, 8), CLASSES),
    }
    return RowClassification(build_model[model], dtype)


def rows_federation(shape: tuple[int, ...] = (6,), dtype: torch.dtype = torch.float64, seed: int = 0) -> Clients:
    """Gaussian blobs, one per class; every client sees the classes in its own proportion and has its own size."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(CLASSES, *shape))
    sizes = [9, 14, 6, 11, 8]
    y = np.concatenate([rng.choice(CLASSES, 2 * m, p=np.roll([0.6, 0.3, 0.1], i)) for i, m in enumerate(sizes)])
    x = centres[y] + rng.normal(size=(len(y), *shape))
    first = np.cumsum([0, *(2 * m for m in sizes)])
    rows = [np.arange(a, b) for a, b in pairwise(first)]
    split = [(r[: len(r) // 2], r[len(r) // 2 : 3 * len(r) // 4], r[3 * len(r) // 4 :]) for r in rows]
    train, val, test = zip(*split, strict=True)
    return Clients(
        shared={"x": torch.from_numpy(x).to(dtype), "y": torch.from_numpy(y)},
        own={},
        train=pad_rows(train),
        val=pad_rows(val),
        test=pad_rows(test),
        ids=torch.arange(CLIENTS),
        relation=ring(CLIENTS),
        group=torch.tensor([0, 1, 2, 0, 1]),
    )


def nodes_task(dtype: torch.dtype = torch.float64) -> Task:
    """A two-layer GCN on subgraphs of seven features."""
    return NodeClassification(lambda: build("gcn", (7,), CLASSES, hidden=4, dropout=0.3), dtype)


def nodes_federation(dtype: torch.dtype = torch.float64, seed: int = 1) -> Clients:
    """Random subgraphs of different sizes whose features follow the label."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(CLASSES, 7))
    xs, ys, edges, splits = [], [], [], []
    for v in [12, 9, 14, 10, 11]:
        y = rng.integers(CLASSES, size=v)
        pairs = (
            np.array([(a, b) for a in range(v) for b in range(a) if rng.random() < (0.5 if y[a] == y[b] else 0.1)])
            .reshape(-1, 2)
            .T
        )
        order = rng.permutation(v)
        xs.append(centres[y] + rng.normal(size=(v, 7)))
        ys.append(y)
        edges.append(np.concatenate([pairs, pairs[::-1]], 1).astype(np.int64))
        splits.append((order[: v // 2], order[v // 2 : 3 * v // 4], order[3 * v // 4 :]))
    own, extents = stack_clients(xs, ys, edges, dtype)
    train, val, test = zip(*splits, strict=True)
    return Clients(
        shared={},
        own=own,
        train=pad_rows(train),
        val=pad_rows(val),
        test=pad_rows(test),
        ids=torch.arange(CLIENTS),
        extents=extents,
        relation=ring(CLIENTS),
        group=None,
    )


def series_task(dtype: torch.dtype = torch.float64) -> Task:
    """Two steps ahead from three, by a small recurrent network."""
    return Forecast(lambda: build("gru", (3, 2), 2, hidden=4), dtype, window=3, horizon=2)


def series_federation(dtype: torch.dtype = torch.float64, seed: int = 2) -> Clients:
    """Noisy sines with a phase per sensor."""
    rng = np.random.default_rng(seed)
    length = 40
    clock = np.arange(length)
    series = np.stack([np.sin(0.4 * clock + i) + 0.05 * rng.normal(size=length) for i in range(CLIENTS)])
    starts = np.arange(length - 4)
    rows = [i * length + starts for i in range(CLIENTS)]
    shared = {"x": torch.from_numpy(series).to(dtype), "time": torch.from_numpy(clock % 12 / 12).to(dtype)}
    return Clients(
        shared=shared,
        own={},
        train=pad_rows([r[: 9 + i] for i, r in enumerate(rows)]),
        val=pad_rows([r[26:30] for r in rows]),
        test=pad_rows([r[30:] for r in rows]),
        ids=torch.arange(CLIENTS),
        relation=ring(CLIENTS),
    )


def ring(n: int) -> torch.Tensor:
    """A ring of clients, both directions."""
    a = torch.arange(n)
    b = (a + 1) % n
    return torch.stack([torch.cat([a, b]), torch.cat([b, a])])


TASKS: dict[str, tuple[Callable[..., Task], Callable[..., Clients]]] = {
    "rows": (rows_task, rows_federation),
    "images": (
        lambda dtype=torch.float64: replace(rows_task("cnn", dtype), augment=1),
        lambda dtype=torch.float64: rows_federation((1, 8, 8), dtype),
    ),
    "nodes": (nodes_task, nodes_federation),
    "series": (series_task, series_federation),
}
