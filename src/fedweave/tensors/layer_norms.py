"""Rules of the kernel for layer normalisation: sums and elementwise instructions."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor

from fedweave.tensors.array_programs import Builder


def _mean(b: Builder, out: Tensor, value: Tensor) -> None:
    """out [m, 1] = the mean of every row of `value` [m, n]."""
    b.accumulate(out, value, [1])
    b.elementwise("div", out, out, b.scalar(value.shape[1], out.dtype))


def _rows(b: Builder, value: Tensor, shape: Sequence[int]) -> Tensor:
    return b.contiguous(value).view(-1, prod(shape))


def _normalised(b: Builder, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """(x - mean) scale, new."""
    rows = b.new(x.shape, x.dtype)
    b.elementwise("sub", rows, x, mean)
    b.elementwise("mul", rows, rows, scale)
    return rows


def _forward(
    b: Builder,
    results: Sequence[Tensor],
    value: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> None:
    out, mean, scale = (result.view(-1, size) for result, size in zip(results, (prod(shape), 1, 1), strict=True))
    x = _rows(b, value, shape)
    _mean(b, mean, x)
    squares = _normalised(b, x, mean, b.scalar(1, x.dtype))
    b.elementwise("mul", squares, squares, squares)
    _mean(b, scale, squares)
    b.elementwise("add", scale, scale, b.scalar(eps, scale.dtype))
    b.elementwise("sqrt", scale, scale)
    b.elementwise("reciprocal", scale, scale)
    rows = _normalised(b, x, mean, scale)
    for name, part in (("mul", weight), ("add", bias)):
        if part is not None:
            b.elementwise(name, rows, rows, part.reshape(-1))
    b.copy(out, rows)


def _backward(
    b: Builder,
    results: Sequence[Tensor | None],
    grad: Tensor,
    value: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    *_: Any,
) -> None:
    """slope = scale (g - mean(g) - n mean(g n)) with g = grad weight and n the normalised rows."""
    grad_value, grad_weight, grad_bias = results
    g, mean, scale = _rows(b, grad, shape), mean.reshape(-1, 1), scale.reshape(-1, 1)
    normalised = _normalised(b, _rows(b, value, shape), mean, scale)
    product, mean_of = b.new(g.shape, g.dtype), b.new(mean.shape, mean.dtype)
    if grad_weight is not None:
        b.elementwise("mul", product, g, normalised)
        b.accumulate(grad_weight.view(-1), product, [0])
    if grad_bias is not None:
        b.accumulate(grad_bias.view(-1), g, [0])
    if grad_value is None:
        return
    slope = b.new(g.shape, g.dtype)
    if weight is None:
        b.copy(slope, g)
    else:
        b.elementwise("mul", slope, g, weight.reshape(-1))
    b.elementwise("mul", product, slope, normalised)
    _mean(b, mean_of, product)
    b.elementwise("mul", product, normalised, mean_of)
    _mean(b, mean_of, slope)
    b.elementwise("sub", slope, slope, mean_of)
    b.elementwise("sub", slope, slope, product)
    b.elementwise("mul", grad_value.view(g.shape), slope, scale)


RULES: dict[str, Callable[..., None]] = {"native_layer_norm": _forward, "native_layer_norm_backward": _backward}
