"""Facts about each data set, so that a wrong file is refused before any computation."""

from typing import NamedTuple

import numpy as np

from fedweave.data.base import Dataset
from fedweave.errors import BadInput, format_count


class PublishedSizes(NamedTuple):
    """Published sizes; `pairs` counts the directed edges of a graph, or of the client graph of a series."""

    shape: tuple[int, ...]
    classes: int
    pairs: int = 0
    mean: float | None = None  # of all values, where the copies differ


AGAIN = "download it again"
FACTS = {
    "digits": PublishedSizes((1797, 1, 8, 8), 10),
    "digits-sites": PublishedSizes((896, 1, 8, 8), 5),
    "digits-graph": PublishedSizes((1797, 64), 10, 12618),
    "shoulder": PublishedSizes((4677, 6, 1, 50), 7),
    "us-income": PublishedSizes((48, 81), 0, 214),
    "names": PublishedSizes((6068, 105, 1, 1), 2),
    "names-pieces": PublishedSizes((6068, 6, 1, 1), 2),
    "fashion-mnist": PublishedSizes((70000, 1, 28, 28), 10),
    "emnist": PublishedSizes((280000, 1, 28, 28), 10),
    "cifar10": PublishedSizes((60000, 3, 32, 32), 10),
    "cifar100": PublishedSizes((60000, 3, 32, 32), 100),
    "tiny-imagenet": PublishedSizes((110000, 3, 64, 64), 200),
    "cora": PublishedSizes((2708, 1433), 7, 10556),
    "citeseer": PublishedSizes((3327, 3703), 6, 9104),
    "pubmed": PublishedSizes((19717, 500), 3, 88648),
    "amazon-computer": PublishedSizes((13752, 767), 10, 491722),
    "amazon-photo": PublishedSizes((7650, 745), 8, 238162),
    "ogbn-arxiv": PublishedSizes((169343, 128), 40, 2315598),
    "metr-la": PublishedSizes((207, 34272), 0, mean=53.719),
    "pems-bay": PublishedSizes((325, 52116), 0),
    "tpt48": PublishedSizes((48, 288), 0, 210),
    "tpt48-2008": PublishedSizes((48, 144), 0, 210),
}


def check_content(dataset: Dataset) -> Dataset:
    """Return `dataset` if its numbers are finite and it has the published sizes."""
    check_finite(dataset.x, f"dataset {dataset.name}", AGAIN)
    facts = FACTS.get(dataset.name)
    if facts is None:
        return dataset
    pairs = dataset.edges if dataset.kind == "graph" else dataset.relation
    properties = {"shape": dataset.x.shape, "classes": dataset.classes, "pairs": 0 if pairs is None else pairs.shape[1]}
    for key, value in properties.items():
        expected = getattr(facts, key)
        if value != expected and not (key == "pairs" and not expected):
            raise BadInput(f"dataset {dataset.name}: {key} is {value}, should be {expected}; {AGAIN}")
    if facts.mean is not None and abs(float(np.mean(dataset.x, dtype=np.float64)) - facts.mean) > 1e-3:
        raise BadInput(f"dataset {dataset.name}: mean is {np.mean(dataset.x):.4f}, should be {facts.mean}; {AGAIN}")
    return dataset


def check_finite(x: np.ndarray, what: str, way: str) -> None:
    """Refuse features with a value that is not finite; `what` they are begins the message, the `way` out ends it."""
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(np.sum(x, dtype=np.float64)):
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            rest = f", and {format_count(len(bad) - 1, 'more value')}" if len(bad) > 1 else ""
            verb = "are" if len(bad) > 2 else "is"
            raise BadInput(f"{what}: {x[tuple(bad[0])]} at {bad[0].tolist()}{rest} {verb} not finite; {way}")
