"""Data sets: the content that the loaders return, and the published figures where the real data are available."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedweave import data
from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.normalisation import PUBLISHED
from fedweave.data.partitions.metis import induced_edges, largest_component
from fedweave.data.sources import images, traffic
from fedweave.data.sources.origins import CATALOGUE
from fedweave.data.sources.pickles import read_arrays
from fedweave.data.sources.retrieval import find_intact_files
from fedweave.data.summary import clustering_coefficient
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream


def mirror() -> Path:
    """The folder of real data: FEDWEAVE_MIRROR, or shared/data next to the repository. It may be missing."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    named = Path(os.environ.get("FEDWEAVE_MIRROR") or beside)
    return named if named.is_dir() else beside


REAL = tuple(name for name, forms in CATALOGUE.items() if forms and find_intact_files(name, mirror()))
SLOW = tuple(name for name in REAL if name in ("cifar10", "cifar100"))  # one sheet is read, not all
ABSENT = pytest.mark.skip(
    reason="not in the mirror of real data: FEDWEAVE_MIRROR, or shared/data beside the repository"
)
ALWAYS = ("digits", "digits-graph", "flights", "shoulder", "us-income")  # packages contain them
LOADED = (*ALWAYS, *(name for name in REAL if name not in SLOW))


def has_labels(*counts: int) -> Callable[[Dataset], None]:
    """A check of the label histogram."""

    def run(dataset: Dataset) -> None:
        assert np.bincount(dataset.labels).tolist() == list(counts)

    return run


def has_statistics(nodes: int, edges: int, whole: float, ten: float, means: list[int]) -> Callable[[Dataset], None]:
    """A check of FedSheafHN, tables 4, 5: largest component, clustering, edges of 10, 20, 30, 50 clients."""

    def run(dataset: Dataset) -> None:
        largest = largest_component(dataset.links, len(dataset.x))
        inside = induced_edges(dataset.links, largest, len(dataset.x))
        assert (len(largest), inside.shape[1]) == (nodes, edges)
        assert clustering_coefficient(inside, len(largest)) == pytest.approx(whole, abs=6e-4)
        rules = (("metis", 10), ("metis", 20), ("metis_overlap", 30), ("metis_overlap", 50))
        for (rule, clients), mean in zip(rules, means, strict=True):
            summary = data.summary(dataset, data.partition(dataset, rule, clients, 123))
            assert summary["edges"]["mean"] == pytest.approx(mean, rel=0.05), (rule, clients)
            assert clients != 10 or summary["clustering"] == pytest.approx(ten, abs=0.008)

    return run


def has_published_moments(dataset: Dataset) -> None:
    (mean,), (std,) = PUBLISHED[dataset.name]
    train = dataset.x[dataset.official == 0] / np.float32(255)
    assert (float(train.mean()), float(train.std())) == pytest.approx((mean, std), abs=1e-4)


def has_sensors(dataset: Dataset) -> None:
    names, matrix = traffic.read_adjacency(mirror() / "METR-LA" / "adj_mx.pkl")
    assert (np.count_nonzero(matrix), np.count_nonzero(np.diag(matrix))) == (1722, 207)
    assert dataset.names == names
    assert dataset.time[[0, 287, 288]].tolist() == pytest.approx([0.0, 287 / 288, 0.0])
    partition = data.partition(dataset, "natural", 207, 0, window=12, horizon=12)
    assert [len(rows[0]) for rows in (partition.train, partition.val, partition.test)] == [23974, 3425, 6850]
    # The scaler of DCRNN's training windows, as it and LibCity print it.
    times = (np.arange(23974)[:, None] + np.arange(12)).ravel()
    weights = np.bincount(times, minlength=dataset.x.shape[1]) / (times.size * len(dataset.x))
    mean = float((dataset.x.astype(np.float64) @ weights).sum())
    variance = float(((dataset.x.astype(np.float64) - mean) ** 2 @ weights).sum())
    assert (mean, variance**0.5) == pytest.approx((54.40592829587626, 19.493739270573098), rel=1e-6)


def has_states(*windows: tuple[int, ...]) -> Callable[[Dataset], None]:
    """The authors' series, from 2008 to 2019. Windows are sliding, and one per year is used."""

    def check(dataset: Dataset) -> None:
        temperatures = read_arrays(mirror() / "TPT-48" / "month_temp_data.pkl")
        series = np.stack([temperatures[state] for state in dataset.names]).astype(np.float32)
        assert np.array_equal(series, dataset.x[:, -144:])
        assert dataset.relation.shape[1] + 48 == 258
        for stride, expected in zip((1, 12), windows, strict=True):
            partition = data.partition(dataset, "natural", 48, 0, window=6, horizon=6, stride=stride)
            assert tuple(len(rows[0]) for rows in (partition.train, partition.val, partition.test)) == expected
            assert {*(partition.test[0] % 12)} == ({0} if stride == 12 else {*range(12)})  # in January

    return check


CHECKS: dict[str, list[Callable[[Dataset], None]]] = {
    "digits": [has_labels(178, 182, 177, 183, 181, 182, 181, 179, 174, 180)],
    "digits-graph": [has_statistics(1770, 12450, 0.3656, 0.383, [1218, 566, 495, 305])],
    "shoulder": [has_labels(502, 770, 780, 718, 723, 583, 601)],
    "us-income": [],
    "flights": [has_labels(3879, 1121)],
    "cora": [
        has_labels(351, 217, 418, 818, 426, 298, 180),
        has_statistics(2485, 10138, 0.238, 0.259, [891, 422, 379, 215]),
    ],
    "citeseer": [
        has_labels(264, 590, 668, 701, 596, 508),
        has_statistics(2120, 7358, 0.170, 0.178, [675, 326, 293, 170]),
    ],
    "pubmed": [has_labels(4103, 7739, 7875), has_statistics(19717, 88648, 0.060, 0.066, [7671, 3607, 3374, 1903])],
    "amazon-computer": [has_labels(436, 2142, 1414, 542, 5158, 308, 487, 818, 2156, 291)],
    "amazon-photo": [
        has_labels(369, 1686, 703, 915, 882, 823, 1941, 331),
        has_statistics(7487, 238086, 0.410, 0.457, [19322, 8547, 8735, 4840]),
    ],
    "fashion-mnist": [has_labels(*[7000] * 10), has_published_moments],
    "metr-la": [has_sensors],
    "tpt48": [has_states((194, 28, 55), (17, 2, 5))],
    "tpt48-2008": [has_states((93, 13, 27), (8, 2, 2))],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in LOADED else [ABSENT]) for name in CHECKS])
def test_a_data_set_has_its_published_figures(name: str) -> None:
    dataset = data.load(name, mirror())
    assert dataset.name == name
    for pairs in (dataset.edges, dataset.relation):
        assert pairs is None or np.array_equal(symmetrise_edges(pairs, 10**6), pairs)
    for passes in CHECKS[name]:
        passes(dataset)


def test_every_data_set_of_the_mirror_is_tested(record_property: Callable[[str, object], None]) -> None:
    record_property("exercised", ", ".join(LOADED + SLOW))
    folders = {"FashionMNIST": 1, "CIFAR10": 1, "CIFAR100": 1, "Planetoid": 3, "Amazon": 2, "METR-LA": 1, "TPT-48": 2}
    there = [sum(CATALOGUE[name][0].files[0].path.startswith(f + "/") for name in REAL) for f in folders]
    assert there == [count if (mirror() / f).is_dir() else 0 for f, count in folders.items()]
    assert set(data.DATASETS) == set(data.KINDS) == set(CATALOGUE)
    assert set(LOADED) <= set(CHECKS)


def test_a_loader_returns_the_kind_that_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are checked against the kind before a download."""
    assert data.load("digits", tmp_path).kind == data.KINDS["digits"]
    monkeypatch.setitem(data.KINDS, "digits", "graph")
    with pytest.raises(BadInput, match="dataset digits: its loader returned images and declares graph"):
        data.load("digits", tmp_path)
    with pytest.raises(BadInput, match="dataset 'x': kind: 'grpah' is unknown; did you mean 'graph'"):
        data.registry.dataset("x", "grpah")


@pytest.mark.parametrize(
    "name", ["made", *(pytest.param(name, marks=[] if name in SLOW else [ABSENT]) for name in ("cifar10", "cifar100"))]
)
def test_sheets_have_images_row_by_row(name: str, tmp_path: Path) -> None:
    if name == "made":
        pixels = stream(1).integers(0, 256, size=(6, 3, 32, 32), dtype=np.uint8)
        grid = pixels.reshape(2, 3, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(64, 96, 3)
        Image.fromarray(grid).save(tmp_path / "0.webp", lossless=True)
        assert np.array_equal(images.read_sheets(tmp_path, 2, 3), pixels)
        with pytest.raises(BadInput, match="not a sheet of 3 x 3"):
            images.read_sheet(tmp_path / "0.webp", 3, 3)
        return
    folder, rows, columns = {"cifar10": ("CIFAR10", 40, 50), "cifar100": ("CIFAR100", 500, 1)}[name]
    first = images.read_sheet(min((mirror() / folder / "test").iterdir()), rows, columns)
    assert first.shape == (rows * columns, 3, 32, 32)
    labels = np.load(mirror() / folder / "labels.npz")
    target = labels["test_labels" if name == "cifar10" else "test_fine"][: len(first)]
    means = np.stack([first[target == c].mean(0) for c in (0, 1)])
    assert np.abs(means[0] - means[1]).mean() > 5  # pictures of one kind differ from those of another
