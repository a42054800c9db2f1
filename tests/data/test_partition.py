"""Partition rules: each row is in one part, distributions are as documented, impossible options are refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import data
from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.partitions.label_skew import ALLOCATORS
from fedweave.data.partitions.metis import induced_edges, largest_component
from fedweave.data.partitions.splits import Split, chronological_parts, random_parts, stratified_parts
from fedweave.data.summary import clustering_coefficient, heterogeneity, label_histogram, own_rows
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream

LABEL_RULES = {
    "iid": {},
    "shards": {"classes": 2},
    "classes": {"classes": 4},
    "clusters": {"classes": 2},
    "dirichlet": {"beta": 0.3},
    "lda": {"alpha": 0.3},
    "superclass": {},
    "dominant": {"classes": 2},
    "grouped": {},
    "listed": {"classes": [[(c + i) % 10 for i in range(4)] for c in range(10)]},
}
COMPLETE = ("iid", "clusters", "dirichlet", "lda", "superclass", "grouped")


def toy(classes: int = 10, each: int = 60, tested: int = 12) -> Dataset:
    """Labels only: `each` training and `tested` test rows per class, two classes per superclass, shuffled."""
    y = np.concatenate([np.repeat(np.arange(classes), each), np.repeat(np.arange(classes), tested)])
    official = np.repeat([0, 1], [classes * each, classes * tested])
    order = stream(5).permutation(len(y))
    y, official = y[order], official[order]
    return Dataset("toy", "images", np.zeros((len(y), 1, 1, 1), np.float32), y, classes, official, y // 2)


@pytest.fixture(scope="module")
def graph() -> Dataset:
    return data.load("digits-graph", "unused")


def all_rows(partition: data.Partition) -> list[np.ndarray]:
    return [*partition.train, *partition.val, *partition.test]


def test_every_label_rule_is_tested() -> None:
    assert set(LABEL_RULES) == set(ALLOCATORS)


@pytest.mark.parametrize("name", LABEL_RULES)
def test_each_row_has_one_client_and_part(name: str) -> None:
    dataset = toy()
    result = data.partition(dataset, name, 10, 666, **LABEL_RULES[name])
    rows = np.concatenate(all_rows(result))
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(dataset.labels)
    if name in COMPLETE:
        assert len(rows) == len(dataset.labels)
    again, other = (data.partition(dataset, name, 10, seed, **LABEL_RULES[name]) for seed in (666, 667))
    assert all(np.array_equal(a, b) for a, b in zip(all_rows(result), all_rows(again), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(all_rows(result), all_rows(other), strict=True))


@pytest.mark.parametrize("name", ["clusters", "superclass"])
def test_rows_of_a_class_are_drawn_at_random(name: str) -> None:
    """This includes rules whose counts do not depend on the seed."""
    clients = [
        [np.sort(np.concatenate(parts)) for parts in zip(result.train, result.val, result.test, strict=True)]
        for result in (data.partition(toy(), name, 10, seed, **LABEL_RULES[name]) for seed in (0, 1))
    ]
    for rows, other_rows in zip(*clients, strict=True):
        assert len(rows) == len(other_rows)
        assert not np.array_equal(rows, other_rows)
        labels = toy().labels[rows]
        firsts = [np.flatnonzero(toy().labels == label)[: (labels == label).sum()] for label in np.unique(labels)]
        assert not np.array_equal(rows, np.sort(np.concatenate(firsts)))


@pytest.mark.parametrize("stratify", [False, True])
def test_parts_of_clients_with_equal_rows_are_drawn_independently(stratify: bool) -> None:
    """The positions of test rows among a client's rows differ between clients, and between seeds."""
    places = set()
    for seed in (0, 1):
        result = data.partition(toy(), "clusters", 10, seed, classes=2, stratify=stratify)
        for parts in zip(result.train, result.val, result.test, strict=True):
            places.add(tuple(np.searchsorted(np.sort(np.concatenate(parts)), parts[2]).tolist()))
    assert len(places) == 20


def test_an_impossible_dirichlet_draw_ends() -> None:
    with pytest.raises(BadInput, match=r"partition.beta: no draw of Dir\(0.001\)"):
        data.partition(toy(), "dirichlet", 20, 0, beta=0.001, minimum=20, attempts=50)


def test_superclass_is_even_and_stratified() -> None:
    dataset = toy(classes=10, each=60, tested=12)
    result = data.partition(dataset, "superclass", 15, 1, test="proportional", split={"train": 0.9, "val": 0.1})
    for i in range(15):
        mine = np.concatenate([result.train[i], result.val[i]])
        expected = np.where(np.arange(10) // 2 == i // 3, 20, 0)
        assert np.array_equal(np.bincount(dataset.labels[mine], minlength=10), expected)
        assert np.array_equal(np.bincount(dataset.labels[result.test[i]], minlength=10), expected // 5)
        assert result.group[i] == i // 3


@given(st.integers(5, 200), st.floats(0.1, 0.3), st.floats(0.1, 0.3), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_splits_assign_every_row_once(rows: int, val: float, test: float, seed: int) -> None:
    split, y = Split(1 - val - test, val, test), stream(seed).integers(0, 4, size=1000)
    mine = stream(seed, 1).permutation(1000)[:rows]
    for parts in (random_parts(mine, split, stream(2), "x"), stratified_parts(mine, y, split, stream(2), "x")):
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(mine))
        assert abs(len(parts[2]) - test * rows) <= max(0.5, 1 - test * rows) + 1e-9
    mix = np.bincount(y[mine], minlength=4)
    assert np.abs(np.bincount(y[parts[2]], minlength=4) - mix * len(parts[2]) / rows).max() < 1 + 1e-9
    assert np.abs(np.bincount(y[parts[1]], minlength=4) - mix * len(parts[1]) / rows).max() < 2 + 1e-9


@given(st.integers(6, 200), st.floats(0.3, 0.7), st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_parts_in_the_order_of_time_without_validation(count: int, test: float, gap: int) -> None:
    """All rows but the gaps train or test, and the test rows are last."""
    train_rows, val_rows, test_rows = (
        np.arange(count)[part] for part in chronological_parts(count, Split(1 - test, 0.0, test), "x", gap)
    )
    assert not len(val_rows)
    assert np.array_equal(train_rows, np.arange(len(train_rows)))
    assert np.array_equal(test_rows, np.arange(count - len(test_rows), count))
    assert len(train_rows) + len(test_rows) == count - 2 * gap
    assert abs(len(test_rows) - test * (count - 2 * gap)) <= 0.5 + 1e-9


def test_weighted_test_set_is_shared_and_weighted_by_training_labels() -> None:
    dataset = toy()
    result = data.partition(dataset, "clusters", 10, 1, classes=2, split={"train": 0.8, "val": 0.2}, test="weighted")
    tested = np.flatnonzero(dataset.official == 1)
    assert all(np.array_equal(rows, tested) for rows in result.test)
    for rows, weight in zip(result.train, result.test_weight, strict=True):
        assert (dataset.official[rows] == 0).all()
        assert np.allclose(weight, np.bincount(dataset.labels[rows], minlength=10) / len(rows))
    assert not np.isin(np.concatenate(own_rows(result)), tested).any()


def test_proportional_test_sets_are_disjoint_and_match() -> None:
    dataset = toy(each=100, tested=100)
    for name in ("lda", "dirichlet"):
        result = data.partition(dataset, name, 5, 3, **LABEL_RULES[name], test="proportional")
        rows = np.concatenate(result.test)
        assert np.array_equal(np.sort(rows), np.flatnonzero(dataset.official == 1))
        for i in range(5):
            mine = np.bincount(dataset.labels[np.concatenate([result.train[i], result.val[i]])], minlength=10)
            assert np.corrcoef(mine, np.bincount(dataset.labels[result.test[i]], minlength=10))[0, 1] > 0.7


def test_stratified_parts_and_validation_from_training_rows() -> None:
    result = data.partition(
        toy(), "classes", 5, 1, classes=4, size=80, split={"train": 0.7, "test": 0.3}, val=0.1, stratify=True
    )
    assert {(len(a), len(b), len(c)) for a, b, c in zip(result.train, result.val, result.test, strict=True)} == {
        (50, 6, 24)
    }
    assert (np.stack([np.bincount(toy().labels[r], minlength=10) for r in result.test]) % 6 == 0).all()


def test_metis_cuts_the_largest_component(graph: Dataset) -> None:
    result = data.partition(graph, "metis", 10, 123)
    largest = largest_component(graph.links, len(graph.x))
    assert np.array_equal(np.sort(np.concatenate(result.nodes)), largest)
    sizes = np.array([len(n) for n in result.nodes])
    assert sizes.max() <= 1.1 * sizes.mean()
    inside = sum(e.shape[1] for e in result.edges)
    random = stream(1).integers(0, 10, size=len(graph.x))
    assert inside > 0.9 * graph.links.shape[1] > (random[graph.links[0]] == random[graph.links[1]]).sum()
    roles = [
        np.concatenate([n[r] for n, r in zip(result.nodes, rows, strict=True)])
        for rows in (result.train, result.val, result.test)
    ]
    assert np.array_equal(np.sort(np.concatenate(roles)), largest)
    assert [round(len(r) / len(largest), 3) for r in roles] == [0.4, 0.3, 0.3]
    other = data.partition(graph, "metis", 10, 124)
    assert all(np.array_equal(a, b) for a, b in zip(result.nodes, other.nodes, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(result.train, other.train, strict=True))


def test_largest_component_and_shares_of_nodes() -> None:
    chain = np.stack([np.arange(39), np.arange(1, 40)])
    edges = symmetrise_edges(
        np.concatenate([chain[:, :9], chain[:, 10:]], axis=1), 41
    )  # components of 10 nodes, 30 nodes and one node
    assert np.array_equal(largest_component(edges, 41), np.arange(10, 40))
    dataset = Dataset("chain", "graph", np.zeros((41, 1), np.float32), np.zeros(41, np.int64), 1, edges=edges)
    result = data.partition(dataset, "metis", 1, 0, split={"train": 0.5, "val": 0.1, "test": 0.4})
    assert [len(part[0]) for part in (result.train, result.val, result.test)] == [15, 3, 12]


@pytest.mark.parametrize("name", ["metis", "metis_overlap"])
def test_subgraphs_without_validation_nodes(name: str, graph: Dataset) -> None:
    """As for other rules, `val: 0` gives no validation part."""
    result = data.partition(graph, name, 5, 0, split={"train": 0.6, "val": 0.0, "test": 0.4})
    assert all(not len(rows) for rows in result.val)
    assert all(len(rows) for rows in (*result.train, *result.test))


def test_induced_edges_are_those_of_the_graph(graph: Dataset) -> None:
    whole = set(map(tuple, graph.links.T.tolist()))
    nodes = np.sort(stream(7).permutation(len(graph.x))[:200])
    local = induced_edges(graph.links, nodes, len(graph.x))
    assert set(map(tuple, nodes[local].T.tolist())) == {(a, b) for a, b in whole if a in set(nodes) and b in set(nodes)}


def test_overlapping_clients_are_halves_and_nodes_keep_their_role(graph: Dataset) -> None:
    result, parts = data.partition(graph, "metis_overlap", 10, 123), data.partition(graph, "metis", 2, 123)
    role = np.full(len(graph.x), -1)
    for i, nodes in enumerate(result.nodes):
        part = parts.nodes[result.group[i]]
        assert len(nodes) == len(part) // 2
        assert np.isin(nodes, part).all()
        for r, rows in enumerate((result.train[i], result.val[i], result.test[i])):
            assert np.isin(role[nodes[rows]], [-1, r]).all()
            role[nodes[rows]] = r
    assert not np.array_equal(result.nodes[0], result.nodes[1])


def series(clients: int, steps: int, relation: np.ndarray | None = None) -> Dataset:
    x = stream(8).normal(size=(clients, steps)).astype(np.float32)
    return Dataset("s", "series", x, None, 0, time=np.zeros(steps, np.float32), relation=relation)


def test_natural_windows_are_chronological() -> None:
    relation = symmetrise_edges(np.array([[0, 1], [1, 2]]), 3)
    result = data.partition(series(3, 34272, relation), "natural", 3, 0, window=12, horizon=12)
    assert [len(part[0]) for part in (result.train, result.val, result.test)] == [23974, 3425, 6850]  # DCRNN's rounding
    assert np.array_equal(np.concatenate([result.train[1], result.val[1], result.test[1]]), 34272 + np.arange(34249))
    assert np.array_equal(result.relation, relation)
    yearly = data.partition(series(2, 288), "natural", 2, 0, window=6, horizon=6, stride=12)
    assert [len(part[1]) for part in (yearly.train, yearly.val, yearly.test)] == [17, 2, 5]
    assert (np.concatenate(yearly.train + yearly.val + yearly.test) % 12 == 0).all()


def test_the_number_of_natural_clients_is_that_of_the_data() -> None:
    """It may be left out, of series and of rows with owners; no other rule knows it."""
    owner = np.repeat(np.arange(4), 20)
    rows = Dataset("o", "images", np.zeros((80, 1, 1, 1), np.float32), owner % 2, 2, owner=owner)
    for dataset, options in ((rows, {}), (series(3, 200), {"window": 6, "horizon": 6})):
        given = data.partition(dataset, "natural", dataset.natural_clients, 0, **options)
        derived = data.partition(dataset, "natural", seed=0, **options)
        for part in ("train", "val", "test"):
            assert all(map(np.array_equal, getattr(given, part), getattr(derived, part)))
    with pytest.raises(BadInput, match=r"partition\.clients: 3, but o has 4 natural clients"):
        data.partition(rows, "natural", 3, 0)
    with pytest.raises(BadInput, match=r"partition\.clients: missing; give a whole number, at least 1 and at most 80"):
        data.partition(rows, "iid", seed=0)
    plain = Dataset("plain", "images", rows.x, rows.y, 2)
    with pytest.raises(BadInput, match=r"partition\.name: natural does not fit plain"):
        data.partition(plain, "natural", seed=0)


def test_natural_owners() -> None:
    """Rows are split at random for each owner separately."""
    owner = np.repeat(np.arange(4), 20)
    dataset = Dataset("o", "images", np.zeros((80, 1, 1, 1), np.float32), owner % 2, 2, owner=owner)
    result = data.partition(dataset, "natural", 4, 0, split={"train": 0.8, "test": 0.2}, val=0.125)
    assert all(
        (owner[rows] == i).all() for part in (result.train, result.val, result.test) for i, rows in enumerate(part)
    )
    assert [len(part[0]) for part in (result.train, result.val, result.test)] == [14, 2, 4]
    again = data.partition(dataset, "natural", 4, 1, split={"train": 0.8, "test": 0.2}, val=0.125)
    assert len({tuple((rows % 20).tolist()) for rows in (*result.test, *again.test)}) == 8


def test_names_groups_and_units_of_natural_clients_are_stored(tmp_path: Path) -> None:
    owner, names = np.repeat(np.arange(3), 20), ("subject 1, left", "Zoë", "c")
    clients = {"owner": owner, "names": names, "group": np.array([1, 0, 1]), "group_names": ("left", "right")}
    clients["units"] = ("Ann", "Ann", "Zoë, 2")
    dataset = Dataset("o", "images", np.zeros((60, 1, 1, 1), np.float32), owner % 2, 2, **clients)
    data.save_dataset(tmp_path / "features", dataset)
    result = data.partition(data.load_dataset(tmp_path / "features"), "natural", 3, 0)
    data.save_partition(tmp_path / "p.npz", result)
    loaded = data.load_partition(tmp_path / "p.npz")
    assert (loaded.names, loaded.group_names, loaded.group.tolist()) == (names, ("left", "right"), [1, 0, 1])
    assert loaded.units == clients["units"]
    assert data.describe(tmp_path, dataset, loaded)["units"] == 2
    table = pd.read_csv(tmp_path / "labels.csv")
    assert (table["group"].tolist(), table["unit"].tolist()) == (["right", "left", "right"], [*clients["units"]])
    plain = data.partition(toy(), "iid", 5, 0)
    assert (plain.names, plain.group_names, plain.units) == ((), (), ())
    for changes in (
        {"names": ("a", "b")},
        {"group_names": ("left",)},
        {"group": np.array([0, 1])},
        {"group": np.array([0, 1, -1])},
    ):
        with pytest.raises(BadInput, match=r"partition: (names|group) must"):
            replace(result, **changes)


UNITS = {
    "2 for 3 natural clients, each with an owner; give one for each, or none": ("Ann", "Bob"),
    "1 is not a name; give non-empty texts": ("Ann", 1, "Bob"),
    "None is not a name": ("Ann", None, "Bob"),
    "'' is not a name": ("Ann", "", "Bob"),
    r"\['Ann', 'Ann', 'Bob'\] must be a tuple of names": ["Ann", "Ann", "Bob"],
}


@pytest.mark.parametrize("message", UNITS)
def test_units_without_one_name_for_each_client_are_refused(message: str) -> None:
    owner, x = np.repeat(np.arange(3), 20), np.zeros((60, 1, 1, 1), np.float32)
    good = data.partition(Dataset("o", "images", x, owner % 2, 2, owner=owner), "natural", 3, 0)
    with pytest.raises(BadInput, match=f"dataset o: units: {message}"):
        Dataset("o", "images", x, owner % 2, 2, owner=owner, units=UNITS[message])
    with pytest.raises(
        BadInput, match=f"partition: units: {message}".replace("natural clients, each with an owner", "clients")
    ):
        replace(good, units=UNITS[message])


def test_units_need_natural_clients() -> None:
    x, y = np.zeros((60, 1, 1, 1), np.float32), np.arange(60) % 2
    with pytest.raises(BadInput, match="units: 2 for 0 natural clients, each with an owner"):
        Dataset("o", "images", x, y, 2, units=("Ann", "Bob"))
    series = Dataset(
        "s", "series", np.zeros((2, 9), np.float32), None, 0, time=np.zeros(9, np.float32), units=("a", "a")
    )
    split = {"window": 2, "horizon": 1, "split": {"train": 0.5, "val": 0.2, "test": 0.3}}
    assert data.partition(series, "natural", 2, 0, **split).units == ("a", "a")
    assert data.partition(toy(), "iid", 5, 0).units == ()


def test_a_data_set_without_units_is_stored_as_before(tmp_path: Path) -> None:
    """Then its stages do not run again. Data that were stored before can be read."""
    data.save_dataset(tmp_path, toy())
    assert "units" not in json.loads((tmp_path / "meta.json").read_text())
    data.save_partition(tmp_path / "p.npz", data.partition(toy(), "iid", 5, 0))
    assert "units" not in np.load(tmp_path / "p.npz").files
    assert data.load_partition(tmp_path / "p.npz").units == data.load_dataset(tmp_path).units == ()


BAD = [
    ("toy", "dirichlte", 5, {}, "did you mean 'dirichlet'"),
    ("toy", "dirichlet", 5, {"beta": 0.1, "minimun": 3}, "did you mean 'minimum'"),
    ("toy", "dirichlet", 5, {"beta": -1}, "partition.beta: -1 is out of range; it must be above 0"),
    ("toy", "dirichlet", 5, {"beta": float("nan")}, "partition.beta: nan"),
    ("toy", "iid", 0, {}, "partition.clients: 0"),
    ("toy", "iid", 2.5, {}, "partition.clients: 2.5"),
    ("toy", "iid", 700, {}, "use fewer clients"),
    ("toy", "clusters", 7, {"classes": 2}, "must be a multiple of 5"),
    ("toy", "clusters", 10, {"classes": 3}, "classes must divide 10"),
    ("toy", "superclass", 7, {}, "not a multiple of 5 superclasses"),
    ("toy", "grouped", 7, {}, "partition.groups: 5"),
    ("toy", "classes", 5, {"classes": 11}, "at least 1 and at most 10"),
    ("toy", "classes", 5, {"classes": 2, "size": 1000}, "at most"),
    ("toy", "iid", 5, {"test": "weighted", "split": {"train": 0.7, "val": 0.1, "test": 0.2}}, "official test set"),
    ("toy", "iid", 5, {"test": "weighted", "pool": "all"}, "partition.pool"),
    ("series", "natural", 3, {}, "partition.window: missing; give a whole number"),
    ("series", "natural", 3, {"window": 30, "horizon": 20}, "too few"),
]


@pytest.mark.parametrize(("dataset", "name", "clients", "options", "message"), BAD)
def test_bad_options_are_refused_in_one_line(
    dataset: str, name: str, clients: float, options: dict, message: str
) -> None:
    result = toy() if dataset == "toy" else series(3, 40)
    with pytest.raises(BadInput, match=re.escape(message)):
        data.partition(result, name, clients, 0, **options)


def test_heterogeneity_and_clustering_against_references(graph: Dataset) -> None:
    import networkx
    from scipy.spatial.distance import jensenshannon

    histogram = stream(9).integers(0, 50, size=(7, 5))
    pairs = [jensenshannon(a, b) for i, a in enumerate(histogram) for b in histogram[:i]]
    assert np.isclose(heterogeneity(histogram), np.median(pairs))
    assert heterogeneity(np.array([[3, 0], [0, 5]])) == pytest.approx(np.sqrt(np.log(2)))
    result = data.partition(graph, "metis", 10, 0)
    graph = networkx.Graph(result.edges[0].T.tolist())
    graph.add_nodes_from(range(len(result.nodes[0])))
    assert clustering_coefficient(result.edges[0], len(result.nodes[0])) == pytest.approx(
        networkx.average_clustering(graph)
    )


def test_label_counts_are_those_of_each_client() -> None:
    dataset = toy()
    result = data.partition(dataset, "iid", 4, 0)
    assert np.array_equal(label_histogram(dataset, result).sum(0), np.bincount(dataset.labels))
    assert data.summary(dataset, result)["heterogeneity"] < 0.2
