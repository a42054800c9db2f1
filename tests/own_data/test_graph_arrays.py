"""`Data` of PyTorch Geometric as the graphs of clients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

import fedweave as fw
from fedweave.errors import BadInput

NODES, TRAIN, VAL = 10, range(6), range(6, 8)


def mask(rows: range) -> torch.Tensor:
    """True for some nodes."""
    return torch.isin(torch.arange(NODES), torch.tensor(rows))


def graph(seed: int, **attributes: Any) -> Data:
    """Ten nodes of two classes on a path, with masks; the last node is in none."""
    x = torch.tensor(np.random.default_rng(seed).normal(size=(NODES, 4)), dtype=torch.float32)
    path = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    masks = {"train_mask": mask(TRAIN), "val_mask": mask(VAL), "test_mask": mask(range(8, 9))}
    return Data(**{"x": x, "edge_index": path, "y": torch.arange(NODES) % 2} | masks | attributes)


def test_data_are_the_same_as_arrays_with_their_split() -> None:
    """In a list and in a mapping. A label may be a column, and newcomers may bring `Data` too."""
    split = ["train"] * 6 + ["val"] * 2 + ["test", ""]
    parts = [(one.x.numpy(), one.edge_index.numpy(), one.y.numpy()) for one in (graph(0), graph(1))]
    expected = fw.Federation.from_graphs(dict(zip("ab", parts, strict=True)), split=[split, split])
    for column in (False, True):
        graphs = {name: graph(seed) for name, seed in (("a", 0), ("b", 1))}
        if column:
            graphs = {name: one.update({"y": one.y[:, None]}) for name, one in graphs.items()}
        federation = fw.Federation.from_graphs(graphs)
        assert federation.partition_block == expected.partition_block
        assert (
            federation.notes
            == expected.notes
            == ("2 of 20 nodes have no label or no part: they stay in the graph, outside training and test",)
        )
    assert fw.Federation.from_graphs([graph(0), graph(1)]).partition_block == expected.partition_block
    run = fw.fit("fedavg", federation, rounds=1, progress=False)
    assert run.join({"c": graph(2)}, rounds=1).clients == ("a", "b", "c")


def test_an_option_that_splits_goes_before_masks() -> None:
    federation = fw.Federation.from_graphs([graph(0), graph(1)], shares={"train": 0.4, "val": 0.2, "test": 0.4})
    assert [len(rows) for rows in federation.partition.train] == [4, 4]
    assert federation.notes == ()


def test_without_masks_the_default_splits() -> None:
    bare = dict.fromkeys(("train_mask", "val_mask", "test_mask"))
    federation = fw.Federation.from_graphs([graph(0, **bare), graph(1, **bare)])
    assert [len(rows) for rows in federation.partition.train] == [6, 6]


def test_weights_of_edges_are_not_used_and_a_note_says_so() -> None:
    federation = fw.Federation.from_graphs([graph(0, edge_attr=torch.ones(9, 2)), graph(1)])
    assert federation.notes[-1] == "edge_attr of 1 graph is not used: all edges count the same"


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "one graph": (lambda: graph(0), "is one graph; give a list or a mapping with one of each client"),
    "a batch": (lambda: Batch.from_data_list([graph(0), graph(1)]), "is one graph; give a list"),
    "no features": (lambda: [graph(0), graph(1, x=None)], "'client 1' has no x: Data.*give .x "),
    "some with masks": (
        lambda: [graph(0), graph(1, val_mask=None)],
        r"'client 0' has masks of train, val, test, and 'client 1' of train, test; give all graphs the same",
    ),
    "several splits": (
        lambda: [graph(0, train_mask=torch.ones(NODES, 3, dtype=torch.bool))],
        r"a train_mask of bool \[10, 3\].*of several splits choose one, such as train_mask\[:, 0\]",
    ),
    "numbers": (lambda: [graph(0, val_mask=torch.arange(2))], r"a val_mask of int64 \[2\].*each of 10 nodes"),
    "two parts": (lambda: [graph(0, val_mask=mask(range(5, 7)))], "'client 0' has node 5 in two of its masks"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_data_are_refused_in_one_line(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(BadInput, match=words) as caught:
        fw.Federation.from_graphs(make())
    assert "\n" not in str(caught.value)
