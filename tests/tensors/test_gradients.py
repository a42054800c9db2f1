"""Gradients inside mapped functions: PyTorch's own bits, without its compiler."""

import sys

import pytest
import torch
from torch.func import vmap

from fedweave.tensors.gradients import derivative_along, pull_back, value_and_grad


def loss(params: dict, x: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """A value on two of three parameters, and an auxiliary."""
    y = torch.tanh(x @ params["a"]) + params["b"]
    return y.square().sum(), {"mean": y.mean()}


def test_gradients_have_the_bits_of_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under vmap, also inside a gradient. A parameter without effect has gradient 0. No compiler is imported."""
    g = torch.Generator().manual_seed(0)
    x, a, b = (torch.randn(*shape, generator=g) for shape in ((3, 5, 4), (3, 4, 2), (3, 2)))
    params = {"a": a, "b": b, "unused": torch.ones(3, 2)}

    def theirs(p: dict, row: torch.Tensor) -> tuple:
        grads, (value, aux) = torch.func.grad_and_value(lambda q: loss(q, row), has_aux=True)(p)
        return value, aux, grads

    expected = vmap(theirs)(params, x)
    for name in ("torch._dynamo", "sympy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(torch, "_dynamo", raising=False)
    with pytest.raises(ImportError):
        vmap(theirs)(params, x)
    ours = vmap(lambda p, row: value_and_grad(lambda q: loss(q, row), p))(params, x)
    for left, right in zip(
        torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(expected), strict=True
    ):
        assert torch.equal(left, right)
    tracked = {name: value.requires_grad_() for name, value in params.items()}
    values = vmap(lambda p, row: value_and_grad(lambda q: loss(q, row), p)[0])(tracked, x)
    slopes = torch.autograd.grad(values.sum(), [tracked["a"], tracked["b"]])
    assert all(torch.equal(slope, expected[2][name]) for slope, name in zip(slopes, "ab", strict=True))


def test_derivatives_along_a_direction_are_those_of_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under vmap, of a function with other shapes than its point. No compiler is imported."""
    g = torch.Generator().manual_seed(0)
    x, a, directions = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((3, 5, 4), (4, 2), (3, 4, 2))
    )

    def function(point: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return torch.tanh(row @ point).square().sum(0) + row.sum()

    def theirs(row: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda point: function(point, row), (a,), (direction,))[1]

    expected = vmap(theirs)(x, directions)
    for name in ("torch._dynamo", "sympy"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(torch, "_dynamo", raising=False)
    ours = vmap(lambda row, direction: derivative_along(lambda point: function(point, row), a, direction))(
        x, directions
    )
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_a_gradient_shares_no_memory_with_its_input() -> None:
    """The server's optimiser may write to the gradient. Uploads and downloads must keep their values."""
    phi, vector = {"w": torch.ones(3)}, {"model": torch.tensor([1.0, 2.0, 3.0])}
    gradient, start = pull_back(lambda phi: {"model": 1 * phi["w"]}, phi, lambda _: vector)
    same, _ = pull_back(lambda phi: {"model": phi["w"]}, phi, lambda _: vector)
    for one in (gradient, same):
        assert one["w"].tolist() == [1.0, 2.0, 3.0]
        one["w"].zero_()
    assert vector["model"].tolist() == [1.0, 2.0, 3.0]
    assert start["model"].tolist() == phi["w"].tolist() == [1.0, 1.0, 1.0]
