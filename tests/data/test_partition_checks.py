"""A user's partition rules and loaders: their results are checked at once, and messages name their file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from fedweave import data
from fedweave.data import Partition
from fedweave.data.base import Dataset
from fedweave.data.partitions.registry import TRAITS, rule
from fedweave.data.registry import DATASETS, dataset
from fedweave.errors import BadInput
from fedweave.settings import AtLeast

ROWS = 60
Parts = dict[str, list[np.ndarray]]


def toy() -> Dataset:
    return Dataset("toy", "images", np.zeros((ROWS, 1, 1, 1), np.float32), np.arange(ROWS) % 2, 2)


def good() -> Parts:
    """Four clients of 15 rows, 9 of which train."""
    blocks = np.split(np.arange(ROWS), 4)
    return {"train": [b[:9] for b in blocks], "val": [b[9:12] for b in blocks], "test": [b[12:] for b in blocks]}


@pytest.fixture
def partition_toy() -> Iterator[Callable[..., Partition]]:
    """Partitions `toy` by a rule of this file that returns the given value."""

    def apply(make: Callable[[], Any], clients: int = 4) -> Partition:
        @rule("mine", kinds=("images",))
        def mine(dataset: Dataset, clients: int, seed: int) -> Any:
            return make()

        return data.partition(toy(), "mine", clients, 0)

    yield apply
    data.PARTITIONS.pop("mine", None)
    TRAITS.pop("mine", None)


def partition(parts: Parts, **more: Any) -> Partition:
    return Partition(tuple(parts["train"]), tuple(parts["val"]), tuple(parts["test"]), **more)


def with_rows(part: str, client: int, rows: Any) -> Partition:
    """A valid partition but for the rows of one part of one client."""
    parts = good()
    parts[part][client] = np.array(rows, dtype=np.int64)
    return partition(parts)


WRONG: dict[str, Callable[[], Any]] = {
    "returned an object of type tuple; return a fedweave.data.Partition": lambda: (1, 2),
    "train must be arrays of numbers of the type int64": lambda: partition({**good(), "train": [[1], [2], [3], [4]]}),
    "returned 2 clients, but 4 are requested": lambda: partition({k: v[:2] for k, v in good().items()}),
    "client 0 and another one have the name 'x'": lambda: partition(good(), names=("x", "y", "x", "z")),
    "names must have 4 entries": lambda: partition(good(), names=("x",)),
    "its clients must hold rows": lambda: partition(good(), layout={"window": 1, "horizon": 1, "stride": 1}),
    "client 1 has no row in train": lambda: with_rows("train", 1, []),
    "client 3 has no row in test": lambda: with_rows("test", 3, []),
    "client 2 has row 60, but rows are 0 to 59": lambda: with_rows("train", 2, [31, 60]),
    "client 0 has row 3 twice": lambda: with_rows("train", 0, [3, 4, 3]),
    "client 0 has row 12 twice": lambda: with_rows("train", 0, [3, 12]),
    "row 42 is in train of client 0 and in test of client 2": lambda: with_rows("train", 0, [3, 42]),
    "row 40 is in val of client 2 and in test of client 1": lambda: with_rows("test", 1, [29, 40]),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_invalid_partition_is_refused(message: str, partition_toy: Callable[..., Partition]) -> None:
    """The line names the rule and its file."""
    with pytest.raises(BadInput) as caught:
        partition_toy(WRONG[message])
    assert str(caught.value).startswith(f"partition 'mine' of {Path(__file__).resolve()}: {message}")


def test_a_rule_must_return_the_same_rows_again(partition_toy: Callable[..., Partition]) -> None:
    """Draws that do not depend on the seed cannot be repeated."""
    draws = np.random.default_rng()

    def at_random() -> Partition:
        order = draws.permutation(ROWS)
        return partition({name: [order[rows] for rows in part] for name, part in good().items()})

    with pytest.raises(BadInput, match=r"partition 'mine' of .*: returned other rows for the same seed .*default_rng"):
        partition_toy(at_random)


def test_a_rule_must_return_the_same_nodes_again() -> None:
    """The parts of a subgraph are positions in its nodes, so they may agree although the nodes differ."""
    draws, pairs = np.random.default_rng(), np.zeros((2, 0), dtype=np.int64)
    graph = Dataset("toy", "graph", np.zeros((ROWS, 1), np.float32), np.arange(ROWS) % 2, 2, edges=pairs)

    def subgraphs(dataset: Dataset, clients: int, seed: int) -> Partition:
        nodes = tuple(np.split(draws.permutation(ROWS), clients))
        parts = np.split(np.arange(ROWS // clients), [5, 10])
        return Partition(*((part,) * clients for part in parts), nodes=nodes, edges=(pairs,) * clients)

    rule("subgraphs", kinds=("graph",))(subgraphs)
    try:
        with pytest.raises(BadInput, match=r"partition 'subgraphs' of .*: returned other rows for the same seed"):
            data.partition(graph, "subgraphs", 4, 0)
    finally:
        data.PARTITIONS.pop("subgraphs")
        TRAITS.pop("subgraphs")


def test_an_error_in_a_rule_names_its_line(partition_toy: Callable[..., Partition]) -> None:
    def broken() -> Any:
        return 1 // 0

    line = broken.__code__.co_firstlineno + 1
    with pytest.raises(
        BadInput, match=rf"partition 'mine' of .*: failed in line {line} \(ZeroDivisionError: .*correct it there"
    ):
        partition_toy(broken)


def test_only_the_bounds_of_an_option_of_two_types_are_checked(partition_toy: Callable[..., Partition]) -> None:
    @rule("mine", kinds=("images",))
    def mine(
        dataset: Dataset, clients: int, seed: int, *, size: Annotated[int | str, AtLeast(2), "rows"] = "all"
    ) -> Partition:
        return partition(good())

    for size in (2, "few"):
        assert data.partition(toy(), "mine", 4, 0, size=size).clients == 4
    with pytest.raises(BadInput, match=r"partition.size: 1 is out of range; it must be at least 2"):
        data.partition(toy(), "mine", 4, 0, size=1)


def test_unusual_but_valid_partitions_are_accepted(partition_toy: Callable[..., Partition]) -> None:
    """No validation rows, rows of no client, and a test set or training rows that clients share."""
    parts = good()
    parts["val"] = [np.zeros(0, dtype=np.int64)] * 4
    parts["test"] = [np.concatenate(parts["test"])] * 4
    parts["train"][1] = parts["train"][0]
    assert partition_toy(lambda: partition(parts)).clients == 4


def test_an_error_in_a_loader_names_its_line(tmp_path: Path) -> None:
    """A missing file counts as a failed download if it is in the folder of downloads."""

    @dataset("broken")
    def broken(root: Path) -> Any:
        return 1 // 0

    @dataset("absent")
    def absent(root: Path) -> Any:
        return (root / "nothing").read_text()

    @dataset("elsewhere")
    def elsewhere(root: Path) -> Any:
        return Path("nothing.csv").read_text()

    line = broken.__code__.co_firstlineno + 2
    try:
        with pytest.raises(BadInput, match=rf"its loader failed in {Path(__file__).resolve()}, line {line} \(ZeroDiv"):
            data.load("broken", tmp_path)
        with pytest.raises(BadInput, match=r"cannot be read .FileNotFoundError.*run the download stage again"):
            data.load("absent", tmp_path)
        with pytest.raises(BadInput, match=r"its loader failed in .*No such file.*'nothing\.csv'"):
            data.load("elsewhere", tmp_path)
    finally:
        del DATASETS["broken"], DATASETS["absent"], DATASETS["elsewhere"]
