"""Impossible partitions, normalisations and arrays are refused in one line. It names the option or the client, the
value and the way out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedweave import data
from fedweave.data.base import Dataset, Partition
from fedweave.errors import BadInput
from fedweave.runs import federations

SETS = {name: data.load(name, "unused") for name in ("digits", "digits-graph")}
SERIES = Dataset(
    "sines", "series", np.sin(np.arange(120, dtype=np.float32)).reshape(3, 40), None, 0, time=np.zeros(40, np.float32)
)
SETS["sines"] = SERIES


def assert_refused(act: Callable[[], Any], *words: str) -> None:
    """`act` raises BadInput whose line contains all `words`."""
    with pytest.raises(BadInput) as caught:
        act()
    assert [word for word in words if word not in str(caught.value)] == []


# data set, rule, options -> words.
PARTITIONS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("digits", "dirichlet", {"beta": 0}, ["partition.beta", "0", "above 0"]),
    ("digits", "dirichlet", {"beta": "x"}, ["partition.beta", "'x'", "number"]),
    ("digits", "dirichlet", {}, ["partition.beta", "missing"]),
    ("digits", "dirichlet", {"beta": 0.3, "minimum": 10**6}, ["partition.minimum", "1000000"]),
    ("digits", "iid", {"clients": 5000}, ["partition.clients", "5000", "1797"]),
    ("digits", "shards", {"classes": 11}, ["partition.classes", "11"]),
    ("digits", "shards", {"classes": 3, "clients": 3}, ["partition.clients", "3 x 3"]),
    ("digits", "listed", {"classes": [[0]]}, ["partition.classes", "1 lists"]),
    ("digits", "listed", {"classes": [[0, 77]] * 5}, ["partition.classes", "77"]),
    ("digits", "listed", {"classes": 3}, ["partition.classes", "3"]),
    ("digits", "superclass", {}, ["superclass", "cifar100"]),
    ("digits", "iid", {"split": {"train": 0.5, "val": 0.1, "test": 0.1}}, ["partition.split", "add up to 0.7"]),
    ("digits", "iid", {"split": {"train": 0.7, "vall": 0.1, "test": 0.2}}, ["partition.split", "did you mean 'val'"]),
    ("digits", "iid", {"split": {"train": -0.1, "val": 0.1, "test": 1.0}}, ["partition.split.train", "-0.1"]),
    ("digits", "iid", {"split": 0.8}, ["partition.split", "0.8", "must map"]),
    ("digits", "iid", {"val": 0.9}, ["partition.val", "0.9"]),
    ("digits", "iid", {"test": "weighted"}, ["partition.test", "no official test set"]),
    ("digits", "iid", {"pool": "some"}, ["partition.pool", "'some'"]),
    ("digits", "iid", {"stratify": "yes"}, ["partition.stratify", "'yes'"]),
    ("digits", "metis", {}, ["metis does not fit digits"]),
    ("digits", "natural", {}, ["natural does not fit digits"]),
    ("digits-graph", "iid", {}, ["iid does not fit digits-graph"]),
    ("digits-graph", "metis_overlap", {"copies": 0}, ["partition.copies", "0"]),
    ("digits-graph", "metis_overlap", {"copies": 3}, ["partition.clients", "5", "not a multiple of copies", "3"]),
    ("digits-graph", "metis_overlap", {"share": 2.0}, ["partition.share", "2.0"]),
    ("digits-graph", "metis", {"clients": 1500}, ["partition.clients", "use fewer clients"]),
    ("sines", "natural", {"clients": 3, "window": 60, "horizon": 2}, ["partition.window", "60"]),
    ("sines", "natural", {"clients": 3, "window": 39, "horizon": 1}, ["sines", "too few"]),
    ("sines", "natural", {"clients": 3, "window": 4}, ["partition.horizon", "missing"]),
    ("sines", "natural", {"clients": 3, "window": 4, "horizon": 2, "stride": 0}, ["partition.stride", "0"]),
    ("sines", "natural", {"clients": 4, "window": 4, "horizon": 2}, ["partition.clients", "4", "3 natural"]),
]


@pytest.mark.parametrize(
    ("name", "rule", "options", "words"), PARTITIONS, ids=[f"{r}-{o}"[:60] for _, r, o, _ in PARTITIONS]
)
def test_impossible_partitions_are_refused(name: str, rule: str, options: dict[str, Any], words: list[str]) -> None:
    """The stage `partition` refuses them, before any training."""
    assert_refused(lambda: data.partition(SETS[name], rule, **{"clients": 5, "seed": 0, **options}), *words)


NORMALISATIONS: list[tuple[str, Any, list[str]]] = [
    ("digits", "minmaxx", ["normalize", "did you mean 'minmax'"]),
    ("digits", "rows", ["normalize", "rows does not fit digits"]),
    ("digits", {"name": "standard", "mean": [float("nan")], "std": [1.0]}, ["normalize.mean", "nan", "finite"]),
    ("digits", {"name": "standard", "mean": [0.0], "std": [0.0]}, ["normalize", "std above 0"]),
    ("digits", {"name": "standard", "mean": "a", "std": "b"}, ["normalize.mean", "'a'"]),
    ("digits", 3, ["normalize", "3"]),
    ("sines", {"name": "minmax", "low": 2, "high": 1}, ["normalize", "low 2", "high 1"]),
    ("sines", {"name": "minmax", "low": -float("inf"), "high": 1}, ["normalize.low", "-inf"]),
]


@pytest.mark.parametrize(("name", "way", "words"), NORMALISATIONS, ids=[str(w)[:50] for _, w, _ in NORMALISATIONS])
def test_impossible_normalisations_are_refused(name: str, way: Any, words: list[str]) -> None:
    """Unknown names, wrong kinds, and numbers that features cannot be divided by."""
    options = {"window": 4, "horizon": 2} if name == "sines" else {}
    partition = data.partition(SETS[name], "natural" if options else "iid", 3, 0, **options)
    assert_refused(lambda: federations.build_federation(SETS[name], partition, way), *words)


def test_series_without_a_spread_are_refused() -> None:
    """Equal training steps have a standard deviation of 0. The line has numbers without NumPy's type."""
    flat = replace(SETS["sines"], x=np.full_like(SETS["sines"].x, 0.5))
    partition = data.partition(flat, "natural", 3, 0, window=4, horizon=2)
    assert_refused(
        lambda: data.fit_scaling(flat, partition, "standard"),
        "mean [0.5] and std [0.0] must be lists of length 1",
        "std above 0",
    )


@pytest.mark.parametrize(
    "units",
    [
        {"offset": [0, 0]},
        {},
        {"offset": [0, 0, 0], "unit": [1, 1, 1]},
        {"offset": "a", "unit": "b"},
        {"offset": 0, "unit": 0},
        {"offset": 0, "unit": [1, -1]},
        {"offset": float("nan"), "unit": 1},
    ],
)
def test_impossible_units_of_targets_are_refused(units: dict[str, Any]) -> None:
    """Missing numbers, too many numbers, values that are not numbers, and a unit that targets cannot be divided by."""
    values = Dataset(
        "values", "images", np.zeros((12, 1, 1, 1), np.float32), None, 0, targets=np.eye(12, 2, dtype="f4")
    )
    partition = Partition((np.arange(8),), (np.arange(8, 10),), (np.arange(10, 12),))
    given = {"name": "none", "targets": {"offset": [0, 5], "unit": 2}}
    assert [part.tolist() for part in data.fit_units(values, partition, given)] == [[[0, 5]], [[2, 2]]]
    assert_refused(
        lambda: data.fit_units(values, partition, {**given, "targets": units}),
        "normalize.targets: {",
        "must have an offset and a unit above 0 for each of the 2 targets",
    )


def with_wrong_number(name: str, value: float) -> Dataset:
    """A data set with one wrong number."""
    x = np.array(SETS[name].x, dtype=np.float32)
    x.reshape(-1)[77] = value
    return replace(SETS[name], x=x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", SETS)
def test_features_that_are_not_finite_are_refused(name: str, value: float) -> None:
    """The line names the first one and its position."""
    options = {"window": 4, "horizon": 2} if name == "sines" else {}
    rule = {"sines": "natural", "digits-graph": "metis"}.get(name, "iid")
    partition = data.partition(SETS[name], rule, 3, 0, **options)
    assert_refused(
        lambda: federations.build_federation(with_wrong_number(name, value), partition, "none"),
        f"dataset {name}",
        str(value),
        "not finite",
    )


def rows(*clients: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(c, dtype=np.int64) for c in clients)


STALE: list[tuple[str, Callable[[], Partition], list[str]]] = [
    ("digits", lambda: Partition(rows([0], []), rows([1], [4]), rows([2], [5])), ["client 1", "no training row"]),
    ("digits", lambda: Partition(rows([0, 0]), rows([1]), rows([2])), ["client 0", "row 0 twice"]),
    ("digits", lambda: Partition(rows([0, 3]), rows([1]), rows([3])), ["client 0", "row 3 twice"]),
    ("digits", lambda: Partition(rows([0]), rows([1]), rows([1797])), ["client 0", "row 1797", "0 to 1796"]),
    ("digits", lambda: data.partition(SETS["digits-graph"], "metis", 3, 0), ["partition", "must hold rows"]),
    ("digits-graph", lambda: data.partition(SETS["digits"], "iid", 3, 0), ["partition", "must hold subgraphs"]),
    ("sines", lambda: data.partition(SETS["digits"], "iid", 3, 0), ["partition", "must hold windows"]),
    (
        "sines",
        lambda: Partition(rows([36]), rows([1]), rows([2]), layout={"window": 4, "horizon": 2, "stride": 1}),
        ["step 36", "40"],
    ),
    ("sines", lambda: Partition(rows([0]), rows([1]), rows([2]), layout={"window": 4}), ["layout", "window"]),
]


@pytest.mark.parametrize(("name", "make", "words"), STALE, ids=range(len(STALE)))
def test_partitions_that_do_not_fit_the_data_are_refused(
    name: str, make: Callable[[], Partition], words: list[str]
) -> None:
    """Empty clients, repeated rows, rows in both training and test, missing rows, and clients of another kind."""
    assert_refused(lambda: federations.build_federation(SETS[name], make(), "none"), *words)


def test_missing_nodes_are_refused() -> None:
    """This includes nodes of a client without rows."""
    edges = (np.zeros((2, 0), dtype=np.int64),)
    for train in ([], [0]):
        partition = Partition(rows(train), rows([]), rows([]), nodes=rows([1797]), edges=edges)
        assert_refused(
            lambda partition=partition: data.check_fits(SETS["digits-graph"], partition), "client 0", "row 1797"
        )


X, Y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
IMAGES = X[..., None, None]
SHAPES: list[tuple[Callable[[], Dataset], str]] = [
    (lambda: Dataset("a", "images", IMAGES, Y + 2, 2), "labels y must be in 0"),
    (lambda: Dataset("a", "images", IMAGES, Y, 2.0), "classes is 2.0; give a whole number"),  # type: ignore[arg-type]
    (lambda: Dataset("a", "images", IMAGES, Y - 1, 2), "labels y must be in 0"),
    (lambda: Dataset("a", "images", X[:0], Y[:0], 2), "give at least one row"),
    (lambda: Dataset("a", "images", X[0], Y[:3], 2), "give at least one row"),
    (lambda: Dataset("a", "tabular", X, Y, 2), "'tabular' is not one of images, graph, series; tables go as 'images'"),
    (lambda: Dataset("a", "images", IMAGES, Y * 1.0, 2), "not float64; use y.astype('int64')"),
    (lambda: Dataset("a", "images", IMAGES, Y + 0.5, 2), "not float64; numbers to predict go into targets=y[:, None]"),
    (lambda: Dataset("a", "images", IMAGES, Y.astype(str), 2), "number the classes from 0"),
    (lambda: Dataset("a", "graph", X, Y, 2, edges=np.array([[0.0], [1.0]])), "edges must be"),
    (lambda: Dataset("a", "images", IMAGES, Y, 2, owner=Y[:2]), "owner must have shape"),
    (lambda: Dataset("a", "images", IMAGES, None, 2), "labels y go with"),
    (lambda: Dataset("a", "images", X, Y, 2), "must be [M, C, H, W], not [4, 3]"),
    (lambda: Dataset("a", "images", IMAGES, Y.astype(np.float64), 2), "whole numbers, not float64"),
]


@pytest.mark.parametrize(("make", "words"), SHAPES, ids=range(len(SHAPES)))
def test_arrays_of_wrong_shapes_are_refused(make: Callable[[], Dataset], words: str) -> None:
    """Every data set is checked when it is made."""
    assert_refused(make, "dataset a", words)


def test_numbers_in_a_partition_by_classes_name_the_way_out() -> None:
    prices = Dataset(
        "prices", "images", np.zeros((6, 2, 1, 1), np.float32), None, 0, targets=np.ones((6, 1), np.float32)
    )
    with pytest.raises(BadInput, match=r"prices: has no classes, .* give owner=.* use partition\.name=natural"):
        _ = prices.labels
