"""Units and shared test nodes give the parts of clients that tests treat as one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import fedweave as fw
from fedweave import data
from fedweave.errors import BadInput
from fedweave.runs import archive, repetition
from fedweave.runs.dependent_clients import connected_parts, find_parts
from fedweave.study import spec
from tests.study.test_spec import one_run

TRAIN = {"rounds": 1, "epochs": 1, "batch_size": 32, "lr": 0.05}


def lists(count: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, count), min_size=count, max_size=count), max_size=3)


@given(st.integers(1, 12).flatmap(lambda count: st.tuples(st.just(count), lists(count))))
def test_parts_are_the_connected_components(drawn: tuple[int, list[list[int]]]) -> None:
    """The graph has an edge between clients with an equal value. The names of the values do not matter."""
    count, relations = drawn
    parts = connected_parts(relations, count)
    pairs = [(a, b) for a in range(count) for b in range(count) for r in relations if r[a] == r[b]]
    ends = np.array(pairs, dtype=int).reshape(-1, 2)
    graph = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    _, expected = connected_components(graph, directed=False)
    assert (parts[:, None] == parts).tolist() == (expected[:, None] == expected).tolist()
    first = {part: parts.tolist().index(part) for part in parts.tolist()}
    assert [*first] == sorted(first) == [*range(len(first))]
    names = [[f"unit {-value}" for value in relation] for relation in relations]
    assert connected_parts(names, count).tolist() == parts.tolist()


def prepared(partition: data.Partition, dataset: data.Dataset, **block: object) -> repetition.PreparedRun:
    """FedAvg on a partition that a task describes in its block."""
    task = {
        "dataset": dataset.name,
        "setting": "own",
        "model": {"name": "gcn" if partition.nodes else "mlp"},
        "train": TRAIN,
        "partition": block,
    }
    return repetition.prepare(spec.parse(one_run(task, "fedavg")).run("own-fedavg"), dataset, partition)


def test_test_nodes_and_units_join_clients(tmp_path: Path) -> None:
    """Clients 0 to 2 and 3 to 5 share test nodes. A unit of clients 2 and 3 joins all six."""
    dataset = data.load("digits-graph", tmp_path)
    block = {"name": "metis_overlap", "clients": 9, "seed": 0, "copies": 3}
    partition = data.partition(dataset, **block)
    assert find_parts(prepared(partition, dataset, **block)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    units = ("a", "b", "c", "c", "d", "e", "f", "g", "h")
    assert find_parts(prepared(replace(partition, units=units), dataset, **block)) == [0] * 6 + [1] * 3


def test_run_json_has_the_units_of_all_clients_even_if_a_sample_is_evaluated(tmp_path: Path) -> None:
    dataset = data.load("digits", tmp_path)
    block = {"name": "iid", "clients": 6, "seed": 0}
    partition = replace(data.partition(dataset, **block), units=("a", "b", "a", "c", "d", "c"))
    bench = prepared(partition, dataset, **block)
    bench = replace(bench, run=replace(bench.run, seeds=(0,)))
    archive.write(tmp_path / "run", bench, repetition.run_repetitions(bench, tmp_path / "checkpoints"))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["units"], info["sharing"]) == ([*partition.units], [0, 1, 0, 2, 3, 2])
    plain = prepared(replace(partition, units=()), dataset, **block)
    alone = prepared(replace(partition, units=tuple("abcdef")), dataset, **block)
    assert find_parts(plain) is find_parts(alone) is None


@fw.partition("paired", kinds=("images",))
def paired(dataset: data.Dataset, clients: int, seed: int) -> data.Partition:
    """Clients whose units depend on the seed for odd seeds only."""
    partition = data.partition(dataset, "iid", clients, seed)
    return replace(partition, units=tuple(f"home {(i + seed % 2) // 2}" for i in range(clients)))


def test_splits_have_the_same_units(tmp_path: Path) -> None:
    dataset = data.load("digits", tmp_path)
    block = {"name": "paired", "clients": 6}
    partition = data.partition(dataset, **block, seed=2)
    even = prepared(partition, dataset, **block, seeds=[2, 4])
    assert even.for_seed(1).units == even.units == partition.units
    odd = prepared(partition, dataset, **block, seeds=[2, 3])
    with pytest.raises(
        BadInput, match=r"partition\.seeds: clients of split 3 are of other units than those of split 2"
    ):
        odd.for_seed(1)
