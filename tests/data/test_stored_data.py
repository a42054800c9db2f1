"""Stored arrays are read unchanged, damaged files are refused, and scaling uses numbers of the training part."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedweave import data
from fedweave.data.base import Dataset, Partition
from fedweave.data.sources.digits import nearest_neighbour_edges
from fedweave.data.sources.pickles import read_arrays
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream


def test_nearest_neighbours_against_scikit_learn() -> None:
    from sklearn.neighbors import NearestNeighbors

    points = stream(3).integers(0, 17, size=(80, 12)).astype(float)
    edges = nearest_neighbour_edges(points, 4)
    distance = np.linalg.norm(points[edges[0]] - points[edges[1]], axis=1).reshape(80, 4)
    expected = NearestNeighbors(n_neighbors=5).fit(points).kneighbors(points)[0][:, 1:]
    assert np.allclose(np.sort(distance, axis=1), expected)
    assert nearest_neighbour_edges(np.zeros((4, 2)), 2).tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [1, 2, 0, 2, 0, 1, 0, 1]]


class Code:
    """The action of a malicious pickle."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch owned",)


def test_pickles_with_other_content_than_arrays_are_refused(tmp_path: Path) -> None:
    content = {"a": np.arange(6.0).reshape(2, 3), "b": [1, "x", (2.5, None, np.float32(3))], "c": 1 << 70}
    for protocol in range(6):
        (tmp_path / "good").write_bytes(pickle.dumps(content, protocol))
        loaded = read_arrays(tmp_path / "good")
        assert np.array_equal(loaded["a"], content["a"])
        assert (loaded["b"], loaded["c"]) == (content["b"], content["c"])
    for bad in (
        pickle.dumps(Code()),
        pickle.dumps(Path("x")),
        pickle.dumps(content)[:-9],
        b"",
        b"cos\nsystem\n.",
        b"cbuiltins\nrange\n.",
    ):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(BadInput, match="not a pickle of plain arrays"):
            read_arrays(tmp_path / "bad")
    assert not Path("owned").exists()


def test_stored_data_are_read_unchanged_and_damage_is_refused(tmp_path: Path) -> None:
    for name in ("digits", "digits-graph"):
        dataset = data.load(name, "unused")
        data.save_dataset(tmp_path / name, dataset)
        loaded = data.load_dataset(tmp_path / name)
        assert np.array_equal(loaded.x, dataset.x)
        assert isinstance(loaded.x, np.memmap)
        assert (loaded.kind, loaded.classes, loaded.names, loaded.note) == (dataset.kind, 10, (), "")
        assert loaded.edges is None or np.array_equal(loaded.edges, dataset.edges)
    content = (tmp_path / "digits" / "x.npy").read_bytes()
    for damage in (content[:-7], b"", b"text"):
        (tmp_path / "digits" / "x.npy").write_bytes(damage)
        with pytest.raises(BadInput, match=r"x\.npy: .*run the download stage"):
            data.load_dataset(tmp_path / "digits")
    (tmp_path / "digits" / "meta.json").unlink()
    with pytest.raises(BadInput, match=r"meta\.json"):
        data.load_dataset(tmp_path / "digits")


PARTITIONED = [
    ("digits", "dirichlet", 5, {"beta": 0.3}),
    ("digits-graph", "metis_overlap", 10, {}),
    ("digits", "grouped", 5, {}),
]


@pytest.mark.usefixtures("labels_are_drawn")
@pytest.mark.parametrize(("name", "rule", "clients", "options"), PARTITIONED)
def test_partitions_are_read_unchanged_and_described(
    name: str, rule: str, clients: int, options: dict, tmp_path: Path
) -> None:
    dataset = data.load(name, "unused")
    partition = data.partition(dataset, rule, clients, 1, **options)
    data.save_partition(tmp_path / "p.npz", partition)
    loaded = data.load_partition(tmp_path / "p.npz")
    for key in ("train", "val", "test", "nodes", "edges"):
        before, after = getattr(partition, key) or (), getattr(loaded, key) or ()
        assert len(before) == len(after)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(before, after, strict=True))
    assert (partition.group is None) == (loaded.group is None)
    out = data.describe(tmp_path, dataset, partition)
    assert out["clients"] == clients
    table = (tmp_path / "labels.csv").read_text().splitlines()
    assert len(table) == clients + 1
    assert sum(int(v) for v in table[1].split(",")[-10:]) == sum(out["labels"][0])
    assert Image.open(tmp_path / "labels.png").size[0] > 300
    first = (tmp_path / "labels.png").read_bytes(), (tmp_path / "p.npz").read_bytes()
    data.describe(tmp_path, dataset, partition)
    data.save_partition(tmp_path / "p.npz", partition)
    assert first == ((tmp_path / "labels.png").read_bytes(), (tmp_path / "p.npz").read_bytes())
    (tmp_path / "p.npz").write_bytes(first[1][:-100])
    with pytest.raises(BadInput, match="not a partition file"):
        data.load_partition(tmp_path / "p.npz")
    (tmp_path / "p.npz").write_bytes(first[1])
    with np.load(tmp_path / "p.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "p.npz", **{**arrays, "train": arrays["train"][1:]})
    with pytest.raises(BadInput, match=r"p\.npz: not a partition file \(the sizes of its clients do not add up\); run"):
        data.load_partition(tmp_path / "p.npz")


def test_inconsistent_arrays_are_refused() -> None:
    x, y, one = np.zeros((4, 2), np.float32), np.zeros(4, np.int64), (np.array([0]),)
    for make, message in [
        (lambda: Dataset("a", "graph", x, y, 1), "edges must be"),
        (lambda: Dataset("a", "graph", x, y, 1, edges=np.array([[0], [4]])), "edges must be"),
        (lambda: Dataset("a", "images", x[..., None, None], y[:3], 1), "y must have shape"),
        (lambda: Dataset("a", "series", x, None, 0), "time must have shape"),
        (lambda: Partition(one, one, ()), "test must have as many clients as train, 1"),
        (lambda: Partition(one, one, (np.array([-1]),)), "not negative"),
        (lambda: Partition(one, one, one, nodes=(np.array([3]),), edges=(np.array([[0], [1]]),)), "positions"),
        (lambda: Partition(one, one, one, relation=np.array([[0], [1]])), "relation"),
    ]:
        with pytest.raises(BadInput, match=message):
            make()


def test_normalisations_match_their_definitions() -> None:
    pixels = np.arange(96, dtype=np.uint8).reshape(8, 3, 2, 2)
    pictures = Dataset("p", "images", pixels, np.zeros(8, np.int64), 1)
    halves = Partition(*((np.array([i]),) for i in (0, 1, 2)))
    assert np.allclose(data.normalise(pictures, halves, "unit"), pixels / 127.5 - 1, atol=1e-6)
    scaled = data.normalise(pictures, halves, "standard")[0]
    assert np.allclose([scaled.mean((1, 2)), scaled.std((1, 2))], [[0] * 3, [1] * 3], atol=1e-5)
    scaling = {"name": "standard", "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}
    assert np.allclose(data.normalise(pictures, halves, scaling)[:, 1], (pixels[:, 1] / 255 - 0.2) / 0.5, atol=1e-6)
    turned = Dataset("p", "images", pixels.reshape(8, 2, 2, 3).transpose(0, 3, 1, 2), np.zeros(8, np.int64), 1)
    for name in ("none", "standard"):  # the kernel would copy images whose channels come last for every client
        assert data.normalise(turned, halves, name).flags.c_contiguous
    graph = data.load("digits-graph", "unused")
    assert np.allclose(data.normalise(graph, halves, "rows").sum(1), 1, atol=1e-5)
    values = np.array([[0, 1, 2, 3, 4, 5, 60, 70], [5, 5, 5, 5, 5, 5, 1, 9]], np.float32)
    series = Dataset("s", "series", values, None, 0, time=np.zeros(8, np.float32))
    partition = data.partition(
        series, "natural", 2, 0, window=2, horizon=1, split={"train": 0.5, "val": 0.2, "test": 0.3}
    )
    seen = slice(0, max(partition.train[0]) + 3)  # 60, 70, 1 and 9 are in the future
    assert np.allclose(data.normalise(series, partition, "minmax"), values / values[:, seen].max())
    own = data.normalise(series, partition, "minmax_client")
    assert np.allclose(own, [values[0] / values[0, seen].max(), values[1] - 5])
    assert np.allclose(data.normalise(series, partition, {"name": "minmax", "low": 0, "high": 70}), values / 70)
    for dataset, name, message in [
        (series, {"name": "minmax", "lo": 1}, "normalize.lo"),
        (pictures, {"name": "standard", "mean": [0.1]}, "go together"),
        (pictures, {"name": "standard", "mean": [0.1], "std": [0.5]}, "lists of length 3, with std above 0"),
    ]:
        with pytest.raises(BadInput, match=message):
            data.normalise(dataset, halves, name)


def test_rows_of_small_features_are_not_scaled_up() -> None:
    """As in torch-geometric, a row is divided by its sum only if the sum is above 1."""
    x = np.array([[0, 0], [0.1, 0.3], [1, 3]], np.float32)
    dataset = Dataset("g", "graph", x, np.zeros(3, np.int64), 1, edges=np.zeros((2, 0), np.int64))
    clients = Partition(*((np.array([i]),) for i in range(3)))
    np.testing.assert_allclose(data.normalise(dataset, clients, "rows"), [[0, 0], [0.1, 0.3], [0.25, 0.75]])


def test_forecasts_have_the_units_of_their_channels() -> None:
    """The targets are all steps of the first channel, then all steps of the second one."""
    x, targets = np.zeros((4, 3, 1, 5), np.float32), np.zeros((4, 4), np.float32)
    dataset = Dataset("windows", "images", x, None, 0, targets=targets, channels=(2, 0))
    clients = Partition(*((np.array(rows),) for rows in ([0, 1], [2], [3])))
    given = {"name": "standard", "mean": [1, 2, 3], "std": [4, 5, 6]}
    assert [part.tolist() for part in data.fit_units(dataset, clients, given)] == [[[3, 3, 1, 1]], [[6, 6, 4, 4]]]


def test_images_of_each_client_are_scaled_by_its_training_rows() -> None:
    """Validation and test rows change no number. Rows of no client are unchanged."""
    x = np.random.default_rng(0).random((12, 2, 3, 3)).astype(np.float32)
    clients = Partition(*(tuple(np.array(rows) + 5 * i for i in (0, 1)) for rows in ([0, 1, 2], [3], [4])))
    for values in (x, np.where(np.isin(np.arange(12), [3, 4, 8, 9])[:, None, None, None], 9 * x, x)):
        scaled = data.normalise(Dataset("p", "images", values, np.zeros(12, np.int64), 1), clients, "standard_client")
        for i, train in enumerate(clients.train):
            mean, std = x[train].mean((0, 2, 3)), x[train].std((0, 2, 3))
            rows = np.arange(5 * i, 5 * i + 5)
            expected = (values[rows] - mean[:, None, None]) / std[:, None, None]
            np.testing.assert_allclose(scaled[rows], expected, rtol=1e-4, atol=1e-5)
        assert np.array_equal(scaled[10:], values[10:])


def test_units_of_constant_targets() -> None:
    """A client whose training targets are equal has the unit of all clients. A constant of all clients has unit 1."""
    targets = np.array([[1, 7], [5, 7], [3, 7], [3, 7], [100, 0]], np.float32)
    dataset = Dataset("values", "images", np.zeros((5, 1, 1, 1), np.float32), None, 0, targets=targets)
    train = (np.array([0, 1]), np.array([2, 3]))
    none = (np.zeros(0, np.int64),) * 2
    offset, unit = data.fit_units(dataset, Partition(train, none, none), {"name": "none", "targets": "client"})
    assert offset.tolist() == [[3, 7], [3, 7]]
    np.testing.assert_allclose(unit, [[2, 1], [np.sqrt(2), 1]])
