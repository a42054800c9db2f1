"""SFL: its learned graph, and models propagated along it."""

import pytest
import tiny
import torch
from naive import build_method, last_report
from torch.nn import functional as F

from fedweave.engine.protocol import init_parameters
from fedweave.families.hypernetworks import draw_vectors
from fedweave.families.networks import Architecture
from fedweave.families.networks.antisymmetric import AntisymmetricGraph, keep_largest
from fedweave.methods import sfl
from fedweave.tensors import trees
from fedweave.tensors.trees import Params

EMPTY = torch.tensor([2])


def test_the_antisymmetric_graph_has_one_direction_per_pair() -> None:
    """It has no loops, and k entries per row."""
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
    report, method = last_report("sfl"), build_method("sfl")
    a = torch.eye(5, dtype=torch.float64)
    a[tiny.ring(5)[0], tiny.ring(5)[1]] = 1.0
    a = a / 3
    torch.testing.assert_close(method.weights(report.state.server, torch.arange(5))[0], a @ a @ a)
    shared, own = method.download(report.state.server, torch.tensor([3, 1]))
    stacked = trees.to_matrix(report.state.server["models"])
    torch.testing.assert_close(trees.to_matrix(own["mixture"]), (a @ a @ a @ stacked)[[3, 1]])
    torch.testing.assert_close(trees.to_matrix(trees.broadcast(shared["common"], 1))[0], (a @ a @ a @ stacked).mean(0))


def test_sfl_star_fits_its_graph_to_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are those of torch.optim.SGD on the same first network. The share β of fitted rows is added to A."""
    settings = {"beta": 0.3, "layers": 1, "neighbours": 2, "fit_steps": 4, "fit_lr": 5.0, "fit_decay": 0.01}
    report, method = last_report("sfl"), build_method("sfl", learned_graph=True, **settings)
    begun: list[Params] = []

    def started(kind: Architecture, *args: object) -> Params:
        begun.append(init_parameters(kind, *args))
        return begun[-1]

    vectors = []

    def drawn(*args: object) -> torch.Tensor:
        vectors.append(draw_vectors(*args))
        return vectors[-1]

    monkeypatch.setattr(sfl, "init_parameters", started)
    monkeypatch.setattr(sfl, "draw_vectors", drawn)
    weights = method.weights(report.state.server, torch.arange(5))[0]
    network = AntisymmetricGraph(5, method.node_size, saturation=method.saturation).double()
    network.load_state_dict({**begun[0], "first": vectors[0], "second": vectors[1]})
    before = network().detach()
    thetas = trees.to_matrix(report.state.server["models"])
    distances = torch.stack([torch.stack([(a - b).norm() for b in thetas]) for a in thetas])
    target = distances / distances.norm(dim=1, keepdim=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=5.0, weight_decay=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(F.normalize(network()), target).backward()
        optimizer.step()
    fitted = keep_largest(network().detach(), 2)
    assert (fitted - keep_largest(before, 2)).abs().max() > 1e-3, "the steps change the graph"
    plain = build_method("sfl", layers=1).weights(report.state.server, torch.arange(5))[0]
    for row, old, new in zip(fitted, plain, weights, strict=True):
        torch.testing.assert_close(new, 0.7 * old + 0.3 * row / row.sum() if row.any() else old)
    vectors.clear()
    for round in range(4):
        method.weights({**report.state.server, "round": torch.tensor(round)}, EMPTY)
    assert len({tuple(rows[0].tolist()) for rows in vectors}) == 8, "every round draws both vectors of a client anew"
    # A client without edges to it has a row of zeros.
    monkeypatch.setattr(sfl, "keep_largest", lambda weights, k: keep_largest(weights, k).index_fill(0, EMPTY, 0.0))
    torch.testing.assert_close(method.weights(report.state.server, EMPTY)[0], plain[EMPTY])
