"""Hypernetworks, attention and graph encoders."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import numbers
from torch.nn import Module

from fedweave.client.functional import invoke
from fedweave.errors import BadInput
from fedweave.families.networks import (
    GCNEncoder,
    LayerWeights,
    ModelAttention,
    SheafDiffusion,
    TargetHypernetwork,
    count_sketch,
    layer_norm,
)
from fedweave.families.networks.attention import AttentionHeads, DotAttention, FreeAttention, add_newcomers
from fedweave.families.networks.graph import GATEncoder
from fedweave.families.networks.mlp import FlatHypernetwork, apply_wide_head, backpropagate_heads, head_gradients
from fedweave.graphs import weights as collaboration
from fedweave.models import build, parameter_count
from fedweave.tensors import dropout_keys

pytestmark = pytest.mark.usefixtures("seeded")

N = 6
SHAPES = {"conv.weight": (4, 3, 2, 2), "conv.bias": (4,), "scale": (), "fc.weight": (2, 5)}


def test_target_hypernetwork_has_one_head_per_tensor() -> None:
    module, z = TargetHypernetwork(7, SHAPES).double(), numbers(3, 7)
    models = module(z)
    assert {name: tuple(value.shape) for name, value in models.items()} == {n: (3, *s) for n, s in SHAPES.items()}
    trunk = 7 * 100 + 100 + 3 * (100 * 100 + 100)
    assert parameter_count(module) == trunk + 101 * (48 + 4 + 1 + 10)
    h = z
    for i in range(0, 7, 2):
        h = module.trunk[i](h if i == 0 else F.relu(h))
    torch.testing.assert_close(models["conv.weight"], module.heads[0](h).view(3, 4, 3, 2, 2))
    torch.testing.assert_close({n: v[1:2] for n, v in models.items()}, module(z[1:2]))


@pytest.mark.parametrize("widths", [(4500,), (4096, 3, 401)])
def test_wide_heads_equal_autograd(widths: tuple[int, ...]) -> None:
    """Outputs in pieces, and the gradients of one head for all outputs [3, 4500], and of a head for each."""
    h, heads = numbers(3, 7).requires_grad_(), [torch.nn.Linear(7, width).double() for width in widths]
    outputs = [F.linear(h, head.weight, head.bias) for head in heads]
    with torch.no_grad():
        pieces = [apply_wide_head(h, head) for head in heads]
    torch.testing.assert_close(pieces, outputs, rtol=1e-12, atol=1e-12)
    cotangents = [numbers(3, *shape) for shape in ((64, 64), (3,), (401,))]
    params = {f"{i}.{kind}": getattr(head, kind) for i, head in enumerate(heads) for kind in ("weight", "bias")}
    vector = torch.cat([c.flatten(1) for c in cotangents], 1)
    expected = torch.autograd.grad(torch.cat(outputs, 1), [h, *params.values()], vector)
    detached = {name: value.detach() for name, value in params.items()}
    ours = [backpropagate_heads(detached, cotangents), *head_gradients(h.detach(), detached, cotangents).values()]
    torch.testing.assert_close(ours, [*expected], rtol=1e-12, atol=1e-12)


def test_generated_model_runs() -> None:
    target = build("lenet16", (1, 16, 16), 3)
    module = TargetHypernetwork(5, {n: tuple(p.shape) for n, p in target.named_parameters()}, width=8)
    model = {n: v[0] for n, v in module(torch.randn(2, 5)).items()}
    out = torch.func.functional_call(target, model, (torch.randn(4, 1, 16, 16),))
    out.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_flat_hypernetwork() -> None:
    module, z = FlatHypernetwork(128, SHAPES).double(), numbers(3, 128)
    assert parameter_count(module) == 2 * (128 * 128 + 128) + 129 * 63
    models = module(z, torch.arange(3))
    flat = module.head(F.relu(module.fc2(F.relu(module.fc1(z)))))
    torch.testing.assert_close(torch.cat([v.reshape(3, -1) for v in models.values()], 1), flat)
    first, again, other = (module(z, torch.arange(3), key=dropout_keys.key(i))["conv.bias"] for i in (1, 1, 2))
    assert torch.equal(first, again)
    some = module(z, torch.tensor([2, 0]), key=dropout_keys.key(1))["conv.bias"]
    torch.testing.assert_close(some, first[[2, 0]])  # masks belong to clients, not to positions
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("clients", "count"), [(10, 35_450), (100, 80_900)])
def test_layer_weights_have_the_published_size_and_rows_of_sum_one(clients: int, count: int) -> None:
    """The published size counts the embedding of 100 too."""
    module = LayerWeights(clients, 5)
    assert parameter_count(module) + 100 == count
    alpha = module(torch.randn(100), torch.tensor(0))
    assert alpha.shape == (5, clients)
    assert (alpha > 0).all()
    torch.testing.assert_close(alpha.sum(1), torch.ones(5))


def test_layer_weights_mapped_over_clients() -> None:
    modules = [LayerWeights(4, 3, embed=5, width=6).double() for _ in range(4)]
    v, i, (params, _) = numbers(4, 5), torch.arange(4), torch.func.stack_module_state(modules)
    alpha = torch.func.vmap(lambda p, v, i: invoke(modules[0], p, "forward", v, i))(params, v, i)
    torch.testing.assert_close(alpha, torch.stack([m(*x) for m, *x in zip(modules, v, i, strict=True)]))


def test_relu_norm_falls_back_to_the_own_model() -> None:
    module = LayerWeights(4, 2, embed=5, width=6, relu_norm=True).double()
    with torch.no_grad():
        module.heads.weight[:4] = module.heads.bias[:4] = -1.0
    alpha = module(numbers(5), torch.tensor(2))
    assert alpha[0].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert alpha[1].max() < 1.0
    torch.testing.assert_close(alpha.sum(1), torch.ones(2).double())
    alpha.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_layer_norm_has_no_affine_part() -> None:
    h = layer_norm(5.0 + 3.0 * numbers(N, 2000))
    torch.testing.assert_close(h.mean(1), torch.zeros(N).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(h.var(1, correction=0), torch.ones(N).double(), rtol=0, atol=1e-4)
    assert parameter_count(ModelAttention(40)) == 8 * (8 * 40 + 16)


@pytest.mark.parametrize("h_scale", ["none", "rsqrt"])
@pytest.mark.parametrize("score", ["gat", "gatv2"])
def test_model_attention_is_row_stochastic_and_equivariant(score: str, h_scale: str) -> None:
    module, models = ModelAttention(40, score=score, h_scale=h_scale).double(), numbers(N, 40)
    r, heads = module(models), module.head_weights(models)
    torch.testing.assert_close(r.sum(1), torch.ones(N).double())
    assert heads.shape == (8, N, N)
    assert (r > 0).all()
    torch.testing.assert_close(r, heads.mean(0))
    p = torch.randperm(N)
    torch.testing.assert_close(module(models[p]), r[p][:, p])


@pytest.mark.parametrize("score", ["gat", "gatv2"])
def test_attention_scores_by_definition(score: str) -> None:
    module, h = AttentionHeads(7, width=3, heads=2, score=score).double(), numbers(N, 7)
    weights = module(h)
    for k in range(2):
        a, z = module.a[k], h @ module.source[k].T
        q = z if module.query is None else h @ module.query[k].T
        pairs = [[torch.cat([q[i], z[j]]) if score == "gat" else q[i] + z[j] for j in range(N)] for i in range(N)]
        scores = torch.stack(
            [
                torch.stack([F.leaky_relu(a @ x, 0.2) if score == "gat" else a @ F.leaky_relu(x, 0.2) for x in row])
                for row in pairs
            ]
        )
        torch.testing.assert_close(weights[k], scores.softmax(1))


def test_every_row_of_a_gat_head_has_the_same_ranking_of_clients() -> None:
    """LeakyReLU is monotone: a known limit of pFedGAT, which gatv2 does not have."""
    models = numbers(N, 40)
    orders = ModelAttention(40).double().head_weights(models).argsort(-1)
    assert (orders == orders[:, :1]).all()
    free = ModelAttention(40, score="gatv2").double().head_weights(models).argsort(-1)
    assert not (free == free[:, :1]).all()


def test_count_sketch_keeps_inner_products() -> None:
    x, key = numbers(4, 500), dropout_keys.key(3)
    exact = x @ x.T
    sketches = torch.stack([count_sketch(x, 64, dropout_keys.fold(key, i)) for i in range(400)])
    mean = (sketches @ sketches.mT).mean(0)
    # Standard error of one entry: about |x|^2 sqrt(2 / 64 / 400).
    assert (mean - exact).abs().max() < 4 * 500 * math.sqrt(2 / 64 / 400)
    torch.testing.assert_close(count_sketch(x[:2], 64, key), count_sketch(x, 64, key)[:2])


def test_free_attention_starts_as_the_identity_and_grows_with_clients() -> None:
    module, x = FreeAttention(N).double(), numbers(N, 4)
    assert torch.equal(module(x), x)
    with torch.no_grad():
        module.matrix.add_(numbers(N, N))
    grown = add_newcomers(module.matrix, 2)
    assert torch.equal(grown[:N, :N], module.matrix)
    assert torch.equal(grown[N:], torch.eye(N + 2)[N:].double())
    assert torch.equal(grown[:N, N:], torch.zeros(N, 2).double())


def test_dot_attention_supports_any_number_of_clients() -> None:
    module, x = DotAttention(8).double(), numbers(N, 8)
    q, k, v = module.query(x), module.key(x), module.value(x)
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module.weights(x[:4]).sum(1), torch.ones(4).double())
    assert not torch.equal(module(x, key=dropout_keys.key(0)), module(x))


EDGES = collaboration.relation_graph(np.array([[0, 1, 2, 3], [1, 2, 3, 4]]), N)


@pytest.mark.parametrize("encoder", [SheafDiffusion, GCNEncoder, GATEncoder])
def test_encoders_are_interchangeable(encoder: Callable[..., Module]) -> None:
    module, x = encoder(5, 3, depth=2, dropout=0.5).double(), numbers(N, 5)
    out = module(x, EDGES)
    assert out.shape == (N, 3)
    assert torch.equal(module(x, EDGES, key=dropout_keys.key(1)), module(x, EDGES, key=dropout_keys.key(1)))
    assert not torch.equal(module(x, EDGES, key=dropout_keys.key(1)), out)
    place = torch.randperm(N)
    back = torch.argsort(place)
    torch.testing.assert_close(module(x[back], place[EDGES]), out[back])

    jacobian = torch.autograd.functional.jacobian(lambda x: module(x, EDGES), x).abs().sum((1, 3))
    reach = torch.eye(N, dtype=torch.bool).index_put((EDGES[0], EDGES[1]), torch.tensor(True)).double()
    assert torch.equal(jacobian > 0, (reach @ reach) > 0)
    assert module(x, EDGES[:, :0]).shape == (N, 3)


def test_gcn_encoder_is_dense_propagation() -> None:
    module, x = GCNEncoder(5, 3, width=4, depth=3).double(), numbers(N, 5)
    a = torch.eye(N, dtype=torch.float64).index_put((EDGES[0], EDGES[1]), torch.ones((), dtype=torch.float64))
    a = a.sum(1).rsqrt().diag() @ a @ a.sum(1).rsqrt().diag()
    h = x
    for i, conv in enumerate(module.convs):
        h = a @ (h if i == 0 else F.elu(h)) @ conv.weight + conv.bias
    torch.testing.assert_close(module(x, EDGES), h)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GATEncoder(5, 3, width=20, heads=8), "multiple of heads"),
        (lambda: GATEncoder(5, 3, depth=0), "depth: 0 is not a number of layers"),
        (lambda: GCNEncoder(5, 3, depth=-3), "depth: -3 is not a number of layers"),
        (lambda: ModelAttention(40, score="gat3"), "score: 'gat3' is unknown"),
        (lambda: ModelAttention(40, h_scale="root"), "h_scale: 'root' is unknown"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], Module], words: str) -> None:
    """Methods of plug-ins give the networks numbers that no declared setting has checked."""
    with pytest.raises(BadInput, match=words):
        make()


def test_layers_of_the_flat_hypernetwork_drop_different_units() -> None:
    """With identity weights, a unit reaches the head only if neither mask drops it."""
    network, n, width = FlatHypernetwork(64, {"w": (1,)}, width=64, dropout=0.5), 50, 64
    with torch.no_grad():
        for layer in (network.fc1, network.fc2):
            layer.weight.copy_(torch.eye(width))
            layer.bias.zero_()
        out = network.hidden_features(torch.ones(n, width), torch.arange(n), key=dropout_keys.key(1))
    assert abs(float((out > 0).float().mean()) - 0.25) < 4 * (0.25 * 0.75 / (n * width)) ** 0.5
