"""Normalisation of layers and batches as operations that the kernel has, in place of PyTorch's own."""

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


def _over_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 2))


def _batch_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Norm:
    axes = [0, *range(2, x.ndim)]
    batch_mean, batch_var = mean, var
    if training:
        count = x[:, 0].numel()
        batch_mean = x.mean(axes)
        centred = x - _over_channels(batch_mean, x)
        batch_var = (centred * centred).mean(axes)
        mean.add_(momentum * (batch_mean - mean))
        var.add_(momentum * (batch_var * (count / max(1, count - 1)) - var))
    scale = (batch_var + eps).sqrt().reciprocal()
    factor = scale if weight is None else scale * weight
    out = (x - _over_channels(batch_mean, x)) * _over_channels(factor, x)
    out = out if bias is None else out + _over_channels(bias, x)
    return (out, batch_mean, scale) if training else (out, x.new_empty(0), x.new_empty(0))


def _batch_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    var: Tensor,
    batch_mean: Tensor,
    scale: Tensor,
    training: bool,
    eps: float,
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """As `_backward`, with means over the places of a channel; those of running moments have no gradient."""
    axes = [0, *range(2, x.ndim)]
    if not training:
        batch_mean, scale = mean, (var + eps).sqrt().reciprocal()
    normalised = (x - _over_channels(batch_mean, x)) * _over_channels(scale, x)
    products, sums, slope = (grad * normalised).sum(axes), grad.sum(axes), grad
    if training:
        count = x[:, 0].numel()
        slope = grad - _over_channels(sums / count, x) - normalised * _over_channels(products / count, x)
    slope = slope * _over_channels(scale if weight is None else scale * weight, x)
    return [value if is_needed else None for value, is_needed in zip((slope, products, sums), needed, strict=True)]


COMPOSITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_layer_norm.default: _forward,
    torch.ops.aten.native_layer_norm_backward.default: _backward,
    torch.ops.aten.native_batch_norm.default: _batch_forward,
    torch.ops.aten.native_batch_norm_backward.default: _batch_backward,
}
