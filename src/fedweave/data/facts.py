"""What each data set must look like, so that a wrong file is refused before anything is computed with it."""

from typing import NamedTuple

import numpy as np

from fedweave.data.base import Dataset
from fedweave.errors import BadInput


class Facts(NamedTuple):
    """Published sizes; pairs are the directed edges of a graph, or of the client graph of a series."""

    shape: tuple[int, ...]
    classes: int
    pairs: int = 0
    mean: float | None = None  # of all values, where the copies differ


FACTS = {
    "digits": Facts((1797, 1, 8, 8), 10),
    "digits-graph": Facts((1797, 64), 10, 12618),
    "fashion-mnist": Facts((70000, 1, 28, 28), 10),
    "emnist": Facts((280000, 1, 28, 28), 10),
    "cifar10": Facts((60000, 3, 32, 32), 10),
    "cifar100": Facts((60000, 3, 32, 32), 100),
    "tiny-imagenet": Facts((110000, 3, 64, 64), 200),
    "cora": Facts((2708, 1433), 7, 10556),
    "citeseer": Facts((3327, 3703), 6, 9104),
    "pubmed": Facts((19717, 500), 3, 88648),
    "amazon-computer": Facts((13752, 767), 10, 491722),
    "amazon-photo": Facts((7650, 745), 8, 238162),
    "ogbn-arxiv": Facts((169343, 128), 40, 2315598),
    "metr-la": Facts((207, 34272), 0, mean=53.719),
    "pems-bay": Facts((325, 52116), 0),
    "tpt48": Facts((48, 288), 0, 210),
}


def check(dataset: Dataset) -> Dataset:
    """Return `dataset` if it has the published sizes.

    Raises:
        BadInput: naming what differs.
    """
    facts = FACTS.get(dataset.name)
    if facts is None:
        return dataset
    pairs = dataset.edges if dataset.kind == "graph" else dataset.relation
    found = {"shape": dataset.x.shape, "classes": dataset.classes, "pairs": 0 if pairs is None else pairs.shape[1]}
    for key, value in found.items():
        expected = getattr(facts, key)
        if value != expected and not (key == "pairs" and not expected):
            raise BadInput(f"dataset {dataset.name}: {key} is {value}, should be {expected}; download it again")
    if facts.mean is not None and abs(float(np.mean(dataset.x, dtype=np.float64)) - facts.mean) > 1e-3:
        raise BadInput(f"dataset {dataset.name}: mean is {np.mean(dataset.x):.4f}, should be {facts.mean}")
    return dataset
