"""Convolutions as products give the results of PyTorch's own, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedweave.tensors import convolutions
from fedweave.tensors.convolutions import use_products

CASES: dict[str, Any] = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"stride": 2, "padding": (2, 0)},
    "oblong": {"stride": (1, 3)},
}


def stacks(size: tuple[int, int] = (3, 2)) -> tuple[Tensor, Tensor, Tensor]:
    """Images, kernels and biases of three clients."""
    shapes = (3, 4, 2, 9, 8), (3, 5, 2, *size), (3, 5)
    x, w, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return x, w, b


def count(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for every convolution whether it became a product."""
    products, inner = [], convolutions._product

    def counted(*args: Any, **options: Any) -> Tensor | None:
        product = inner(*args, **options)
        products.append(product is not None)
        return product

    monkeypatch.setattr(convolutions, "_product", counted)
    return products


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_product_equals_the_convolution(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and all three gradients, with and without a bias."""
    products, tensors = count(monkeypatch), stacks()
    for own in (tensors, tensors[:2]):
        results = []
        for device in ("cpu", "cuda"):
            with use_products(device):
                out = vmap(lambda *own: F.conv2d(*own, **options))(*own)
            results.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), own)])
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert products == [True, True]


def test_other_convolutions_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, dilation, one kernel for all clients, no client axis, and images whose unfolding is large."""
    products, (x, w, b) = count(monkeypatch), stacks()
    cases = [
        lambda: vmap(lambda x, w: F.conv2d(x, w[:, :1], groups=2, bias=None) if len(w) % 2 == 0 else x)(x, w[:, :4]),
        lambda: vmap(lambda x, w: F.conv2d(x, w, dilation=2))(x, w),
        lambda: vmap(lambda x, w: F.conv2d(x, w, padding="same"))(x, w),
        lambda: vmap(lambda x: F.conv2d(x, w[0], b[0]))(x),
        lambda: F.conv2d(x[0], w[0]),
    ]
    with torch.no_grad():
        for case in cases:
            expected = case()
            with use_products("cuda"):
                assert torch.equal(case(), expected)
        monkeypatch.setattr(convolutions, "LARGEST", 4 * 12 * 49 - 1)
        with use_products("cuda"):
            vmap(F.conv2d)(x, w)
    assert products == [False] * 6


def test_a_gradient_inside_the_map_keeps_its_convolutions(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Through `torch.func.grad`, where the backward pass of a product would handle clients in sequence."""
    products, (x, w, b) = count(monkeypatch), stacks()

    def gradient(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.func.grad(lambda w: F.conv2d(x, w, b).cos().sum())(w)

    expected = vmap(gradient)(x, w, b)
    with use_products("cuda"):
        assert torch.equal(vmap(gradient)(x, w, b), expected)
    assert products == [False]
    assert not recwarn
