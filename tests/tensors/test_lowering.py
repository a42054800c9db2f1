"""Programs of the kernel give the results of PyTorch's operations, and say what they do not cover."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.tensors import dropout_keys, native
from fedweave.tensors.array_programs import Unsupported
from fedweave.tensors.instructions import CODES
from fedweave.tensors.lowering import record

needs_compiler = pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler on this machine")
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
Tensors = dict[str, Tensor]


def gradient(loss: Callable[..., Tensor], *values: Tensor) -> list[Tensor]:
    """The gradient of `loss` in each of `values`."""
    leaves = [value.detach().requires_grad_() for value in values]
    with torch.enable_grad():
        loss(*leaves).backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def normalised(a: Tensor) -> Tensor:
    return a / a.norm(dim=1, keepdim=True).clamp(min=1e-3)


def hashed(rows: Tensor) -> Tensor:
    """As in `dropout_keys`: a product that overflows, a shift and an exclusive or."""
    h = rows * -7046029254386353131
    return ((h >> 30).bitwise_and_((1 << 34) - 1).bitwise_xor_(h) & 1023).to(torch.get_default_dtype())


def images(t: Tensors, side: int, channels: int) -> Tensor:
    """Images [B, channels, side, side] from the numbers of `b`."""
    numbers = t["b"].flatten()
    count = len(numbers) // (channels * side * side)
    return numbers[: count * channels * side * side].reshape(count, channels, side, side)


def convolved(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Two convolutions and two poolings; the first has the results of neighbours in one vector."""
    x = F.conv2d(b[:12, :20].reshape(1, 3, 8, 10), a[:3, :12].reshape(3, 3, 2, 2), c[:3], padding=1)
    x = F.max_pool2d(F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2, 1), 2).relu()
    return F.conv2d(x, a[3:6].flatten()[:36].reshape(2, 3, 3, 2), c[3:5], stride=2, padding=1)


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    *(F.gelu, F.silu, F.elu, F.selu, F.celu, F.leaky_relu, F.relu6, F.hardswish, F.mish, F.softsign, F.logsigmoid),
    lambda x: F.gelu(x, approximate="tanh"),
)


def activated(a: Tensor) -> Tensor:
    """Activations of numbers near zero and far from it, [12, 2, 7, 13]."""
    return torch.stack([activation(torch.stack([a, 3 * a])) for activation in ACTIVATIONS])


def attended(a: Tensor, b: Tensor) -> Tensor:
    """Attention with heads, a causal one and one with a mask."""
    heads = a[:6, :12].reshape(1, 2, 6, 6), b[:12, :6].reshape(1, 2, 6, 6), b[:12, 6:12].reshape(1, 2, 6, 6)
    causal = F.scaled_dot_product_attention(*heads, is_causal=True)
    return causal + F.scaled_dot_product_attention(*heads, attn_mask=b[:6, 12:18].detach(), scale=0.7)


def pooled(a: Tensor, b: Tensor) -> Tensor:
    x = a.reshape(1, 1, 7, 13) * b[:2, :1, None, None].transpose(0, 1)
    return F.avg_pool2d(x, (3, 2), 2).square().sum() + F.adaptive_avg_pool2d(x[..., :6, :12], (2, 3)).exp().sum()


def convolved_in_time(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Convolutions and pooling of series, with another number of zeros than steps."""
    x = F.conv1d(a[:6].reshape(2, 3, 13), b[:4, :9].reshape(4, 3, 3), c[:4], stride=2, padding=2)
    return F.conv1d(F.max_pool1d(x, 3, 2), b[4:6, :8].reshape(2, 4, 2)).exp().sum() + F.avg_pool1d(x, 2).tanh().sum()


def changed_in_place(a: Tensor) -> Tensor:
    return F.silu(F.leaky_relu(F.relu6(a * 2 + 1, inplace=True), 0.2, inplace=True) - 1, inplace=True)


def lost(a: Tensor, c: Tensor) -> Tensor:
    """Losses of numbers and of probabilities."""
    targets = c.detach().sigmoid().expand(7, 13)
    numbers = F.smooth_l1_loss(a, targets) + F.huber_loss(a, targets, delta=0.3) + F.l1_loss(a, targets)
    return (
        numbers + F.binary_cross_entropy_with_logits(a * c, targets) + a.var() + a.std(1).sum() + a.logsumexp(1).sum()
    )


def changed_after_its_copy(a: Tensor) -> Tensor:
    source = a * 2
    copy = source.clone()
    source.neg_()
    return copy.relu() + source


def shifted_within_itself(a: Tensor) -> Tensor:
    memory = a * 2
    memory[1:].copy_(memory[:-1].clone())
    memory[:, :-1].add_(memory[:, 1:].clone())
    return memory


CASES: dict[str, Callable[[Tensors], list[Tensor]]] = {
    "functions": lambda t: [t["a"].relu(), t["a"].sigmoid(), t["a"].tanh(), t["a"].exp(), F.softplus(9 * t["a"])],
    "far from zero": lambda t: [(50 * t["a"]).sigmoid(), (50 * t["a"]).tanh(), (9 * t["a"]).exp(), t["a"].tanh() / 99],
    "the largest numbers": lambda t: [(88.5 + 0 * t["a"]).exp(), 1 / torch.full((2,), -0.0) + t["c"][:2]],
    "roots": lambda t: [t["a"].abs().sqrt(), t["a"].square(), t["a"].abs() ** 0.5, t["a"].abs().log(), 0.9 ** t["a"]],
    "arithmetic": lambda t: [2 - t["a"] * t["c"], t["a"] / 3 + t["c"], t["a"].clamp(-0.5, 0.5), t["a"] % 0.7],
    "broadcast": lambda t: [
        t["c"][:, None] - t["c"],
        t["a"] + t["y"],
        t["a"][:, :1] * t["a"],
        t["a"].add(t["c"], alpha=3),
    ],
    "truth": lambda t: [torch.where((t["a"] > 0) & ~(t["a"] >= 1), t["a"], 0.0), (t["a"] != t["c"]).sum(1)],
    "sums": lambda t: [t["a"].sum(), t["a"].sum(0), t["a"].mean(1, keepdim=True), t["a"].T.sum(0), t["b"].mean((0, 1))],
    "norms": lambda t: [t["a"].norm(), t["a"].norm(dim=1), normalised(t["a"])],
    "softmax": lambda t: [t["a"].softmax(-1), t["a"].log_softmax(-1), (300 * t["b"]).log_softmax(-1)],
    "softmax along other axes": lambda t: [
        t["a"].softmax(0),
        t["a"].view(7, 13, 1).log_softmax(1),
        *gradient(lambda a: a.expand(3, 7, 13).softmax(-2).square().sum() + a.log_softmax(0).tanh().sum(), t["a"]),
    ],
    "products": lambda t: [t["a"] @ t["b"], t["b"].T @ t["a"].T, t["a"].T @ t["a"], t["a"] @ t["c"], t["c"] @ t["c"]],
    "linear": lambda t: [F.linear(t["a"], t["b"].T, t["d"]), F.linear(t["a"], t["b"].T[:1], t["d"][:1])],
    "batches": lambda t: [t["a"].expand(3, 7, 13) @ t["b"].expand(3, 13, 21).relu()],
    "rows": lambda t: [t["b"][t["y"]], t["b"][:, t["y"]], t["y"][t["y"]], t["b"].gather(1, t["y"][:, None])],
    "windows": lambda t: [
        t["c"][t["y"][:, None] % 8 + torch.arange(2, 6)],
        t["c"][t["y"][:, None] - 13 + torch.arange(2)],
        t["d"][t["y"][:2, None] % 2 + torch.arange(17)],
    ],
    "rows from the end": lambda t: [t["b"][torch.tensor([-1, 0])], t["y"][torch.tensor([-2])]],
    "rows of a transposed tensor": lambda t: [t["a"].view(7, 1, 13).permute(2, 1, 0)[:, :, t["y"] % 7]],
    "copies": lambda t: [
        torch.stack([F.pad(t["a"], (0, 2)), F.pad(t["a"], (2, 0))], -1)[:, :13, 0] @ t["b"],
        t["a"].clone().T.contiguous().sum(1) - t["d"][:13].clone().add_(1),
        changed_after_its_copy(t["a"]),
        shifted_within_itself(t["a"]),
    ],
    "joined": lambda t: [torch.cat([t["a"], t["b"].T]), torch.stack([t["a"], t["a"]], -1), F.pad(t["a"], (1, 2))],
    "types": lambda t: [(t["a"] > 0).to(t["a"]), t["y"] * t["a"], t["a"].long() + 1, hashed(t["y"])],
    "a number in whole numbers": lambda t: [t["y"].clamp(min=2.5), torch.zeros(3).fill_(t["a"].sum())],
    "backward of functions": lambda t: gradient(
        lambda a: (a.relu() * a.sigmoid() + a.tanh() + F.softplus(a) + a.abs() + a.exp()).square().sum(), t["a"]
    ),
    "backward of a network": lambda t: gradient(
        lambda a, b, d: -F.linear(a, b.T, d).relu().log_softmax(-1).gather(1, t["y"][:7, None]).mean(),
        *(t["a"], t["b"], t["d"]),
    ),
    "layer normalisation": lambda t: [
        F.layer_norm(t["a"], (13,), t["c"], t["c"] + 1),
        F.layer_norm(t["a"], (7, 13)),
        *gradient(
            lambda a, c: F.layer_norm(a, (13,), c, c * 2).tanh().sum() + F.layer_norm(a[:, :3], (3,)).exp().sum(),
            *(t["a"], t["c"]),
        ),
    ],
    "activations": lambda t: [activated(t["a"]), F.prelu(t["a"], t["c"][:1]), F.softplus(-9 * t["a"])],
    "backward of activations": lambda t: gradient(
        lambda a, c: activated(a).square().sum() + F.prelu(a, c[:1]).exp().sum(), t["a"], t["c"]
    ),
    "group normalisation": lambda t: [
        F.group_norm(images(t, 3, 4), 2, t["c"][:4], t["c"][4:8]),
        *gradient(lambda b, c: F.group_norm(b, 3, t["d"], c.sum().expand(21)).tanh().sum(), t["b"], t["c"]),
    ],
    "attention": lambda t: [attended(t["a"], t["b"])],
    "backward of attention": lambda t: gradient(lambda a, b: attended(a, b).square().sum(), t["a"], t["b"]),
    "series": lambda t: [
        convolved_in_time(t["a"], t["b"], t["c"]),
        *gradient(convolved_in_time, t["a"], t["b"], t["c"]),
    ],
    "in place": lambda t: [
        changed_in_place(t["a"]),
        *gradient(lambda a: changed_in_place(a).square().sum() + F.pad(a, (-1, 2, 3, -4)).abs().sum(), t["a"]),
        t["a"].abs() ** 0.75,
    ],
    "mean pooling": lambda t: [pooled(t["a"], t["b"]), *gradient(pooled, t["a"], t["b"])],
    "losses": lambda t: [lost(t["a"], t["c"]), *gradient(lost, t["a"], t["c"])],
    "dropout": lambda t: [
        dropout_keys.dropout(t["a"], 0.3, t["y"][0], 1),
        *gradient(lambda a: dropout_keys.dropout(a.tanh(), 0.6, t["y"][1]).square().sum(), t["a"]),
    ],
    "convolutions": lambda t: [
        F.conv2d(images(t, 5, 3), t["b"][:4, :12].reshape(4, 3, 2, 2), t["c"][:4]).relu(),
        F.conv2d(images(t, 5, 3).movedim(-1, 1), t["b"][:2, :15].reshape(2, 5, 3, 1), stride=2, padding=1),
        F.max_pool2d(images(t, 7, 1), 3, 2),
        F.max_pool2d(images(t, 3, 2).contiguous(memory_format=torch.channels_last), 2),
    ],
    "backward of convolutions": lambda t: gradient(
        lambda a, b, c: convolved(a, b, c).square().mean(), *(t["a"], t["b"], t["c"])
    ),
    "batch normalisation": lambda t: [
        F.batch_norm(images(t, 5, 3), t["c"][:3], t["d"][:3].abs(), t["c"][3:6], t["c"][6:9], training=True),
        F.batch_norm(t["b"], t["d"].clone(), t["d"].abs(), eps=0.1),
        F.instance_norm(images(t, 5, 3)),
        *gradient(lambda a: F.batch_norm(a, None, None, training=True).tanh().sum(), t["a"]),
        *gradient(
            lambda a, c: F.batch_norm(a, c.detach(), c.detach().abs(), c, training=True).tanh().sum(), t["a"], t["c"]
        ),
        *gradient(lambda a, c: F.batch_norm(a, c.detach(), c.detach().abs(), None, c).tanh().sum(), t["a"], t["c"]),
    ],
    "backward of parts": lambda t: gradient(
        lambda a, b: (F.embedding(t["y"], b)[:, 2:9] @ a[:, 3:10].T)[:, 0].softmax(-1)[1] + normalised(a).sum(),
        *(t["a"], t["b"]),
    ),
}


def inputs(seed: int = 0) -> Tensors:
    torch.manual_seed(seed)
    shapes = {"a": (7, 13), "b": (13, 21), "c": (13,), "d": (21,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()} | {"y": torch.randint(13, (13,))}


def run(function: Callable[[Tensors], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """The results of `function` by a program and by PyTorch, the inputs after it included."""
    real = torch.get_default_dtype()
    expected, recorded, values = inputs(), inputs(1), inputs()  # a program holds no numbers of its recording
    results = [*function(expected)]
    program = record(lambda: [*function(recorded), *recorded.values()], [*recorded.values()], len(results), real)
    outputs = [torch.full_like(result.contiguous(), 7) for result in results]
    native.run(program, real, [(t, 0, 0) for t in values.values()], [(t, 0, 0) for t in outputs], (1, 1))
    return [*outputs, *values.values()], [*results, *expected.values()]


@needs_compiler
@pytest.mark.parametrize("real", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_programs_give_the_results_of_torch(name: str, real: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(real)
    try:
        given, expected = run(CASES[name])
    finally:
        torch.set_default_dtype(before)
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[real], atol=TOLERANCE[real])


@needs_compiler
def test_numbers_that_are_not_finite_stay_so() -> None:
    """Training that diverges must show in its loss."""

    def spoil(t: Tensors) -> list[Tensor]:
        t["a"][2, 3].fill_(torch.nan)
        t["a"][4, 3].fill_(torch.inf)
        return [t["a"].log_softmax(-1), t["a"].relu(), t["a"].tanh(), t["a"] @ t["b"], t["a"].clamp(0, 1), t["a"].sum()]

    given, expected = run(spoil)
    for a, b in zip(given, expected, strict=True):
        assert torch.equal(a.isnan(), b.isnan())


@needs_compiler
@pytest.mark.parametrize(
    "function",
    [
        lambda t: [F.embedding(t["y"], t["a"])],
        lambda t: gradient(lambda a: F.embedding(t["y"], a).sum(), t["a"]),
        lambda t: [t["a"][t["y"]]],
        lambda t: [t["a"][:, t["y"] - 14]],
        lambda t: [t["c"][t["y"][:, None] + torch.arange(3)]],
        lambda t: [t["c"].long()[t["y"] + 1]],
        lambda t: [t["a"].gather(1, t["y"][:7, None] - 1)],
    ],
)
def test_an_index_without_a_position_is_an_error(function: Any) -> None:
    """As in PyTorch, and nothing is read or written there."""
    real = torch.get_default_dtype()
    recorded, values = {**inputs(), "y": torch.ones(13, dtype=torch.int64)}, {**inputs(), "y": torch.arange(13)}
    program = record(lambda: [*function(recorded), *recorded.values()], [*recorded.values()], 1, real)
    with pytest.raises(IndexError, match="out of range"):
        native.run(program, real, [(t, 0, 0) for t in values.values()], [(torch.zeros(512, dtype=real), 0, 0)], (1, 1))


def test_what_was_copied_is_read_where_it_came_from() -> None:
    """The window of a series, filled up and joined with a part that is never read, is multiplied without a copy."""

    def forecast() -> list[Tensor]:
        windows = values["c"][values["y"][:, None] + torch.arange(3)]
        return [
            torch.stack([F.pad(windows, (0, 2)), torch.zeros(13, 5)], -1)[:, :3, 0] @ values["b"][:3],
            *values.values(),
        ]

    values = inputs() | {"y": torch.arange(10).repeat(2)[:13]}
    program = record(forecast, [*values.values()], 1, torch.get_default_dtype())
    assert [*program.code["code"]] == [CODES[name] for name in ("windows", "product", "copy")]


def test_large_copies_are_not_followed() -> None:
    """Following the copies of a step with images of 128 x 128 pixels took gigabytes."""
    value = torch.ones(1100, 1000)
    tracemalloc.start()
    program = record(lambda: [value.T.contiguous().exp()], [value], 1, torch.get_default_dtype())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert CODES["exp"] in program.code["code"]


OUTSIDE = torch.ones(7, 13)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda t: [t["a"].sort().values], "aten.sort"),
        (lambda t: [t["a"] + torch.rand(13)], "random numbers"),
        (lambda t: [t["a"][t["a"] > 0]], "index"),
        (lambda t: [t["a"] * t["a"].sum().item()], "_local_scalar_dense"),
        (lambda t: [t["a"].half()], "float16"),
        (lambda t: [-t["y"]], "neg of whole numbers"),
        (lambda t: [t["y"] ** t["y"]], "int_power is no operation"),
        (lambda t: [(t["a"] @ t["b"]).addmm_(t["a"], t["b"])], "memory of its operands"),
        (lambda t: [t["y"].view(torch.float64) + t["a"][0]], "another type"),
        (lambda t: [t["a"] + OUTSIDE], "neither an input nor computed"),
    ],
)
def test_what_is_not_covered_has_a_reason(function: Any, reason: str) -> None:
    """A program never holds a number that depends on data or chance, or a tensor that may be another one later."""
    values = inputs()
    with pytest.raises(Unsupported, match=reason):
        record(lambda: [*function(values), *values.values()], [*values.values()], 1, torch.get_default_dtype())
