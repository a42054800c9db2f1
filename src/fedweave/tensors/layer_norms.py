"""Layer normalisation as operations that the kernel has, in place of PyTorch's own two."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Norm = tuple[Tensor, Tensor, Tensor]
"""The normalised values, the mean, and one over the standard deviation."""


def _axes(shape: Sequence[int]) -> list[int]:
    return [*range(-len(shape), 0)]


def _forward(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Norm:
    mean = x.mean(_axes(shape), keepdim=True)
    centred = x - mean
    scale = ((centred * centred).mean(_axes(shape), keepdim=True) + eps).sqrt().reciprocal()
    out = centred * scale
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, scale


def _backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """slope = scale (g - mean(g) - n mean(g n)) with g = grad weight and n the normalised values."""
    axes, normalised = _axes(shape), (x - mean) * scale
    rows = [*range(x.ndim - len(shape))]  # without any, a sum would be over all axes
    slope = grad if weight is None else grad * weight
    by_mean = normalised * (slope * normalised).mean(axes, keepdim=True)
    slope = (slope - slope.mean(axes, keepdim=True) - by_mean) * scale
    products = (grad * normalised).sum(rows) if rows else grad * normalised
    return [
        value if is_needed else None
        for value, is_needed in zip((slope, products, grad.sum(rows) if rows else grad), needed, strict=True)
    ]


COMPOSITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_layer_norm.default: _forward,
    torch.ops.aten.native_layer_norm_backward.default: _backward,
}
