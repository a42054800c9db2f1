"""Client models: published sizes, stable layer names, the same numbers mapped over clients as in sequence."""

from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from fedweave.models import MODELS, build, gcn, gcn_norm, layers, parameter_count
from fedweave.models.base import BatchNorm, ClientModel, find_constants, has_running_moments
from fedweave.models.cnn import to_channels_last
from fedweave.models.gcn import propagate
from fedweave.models.gru import GRUCell
from fedweave.models.registry import capabilities
from fedweave.tensors import dropout_keys
from tests.study.test_spec import refused

CLIENTS, ROWS = 3, 4
KEY = dropout_keys.key(3)
CIFAR, GREY = (3, 32, 32), (1, 28, 28)
COUNTS = [
    ("aghn_cnn", CIFAR, 10, {}, 878_730),
    ("aghn_cnn", CIFAR, 100, {}, 924_900),
    ("lenet16", CIFAR, 10, {"batch_norm": True}, 121_278),
    ("lenet16", CIFAR, 100, {"batch_norm": True}, 128_928),
    ("lenet16", CIFAR, 100, {}, 128_832),
    ("lenet16", GREY, 10, {}, 85_822),
    ("lenet16", GREY, 62, {}, 90_242),
    ("moon", CIFAR, 10, {}, 62_006),
    ("moon", CIFAR, 100, {}, 69_656),
    ("moon", GREY, 10, {}, 44_426),
    ("moon3", CIFAR, 10, {}, 64_326),
    ("moon3", CIFAR, 100, {}, 71_976),
    ("moon3", GREY, 10, {}, 46_746),
    ("gru", (12, 2), 12, {}, 26_177),
    ("mlp", (2,), 2, {"hidden": [16, 16]}, 354),
    ("tpt_mlp", (6, 1), 6, {}, 486),
    ("resnet18", CIFAR, 100, {}, 11_227_812),
    ("resnet18", (3, 64, 64), 200, {}, 11_279_112),
    ("resnet18", (3, 64, 64), 4, {}, 11_178_564),
]
SUBGRAPHS = [
    ("cora", 1433, 7, 200_064, 903),
    ("citeseer", 3703, 6, 490_624, 774),
    ("pubmed", 500, 3, 80_640, 387),
    ("computer", 767, 10, 114_816, 1_290),
    ("photo", 745, 8, 112_000, 1_032),
    ("arxiv", 128, 40, 33_024, 5_160),
]
VECTORS = Path(mkdtemp(), "vectors.safetensors")
save_file({"embedding.weight": torch.arange(36.0).reshape(12, 3).sin()}, VECTORS)
# Small instances of every model, with the shape of one client's batch.
SMALL = {
    "mlp": ((5,), {"hidden": [6, 4]}),
    "linear": ((5,), {}),
    "tpt_mlp": ((6, 2), {}),
    "cnn1d": ((2, 1, 12), {"hidden": 4}),
    "gru_window": ((2, 1, 6), {"hidden": 5}),
    "aghn_cnn": ((1, 16, 16), {}),
    "lenet16": ((1, 16, 16), {"batch_norm": True}),
    "moon": ((1, 16, 16), {}),
    "moon3": ((1, 16, 16), {}),
    "small_cnn": ((1, 8, 8), {}),
    "resnet18": ((1, 32, 32), {}),
    "torchvision": ((1, 32, 32), {"arch": "shufflenet_v2_x0_5"}),
    "word_vectors": ((5,), {"hidden": 4, "weights": str(VECTORS)}),
    "gru": ((4, 2), {"hidden": 5}),
    "gcn": ((6,), {"hidden": 5, "dropout": 0.4}),
}
NORMALISED = ("aghn_cnn", "lenet16", "small_cnn", "resnet18", "torchvision")


def make(name: str, outputs: int = 3, seed: int = 0) -> ClientModel:
    shape, options = SMALL[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(name, shape, outputs, **options).double()


def batch(name: str, seed: int = 0) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """One client's inputs."""
    g = torch.Generator().manual_seed(seed)
    shape, _ = SMALL[name]
    if name == "gcn":
        pairs = torch.tensor([[0, 1, 2, 3, seed % 4], [1, 2, 3, 4, 4]])
        edges, weight = gcn_norm(torch.cat([pairs, pairs.flip(0)], 1).unique(dim=1), 5, torch.float64)
        padding = 16 - edges.shape[1]
        return (torch.randn(5, 6, generator=g).double(), F.pad(edges, (0, padding)), F.pad(weight, (0, padding)))
    if name in ("gru", "tpt_mlp"):
        return torch.randn(ROWS, shape[0] + 3, shape[1], generator=g).double()
    return torch.randn(ROWS, *shape, generator=g).double()


def client_axis(inputs: list) -> Tensor | tuple[Tensor, ...]:
    return tuple(map(torch.stack, zip(*inputs, strict=True))) if isinstance(inputs[0], tuple) else torch.stack(inputs)


@pytest.mark.parametrize(("name", "shape", "outputs", "options", "count"), COUNTS)
def test_published_parameter_counts(name: str, shape: tuple[int, ...], outputs: int, options: dict, count: int) -> None:
    with torch.device("meta"):
        assert parameter_count(build(name, shape, outputs, **options)) == count


@pytest.mark.parametrize(("name", "features", "classes", "generated", "classifier"), SUBGRAPHS)
def test_published_gcn_counts(name: str, features: int, classes: int, generated: int, classifier: int) -> None:
    model = build("gcn", (features,), classes)
    head = sum(p.numel() for layer in model.head for p in model.get_submodule(layer).parameters())
    assert (parameter_count(model) - head, head) == (generated, classifier)


def test_layer_names_are_stable() -> None:
    assert list(layers(build("aghn_cnn", CIFAR, 10))) == ["conv1", "bn1", "conv2", "bn2", "fc1", "fc"]
    assert list(layers(build("lenet16", GREY, 10))) == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert list(layers(build("gru", (12, 2), 12))) == ["encoder", "decoder", "fc"]
    with torch.device("meta"):
        resnet = layers(build("resnet18", CIFAR, 100))
    assert len(resnet) == 41
    assert "layer2.0.downsample.1" in resnet
    assert layers(build("gcn", (6,), 2))["gcn1"] == ("gcn1.weight", "gcn1.bias")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_what_it_declares(name: str) -> None:
    """BatchNorm layers, by default and with an option."""
    shape, options = SMALL[name]
    choices = [{**options, "batch_norm": has} for has in (True, False)] if "batch_norm" in options else [options]
    for arguments in choices:
        layers_ = [*build(name, shape, 2, **arguments).modules()]
        assert ("batch_norm" in capabilities(name, arguments)) == any(map(has_running_moments, layers_))


@pytest.mark.parametrize("name", MODELS)
def test_mapped_over_clients_equals_one_by_one(name: str) -> None:
    """Training loss, its gradient and the running statistics are equal."""
    template, models = make(name), [make(name, seed=i) for i in range(CLIENTS)]
    params, buffers = stack_module_state(models)
    params = {k: v.detach() for k, v in params.items()}
    inputs = [batch(name, seed=i) for i in range(CLIENTS)]
    noise = torch.stack([dropout_keys.key(7, i) for i in range(CLIENTS)])

    def loss(p: dict, b: dict, x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        out = functional_call(template, {**p, **b}, (x,), {"key": key})
        return out.square().mean(), out

    def one(p: dict, b: dict, x: Tensor, key: Tensor) -> tuple[dict, Tensor, dict]:
        gradient, out = grad(loss, has_aux=True)(p, b, x, key)
        return gradient, out, b

    copies = {k: v.detach().clone() for k, v in buffers.items()}
    gradients, outputs, statistics = vmap(one)(params, copies, client_axis(inputs), noise)
    for i in range(CLIENTS):
        own = {k: v[i].clone().requires_grad_() for k, v in params.items()}
        running = {k: v[i].detach().clone() for k, v in buffers.items()}
        value, out = loss(own, running, inputs[i], noise[i])
        value.backward()
        torch.testing.assert_close(outputs[i], out.detach())
        torch.testing.assert_close({k: v[i] for k, v in gradients.items()}, {k: v.grad for k, v in own.items()})
        torch.testing.assert_close({k: v[i] for k, v in statistics.items()}, running)
    assert all(not torch.equal(statistics[k], v) for k, v in buffers.items() if k not in find_constants(template))


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("rows", [1, 2])
def test_mapped_gradients_of_few_images_equal_those_in_sequence(clients: int, rows: int) -> None:
    """The models have batch normalisation. A single image of a single client is tested too."""
    models = [make("small_cnn", seed=i) for i in range(clients)]
    params, buffers = stack_module_state(models)
    params = {k: v.detach().requires_grad_() for k, v in params.items()}
    images = torch.randn(clients, rows, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(p: dict, b: dict, x: Tensor) -> Tensor:
        outputs = functional_call(models[0], {**p, **{k: v.clone() for k, v in b.items()}}, (x,), {"key": KEY})
        return outputs.log_softmax(-1)[:, 0].sum()

    mapped = torch.autograd.grad(vmap(loss)(params, buffers, images).sum(), [*params.values()])
    for i in range(clients):
        own = {k: v[i].detach().requires_grad_() for k, v in params.items()}
        expected = torch.autograd.grad(loss(own, {k: v[i] for k, v in buffers.items()}, images[i]), [*own.values()])
        torch.testing.assert_close([g[i] for g in mapped], [*expected])


@pytest.mark.parametrize("name", MODELS)
def test_forward_is_the_head_on_features(name: str) -> None:
    model, x = make(name), batch(name)
    with torch.no_grad():
        h = model.features(x)
        expected = h
        for layer in model.head:
            expected = model.get_submodule(layer)(expected)
        torch.testing.assert_close(model(x), expected)
    last = model.get_submodule(model.head[-1])
    assert isinstance(last, torch.nn.Linear)
    assert h.shape[-1] == last.in_features


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_does_not_change_the_model(name: str) -> None:
    model, x = make(name).train(), batch(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.testing.assert_close(model(x), model.eval()(x), rtol=0, atol=0)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_convolutions_get_and_return_channels_innermost(channels: int, mapped: bool) -> None:
    """Grey images too, where only the strides show the layout. With other strides a convolution takes several times as
    long.
    """
    x, w = torch.randn(ROWS, channels, 8, 8), torch.randn(5, channels, 3, 3)
    inner = vmap(to_channels_last)(x) if mapped else to_channels_last(x)
    assert torch.equal(inner, x)
    assert inner.stride(1) == 1
    assert F.conv2d(inner, w).is_contiguous(memory_format=torch.channels_last)
    assert F.conv2d(to_channels_last(x[0]), w).shape == (5, 6, 6)


def test_dropout_depends_on_the_key_only() -> None:
    model, x = make("gcn"), batch("gcn")
    first, again, other = (model(x, key=dropout_keys.key(i)) for i in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, model(x))


def test_gcn_layers_drop_different_units() -> None:
    model, key, p = make("gcn"), dropout_keys.key(3), 0.4
    ones = torch.ones(5, 5, dtype=torch.float64)
    x, edges, weight = batch("gcn")
    h = F.relu(model.gcn1(x, edges, weight)) * dropout_keys.dropout(ones, p, key, salt=1)
    expected = F.relu(model.gcn2(h, edges, weight)) * dropout_keys.dropout(ones, p, key, salt=2)
    torch.testing.assert_close(model.features((x, edges, weight), key=key), expected)


@pytest.mark.parametrize("mapped", [False, True])
def test_masked_batch_norm_equals_native_on_real_rows(mapped: bool) -> None:
    """Outputs, gradients and running statistics are equal for any content of the padding rows."""
    torch.manual_seed(0)
    reference, norm = torch.nn.BatchNorm2d(3).double(), BatchNorm(3).double()
    torch.nn.init.uniform_(reference.weight)
    norm.load_state_dict(reference.state_dict(), strict=False)
    x = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    mask, cotangent = (
        torch.tensor([True, False, True, True, False, True]),
        torch.randn(4, 3, 2, 2, dtype=torch.float64),
    )
    expected = torch.autograd.grad((reference(x[mask]) * cotangent).sum(), [*reference.parameters()])
    params, buffers = dict(norm.named_parameters()), {k: v.clone() for k, v in norm.named_buffers()}

    def loss(p: dict, b: dict, m: Tensor, spread: Tensor) -> Tensor:
        return (functional_call(norm, {**p, **b}, (x,), {"key": dropout_keys.key(0), "mask": m}) * spread).sum()

    spread = torch.zeros_like(x).index_copy(0, mask.nonzero()[:, 0], cotangent)
    if mapped:
        twice = {k: torch.stack([v, v]) for k, v in buffers.items()}
        gradient = vmap(grad(loss), in_dims=(None, 0, 0, None))(params, twice, torch.stack([mask, mask]), spread)
        gradient, buffers = {k: v[1] for k, v in gradient.items()}, {k: v[1] for k, v in twice.items()}
    else:
        gradient = grad(loss)(params, buffers, mask, spread)
    torch.testing.assert_close(tuple(gradient.values()), expected)
    torch.testing.assert_close(buffers, {k: v for k, v in reference.named_buffers() if k in buffers})


def test_a_batch_without_real_rows_changes_no_statistics() -> None:
    norm = BatchNorm(3)
    out = norm(torch.randn(4, 3, 2, 2), key=dropout_keys.key(0), mask=torch.zeros(4, dtype=torch.bool))
    assert out.isfinite().all()
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert torch.equal(norm.running_var, torch.ones(3))


@pytest.mark.parametrize("name", NORMALISED)
def test_padding_rows_never_reach_the_loss(name: str) -> None:
    x, mask = batch(name), torch.tensor([True, True, False, True])
    short = make(name)(x[mask], key=dropout_keys.key(0))
    padded = make(name)(x, key=dropout_keys.key(0), mask=mask)
    torch.testing.assert_close(padded[mask], short)


def test_propagation_is_the_normalised_adjacency() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 3, 3]])
    looped, weight = gcn_norm(edges, 5, torch.float64)
    a = torch.eye(5, dtype=torch.float64)
    a[0, 1] = a[1, 0] = a[1, 2] = a[2, 1] = 1.0
    scale = a.sum(1).rsqrt()
    h = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(propagate(h, looped, weight), scale[:, None] * a * scale @ h)
    weight = torch.rand_like(weight).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: propagate(h, looped, w), (h, weight))


def test_recurrent_cell_equals_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = GRUCell(2, 4), torch.nn.GRUCell(2, 4)
    theirs.load_state_dict(ours.state_dict())
    x, h = torch.randn(5, 2), torch.randn(5, 4)
    torch.testing.assert_close(ours(x, h), theirs(x, h))


@pytest.mark.parametrize("name", ["gru", "tpt_mlp"])
def test_forecasts_do_not_depend_on_the_future(name: str) -> None:
    model, x = make(name), batch(name)
    history = SMALL[name][0][0]
    hidden = x.clone()
    hidden[:, history:, 0] = torch.nan
    torch.testing.assert_close(model(hidden), model(x), rtol=0, atol=0)
    clock = x.clone()
    clock[:, history:-1, 1] += 1.0
    assert torch.equal(model(clock), model(x)) == (name == "tpt_mlp")


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("lenet", CIFAR, {}, "did you mean 'lenet16'"),
        ("lenet16", CIFAR, {"batchnorm": True}, "did you mean 'batch_norm'"),
        ("moon", CIFAR, {"hidden": 3}, "has no options"),
        ("moon", (1, 8, 8), {}, "larger images"),
        ("resnet18", (1, 28, 28), {}, "32x32"),
        ("mlp", (4,), {"hidden": [8, 0]}, "[8, 0] is not a positive integer"),
        ("mlp", (4,), {"hidden": 0}, "0 is not a positive integer"),
        ("gcn", (4,), {"dropout": 1.0}, "1.0 is not in [0, 1)"),
        ("gcn", (4,), {"dropout": -1}, "-1 is not in [0, 1)"),
    ],
)
def test_bad_requests_are_named(name: str, shape: tuple[int, ...], options: dict, words: str) -> None:
    with refused(words):
        build(name, shape, 3, **options)


@pytest.mark.parametrize("edges", [0, 40])
@pytest.mark.parametrize("shape", [(1,), (4,), (3, 5)])
def test_rows_by_index_are_sparse_products_on_a_gpu(edges: int, shape: tuple[int, ...]) -> None:
    """The functions for a GPU give the values and gradients of indexing, for indices in any order."""
    x = torch.randn(9, *shape, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(edges, *shape, dtype=torch.float64, requires_grad=True)
    index, weight = torch.randint(8, (edges,)), torch.randn(9, *shape, dtype=torch.float64)
    pairs = (
        (gcn.sparse_select(x, index), x[index], rows.detach(), x),
        (gcn.sparse_sum(rows, index, 9), torch.zeros_like(x).index_add(0, index, rows), weight, rows),
        (gcn.add_at(x, index, rows, -2.0), x - 2.0 * gcn.sparse_sum(rows, index, 9), weight, rows),
        (gcn.select_rows(x, index), x[index], rows.detach(), x),
    )
    for actual, expected, cotangent, leaf in pairs:
        torch.testing.assert_close(actual, expected)
        slopes = [torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0] for out in (actual, expected)]
        torch.testing.assert_close(*slopes)
