"""The collaboration graph as data: mixtures, similarities, graphs, and measures of weights."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import numbers
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.graphs import weights as collaboration
from fedweave.models import build, layers

pytestmark = pytest.mark.usefixtures("seeded")

N = 6
LAYERS = [("a.weight", "a.bias"), ("b.weight",)]


def random_models() -> dict[str, Tensor]:
    return {"a.weight": numbers(N, 3, 2), "a.bias": numbers(N, 3), "b.weight": numbers(N, 2, 2)}


def test_every_layer_is_mixed_with_its_own_weights() -> None:
    models, weights = random_models(), torch.rand(2, 3, N, dtype=torch.float64)
    mixed = collaboration.mix_models(weights, models, LAYERS)
    torch.testing.assert_close(mixed["a.weight"], torch.einsum("pn,nij->pij", weights[0], models["a.weight"]))
    torch.testing.assert_close(mixed["a.bias"], weights[0] @ models["a.bias"])
    torch.testing.assert_close(mixed["b.weight"], torch.einsum("pn,nij->pij", weights[1], models["b.weight"]))
    same = collaboration.mix_models(weights[:1], models, LAYERS)
    torch.testing.assert_close(same["b.weight"], torch.einsum("pn,nij->pij", weights[0], models["b.weight"]))
    identity = collaboration.mix_models(torch.eye(N).double().expand(2, -1, -1), models, LAYERS)
    torch.testing.assert_close(identity, models, rtol=0, atol=0)
    assert list(collaboration.mix_models(weights, {"a.bias": models["a.bias"]}, LAYERS)) == ["a.bias"]


def test_layers_of_a_model_are_mixed() -> None:
    model = build("small_cnn", (1, 8, 8), 3)
    stacked = {n: torch.stack([p.detach(), 2 * p.detach()]) for n, p in model.named_parameters()}
    mixed = collaboration.mix_models(torch.full((1, 1, 2), 0.5), stacked, [*layers(model).values()])
    torch.testing.assert_close(mixed, {n: 1.5 * v[:1] for n, v in stacked.items()})


def test_layer_cosines() -> None:
    updates = random_models()
    updates = {n: v.index_fill(0, torch.tensor([4]), 0.0) for n, v in updates.items()}
    cosines = collaboration.layer_cosines(updates, LAYERS)
    flat = torch.cat([updates["a.weight"].flatten(1), updates["a.bias"]], 1)
    assert cosines.shape == (2, N, N)
    torch.testing.assert_close(cosines[0, 0, 1], F.cosine_similarity(flat[0], flat[1], dim=0))
    torch.testing.assert_close(cosines[:, 0, 0], torch.ones(2).double())
    assert torch.equal(cosines[:, 4], torch.zeros(2, N).double())


def test_knn_graph_keeps_the_most_similar() -> None:
    x, k = numbers(20, 5), 3
    edges = collaboration.knn_graph(x, k)
    pairs = {(int(a), int(b)) for a, b in edges.T}
    assert len(pairs) == edges.shape[1]
    assert all((b, a) in pairs and a != b for a, b in pairs)
    nearest = F.cosine_similarity(x[:, None], x, dim=2).fill_diagonal_(-9).topk(k).indices
    chosen = {(v, int(u)) for v in range(20) for u in nearest[v]}
    assert pairs == chosen | {(b, a) for a, b in chosen}
    assert collaboration.knn_graph(x, 0).shape == (2, 0)
    assert torch.equal(collaboration.knn_graph(x, 99), collaboration.complete_graph(20))
    with pytest.raises(BadInput):
        collaboration.knn_graph(x, -1)


def test_equal_neighbours_are_taken_in_order() -> None:
    """The graph is the same on every machine."""
    edges = collaboration.knn_graph(torch.ones(40, 3, dtype=torch.float64), 2)
    pairs = {(int(a), int(b)) for a, b in edges.T if a > b}
    assert pairs == {(1, 0)} | {(i, j) for i in range(2, 40) for j in (0, 1)} | {(2, 1)}


def test_a_row_without_weight_has_no_shares() -> None:
    rows = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert collaboration.row_shares(rows).tolist() == [[0.25, 0.75], [0.0, 0.0]]


@pytest.mark.parametrize(("layers", "clients", "small"), [(1, 8192, True), (1, 8193, False), (2, 8192, False)])
def test_graphs_of_all_layers_count_for_the_limit(layers: int, clients: int, small: bool) -> None:
    assert collaboration.is_recordable(layers, clients) == small


def test_threshold_graph() -> None:
    x = torch.cat([numbers(10, 3), numbers(1, 3).expand(2, -1)])
    cosine = F.cosine_similarity(x[:, None], x, dim=2)
    expected = (cosine >= 0.4).fill_diagonal_(False).nonzero().T
    assert torch.equal(collaboration.threshold_graph(x, 0.4), expected)
    assert expected.numel()
    assert collaboration.threshold_graph(x, 1.0).numel() == 0
    assert torch.equal(collaboration.threshold_graph(x, -1.1), collaboration.complete_graph(12))


def test_given_graph_is_symmetrised() -> None:
    stored = np.array([[0, 1, 2, 2, 0], [1, 0, 2, 0, 1]])
    assert collaboration.relation_graph(stored, 4).tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert collaboration.relation_graph(np.zeros((2, 0), dtype=np.int64), 3).shape == (2, 0)
    for wrong in (stored.T, stored + 3):
        with pytest.raises(BadInput, match="relation"):
            collaboration.relation_graph(wrong, 4)


def test_simplex_projection_is_the_nearest_point() -> None:
    rows = numbers(5, 8)
    nearest = collaboration.simplex_projection(rows)
    torch.testing.assert_close(nearest.sum(1), torch.ones(5).double())
    assert (nearest >= 0).all()
    # Variational inequality: <rows - nearest, vertex - nearest> <= 0 for every vertex.
    gap = rows - nearest
    assert (gap - (gap * nearest).sum(1, keepdim=True)).max() < 1e-12
    torch.testing.assert_close(collaboration.simplex_projection(nearest), nearest)
    huge = torch.tensor([[3e8, 0.0, -3e8], [1e20, 1e20, 0.0]])
    assert collaboration.simplex_projection(huge).tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]


def test_a_row_with_nan_has_no_projection() -> None:
    """As the cosines of models that diverged. The run continues and says so; an index out of range would end it."""
    rows = torch.tensor([[0.2, torch.nan, 0.0], [torch.nan] * 3, [2.0, 0.0, 0.0]])
    nearest = collaboration.simplex_projection(rows)
    assert nearest[:2].isnan().all()
    assert nearest[2].tolist() == [1.0, 0.0, 0.0]


def test_shares_of_oneself_of_similar_and_of_other_clients() -> None:
    """Twenty clients in groups of four: own + 3 similar + 16 other is a complete row."""
    weights = torch.rand(6, 20, 20, dtype=torch.float64)
    weights /= weights.sum(-1, keepdim=True)
    group = torch.arange(20) // 4
    shares = collaboration.weight_shares(weights, group)
    for share in shares.values():
        assert share.own + 3 * share.similar + 16 * share.other == pytest.approx(1.0)
    assert shares["all"].own == pytest.approx((shares["shallow"].own + shares["deep"].own) / 2)
    assert shares["deep"].own == pytest.approx(float(weights[3:].diagonal(dim1=1, dim2=2).mean()))
    alone = collaboration.weight_shares(weights[:1, :3, :3], torch.arange(3))
    assert math.isnan(alone["all"].similar)
    assert alone["deep"] == pytest.approx(alone["all"], nan_ok=True)
