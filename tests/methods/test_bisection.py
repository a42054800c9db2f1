"""Clusters that split: the part of clients without an update, and the cluster of newcomers."""

import pytest
import tiny
import torch
from naive import FED, SEED, build_method
from torch import Tensor

from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method, Server
from fedweave.engine.start import admission, begin
from fedweave.tensors import trees


def pulled(method: Method, server: Server, ids: Tensor, signs: Tensor) -> Server:
    """The server after clients `ids` have moved along one direction, forwards or backwards."""
    models = trees.take(server["models"], ids)
    uploads = trees.tree_map(lambda value: value + trees.column(signs, value), models)
    return method.aggregate(server, ids, {"model": uploads}, FED.sizes[ids])


@pytest.mark.parametrize("signs", [[1, 1, 1, -1], [1, -1, -1, -1], [-1, 1, 1, 1], [-1, -1, -1, 1]])
def test_a_client_without_an_update_stays_in_the_larger_part(signs: list[int]) -> None:
    """The last client has never taken part, and four others split into three and one."""
    method = build_method("cfl", eps1=100.0, eps2=0.0, first_split=0)
    server = begin(method, FED, SEED, Loop()).server
    labels = pulled(method, server, torch.arange(4), torch.tensor(signs, dtype=torch.float64))["labels"].tolist()
    alone = next(i for i, sign in enumerate(signs) if signs.count(sign) == 1)
    assert labels == [int(i == alone) for i in range(tiny.CLIENTS)]


@pytest.mark.parametrize("name", ["cfl", "gcfl_plus"])
@pytest.mark.parametrize("labels", [[0, 0, 1], [0, 1, 1], [2, 1, 2], [1, 0, 1]])
def test_newcomers_join_the_largest_cluster(name: str, labels: list[int]) -> None:
    """They get its model. The others keep theirs."""
    method, present = build_method(name), FED.select(torch.arange(3))
    server = begin(method, present, SEED, Loop()).server
    own = torch.tensor(labels, dtype=torch.float64)
    models = trees.tree_map(lambda value: value + trees.column(own, value), server["models"])
    server = {**server, "models": models, "labels": torch.tensor(labels)}
    after = method.admit(server, {}, 2, admission(method, FED, SEED, Loop())[0])
    largest = max(labels, key=labels.count)
    assert after["labels"].tolist() == [*labels, largest, largest]
    sources = torch.tensor([0, 1, 2, labels.index(largest), labels.index(largest)])
    for name_, value in after["models"].items():
        assert torch.equal(value, models[name_][sources])


@pytest.mark.parametrize(("eps1", "eps2", "splits"), [(0.2, 1.8, True), (0.2, 3.3, False), (0.0, 1.8, False)])
def test_a_cluster_splits_at_a_stationary_mean_and_one_large_update(eps1: float, eps2: float, splits: bool) -> None:
    """‖mean Δ‖ < ε1 and max ‖Δ‖ > ε2. Here the lengths are 1, 1, 1 and 3, and the mean is 0."""
    method = build_method("cfl", eps1=eps1, eps2=eps2, first_split=0)
    server = begin(method, FED, SEED, Loop()).server
    length = trees.to_matrix(server["models"]).shape[1] ** 0.5
    signs = torch.tensor([1.0, 1.0, 1.0, -3.0], dtype=torch.float64) / length
    labels = pulled(method, server, torch.arange(4), signs)["labels"].tolist()
    assert labels == [0, 0, 0, int(splits), 0]
