"""Small trained runs in the current folder: data/ and results/, as the stages write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import data
from fedweave.data import Dataset, Partition
from fedweave.runs import archive, repetition
from fedweave.study import spec

MODELS = {
    "images": {"name": "mlp", "hidden": 6},
    "graph": {"name": "gcn", "hidden": 6},
    "series": {"name": "gru", "hidden": 4},
}


def dataset(kind: str) -> Dataset:
    """Generated data of three clients."""
    rng = np.random.default_rng(0)
    if kind == "images":
        return Dataset("blobs", "images", rng.uniform(size=(36, 1, 4, 4)).astype(np.float32), np.arange(36) % 3, 3)
    if kind == "graph":
        ring = np.stack([np.arange(36), (np.arange(36) + 1) % 36])
        x = rng.normal(size=(36, 5)).astype(np.float32)
        return Dataset("blobs", "graph", x, np.arange(36) % 3, 3, edges=np.concatenate([ring, ring[::-1]], axis=1))
    return Dataset(
        "blobs",
        "series",
        rng.normal(size=(3, 60)).astype(np.float32),
        None,
        0,
        time=np.linspace(0, 1, 60, dtype=np.float32),
    )


def partition(kind: str) -> Partition:
    """Rows of the three clients, a third each for training, validation and test."""
    if kind == "series":
        rows = [tuple(60 * i + np.arange(start, start + 8) for i in range(3)) for start in (0, 16, 32)]
        return Partition(*rows, layout={"window": 4, "horizon": 3, "stride": 1})
    if kind == "images":
        return Partition(*[tuple(12 * i + np.arange(start, start + 4) for i in range(3)) for start in (0, 4, 8)])
    line = np.stack([np.arange(11), np.arange(1, 12)])
    edges = tuple(np.concatenate([line[:, i:], line[::-1, i:]], axis=1) for i in range(3))
    nodes = tuple(np.arange(12 * i, 12 * i + 12) for i in range(3))
    return Partition(
        *[tuple(np.arange(start, start + 4) for _ in range(3)) for start in (0, 4, 8)], nodes=nodes, edges=edges
    )


def train(
    kind: str, methods: Mapping[str, dict], seeds: Sequence[int] = (0, 1), normalize: str = "none", **evaluate: Any
) -> Path:
    """Train `methods` for a few rounds and write results/toy. Returns that folder."""
    data.save_dataset(Path("data/features/blobs"), dataset(kind))
    data.save_partition(Path("data/partitions/blobs/partition.npz"), partition(kind))
    made = study(kind, methods, seeds, normalize, **evaluate)
    for key in made.runs:
        prepared = repetition.prepare(made.run(key), dataset(kind), partition(kind))
        archive.write(
            Path("results/toy/runs") / key,
            prepared,
            {seed: repetition.run_repetition(prepared, seed) for seed in seeds},
        )
    return Path("results/toy")


def study(
    kind: str, methods: Mapping[str, dict], seeds: Sequence[int] = (0, 1), normalize: str = "none", **evaluate: Any
) -> spec.StudySpec:
    """The study toy: three rounds of `methods` on the three clients."""
    task: dict[str, Any] = {
        "dataset": "blobs",
        "setting": "made-up",
        "normalize": normalize,
        "partition": {"name": "natural", "clients": 3, "seed": 0},
        "model": MODELS[kind],
        "train": {"rounds": 3, "lr": 0.1, "batch_size": 4, "executor": "loop", "device": "cpu"},
        "evaluate": evaluate,
    }
    block = {
        "study": "toy",
        "seeds": [*seeds],
        "tasks": {"blobs": task},
        "methods": dict(methods),
        "runs": {f"blobs-{method}": {"task": "blobs", "method": method} for method in methods},
    }
    return spec.parse(block)
