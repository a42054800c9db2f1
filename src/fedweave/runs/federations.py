"""From a data set and its partition to the federation that a run trains on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave import data
from fedweave.data import Dataset, Partition
from fedweave.engine import subgraphs
from fedweave.engine.adapter_ranks import RANKS
from fedweave.engine.clients import Clients, balanced_weights, check_clients, pad_rows
from fedweave.study.config import construct
from fedweave.study.schema import TaskSpec
from fedweave.study.spec import RunSpec
from fedweave.threats.attacks import Attack, AttackSpec, choose_attackers, flip_labels


def build_federation(
    dataset: Dataset, partition: Partition, normalize: Any, dtype: torch.dtype = torch.float32
) -> Clients:
    """All clients' data as tensors on the CPU.

    Raises:
        BadInput: for a client without training rows, a partition of other data, features that are not finite.
    """
    check_clients(partition.train, f"partition of {dataset.name}")
    data.check_fits(dataset, partition)
    data.check_finite(dataset.x, f"dataset {dataset.name}", "run the download stage again")
    x = np.array(data.normalise(dataset, partition, normalize))  # a copy: the file is mapped read-only
    data.check_finite(
        x, f"dataset {dataset.name}: normalize: {normalize!r}", "choose numbers that its values can be scaled by"
    )
    rows: dict[str, Any] = {name: pad_rows(getattr(partition, name)) for name in ("train", "val", "test")}
    shared, own, extents = _arrays(dataset, partition, x, dtype)
    if dataset.targets is not None:
        offset, unit = data.fit_units(dataset, partition, normalize)
        shared["targets"], numbers = centre_targets(dataset.targets, partition, offset, unit, dtype)
        own |= numbers
    if partition.test_weight is not None:
        own["test_weight"] = torch.from_numpy(np.array(partition.test_weight)).to(dtype)
    optional = {"relation": partition.relation, "group": partition.group}
    structure: dict[str, Any] = {k: torch.from_numpy(np.array(v)) for k, v in optional.items() if v is not None}
    return Clients(shared=shared, own=own, **rows, ids=torch.arange(partition.clients), extents=extents, **structure)


def centre_targets(
    targets: np.ndarray, partition: Partition, offset: np.ndarray, unit: np.ndarray, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """(targets [M, K], "offset" and "unit" [N, K] of every client) as tensors.

    Targets in float64, which would lose their differences in float32, come minus their client's offset; this stands in
    "base", float64, and "offset" is 0.
    """
    if targets.dtype != np.float64:
        numbers = {name: torch.from_numpy(part).to(dtype) for name, part in (("offset", offset), ("unit", unit))}
        return torch.from_numpy(np.array(targets)).to(dtype), numbers
    centred = targets - offset[0]
    for i, parts in enumerate(zip(partition.train, partition.val, partition.test, strict=True)):
        rows = np.concatenate(parts)
        centred[rows] = targets[rows] - offset[i]
    base = torch.from_numpy(np.array(offset))
    zeros = torch.zeros(offset.shape, dtype=dtype)
    return torch.from_numpy(centred).to(dtype), {
        "offset": zeros,
        "unit": torch.from_numpy(unit).to(dtype),
        "base": base,
    }


def add_attackers(federation: Clients, task: TaskSpec) -> Clients:
    """`federation` with the attackers that the task declares; the partition's seed decides which clients attack."""
    if task.attack is None:
        return federation
    spec = construct(AttackSpec, task.attack, "attack")
    attack = Attack(
        spec.kind, spec.scale or 0.0, choose_attackers(federation.clients, spec.share, task.partition["seed"])
    )
    return replace(
        _flip_labels(federation, attack.attackers) if spec.kind == "label_flip" else federation, attack=attack
    )


def _flip_labels(federation: Clients, attackers: Tensor) -> Clients:
    """The training labels of `attackers` mirrored; their validation and test labels stay unchanged."""
    rows, shared, own = federation.train[attackers], federation.shared, federation.own
    labels = {**shared, **own}["y"]
    classes = int(labels.max()) + 1  # of all clients, because the subgraph of one may not have the last class
    if "y" in shared:
        return replace(federation, shared={**shared, "y": flip_labels(labels, rows.flatten(), classes)})
    y = labels.clone()
    for attacker, attacker_rows in zip(attackers.nonzero()[:, 0].tolist(), rows, strict=True):
        y[attacker] = flip_labels(labels[attacker], attacker_rows, classes)
    return replace(federation, own={**own, "y": y})


def add_balanced_weights(federation: Clients) -> Clients:
    """`federation` with a weight of every class for every client's losses, [N, C].

    It is rows / (classes · rows of the class), of the client's training rows and of the classes that these have, as in
    scikit-learn; so the mean weight of a client's training rows is 1.
    """
    y, shared = {**federation.shared, **federation.own}["y"], "y" in federation.shared
    classes, weights = int(y.max()) + 1, []
    for i, rows in enumerate(federation.train):
        weights.append(balanced_weights((y if shared else y[i])[rows[rows >= 0]], classes))
    stacked = torch.stack(weights).to(federation.sizes.dtype)
    return replace(federation, own={**federation.own, "class_weight": stacked})


def add_adapter_ranks(federation: Clients, ranks: Sequence[int]) -> Clients:
    """`federation` with the rank of every client's adapters, `ranks` again from the first after the last, int64 [N]."""
    by_client = torch.tensor(ranks)[torch.arange(federation.clients) % len(ranks)]
    return replace(federation, own={**federation.own, RANKS: by_client})


def cohorts(run: RunSpec, federation: Clients) -> dict[str, list[int]]:
    """Groups of evaluated clients that are reported separately, such as newcomers and attackers: name -> positions."""
    newcomers = range(federation.clients - run.train.newcomers, federation.clients)
    members_of = {"newcomers": [*newcomers], "from the start": [*range(newcomers.start)]} if newcomers else {}
    if federation.attack is not None:
        is_attacker = federation.attack.attackers.tolist()
        members_of |= {
            name: [i for i, attacker in enumerate(is_attacker) if attacker == attacks]
            for name, attacks in (("honest", False), ("lying", True))
        }
    sample = {*federation.sample.tolist()}
    evaluated = {name: [i for i in members if i in sample] for name, members in members_of.items()}
    return {name: members for name, members in evaluated.items() if members}


def _arrays(dataset: Dataset, partition: Partition, x: np.ndarray, dtype: torch.dtype) -> tuple[dict, dict, dict]:
    """(shared, own, extents) of a federation, by kind of data set."""
    tensor = torch.from_numpy(x).to(dtype)
    if dataset.targets is not None:
        return {"x": tensor}, {}, {}
    if dataset.kind == "images":
        return {"x": tensor, "y": torch.from_numpy(np.array(dataset.y))}, {}, {}
    if dataset.kind == "series":
        return {"x": tensor, "time": torch.from_numpy(np.array(dataset.time)).to(dtype)}, {}, {}
    graphs = partition.subgraphs
    own, extents = subgraphs.stack_clients(
        [x[v] for v, _ in graphs], [dataset.labels[v] for v, _ in graphs], [e for _, e in graphs], dtype
    )
    return {}, own, extents
