"""SFL: its learned graph, and models propagated along it."""

import tiny
import torch
from naive import made, ran

from fedweave.server_networks.antisymmetric import AntisymmetricGraph, keep_largest
from fedweave.tensors import trees


def test_antisymmetric_graph() -> None:
    """At most one direction per pair, no loops, and k entries per row."""
    g = torch.Generator().manual_seed(0)
    network = AntisymmetricGraph(8, 6)
    for vectors in (network.first, network.second):
        torch.nn.init.normal_(vectors, generator=g)
    weights = network().detach()
    assert not (weights * weights.T).any()
    assert (weights > 0).any()
    sparse = keep_largest(weights, 2)
    assert ((sparse > 0).sum(1) <= 2).all()
    torch.testing.assert_close(sparse.sum(1), weights.topk(2, 1).values.sum(1))


def test_sfl_propagation() -> None:
    """u = A³ Θ with A the ring plus loops, rows of sum 1."""
    report, method = ran("sfl"), made("sfl")
    a = torch.eye(5, dtype=torch.float64)
    a[tiny.ring(5)[0], tiny.ring(5)[1]] = 1.0
    a = a / 3
    torch.testing.assert_close(method.weights(report.state.server, torch.arange(5))[0], a @ a @ a)
    shared, own = method.download(report.state.server, torch.tensor([3, 1]))
    stacked = trees.to_matrix(report.state.server["models"])
    torch.testing.assert_close(trees.to_matrix(own["mixture"]), (a @ a @ a @ stacked)[[3, 1]])
    torch.testing.assert_close(trees.to_matrix(trees.broadcast(shared["common"], 1))[0], (a @ a @ a @ stacked).mean(0))
