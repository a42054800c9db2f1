"""Operations of PyTorch as others that the kernel has."""

from collections.abc import Callable, Container, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table


def _view_as(value: Tensor, dtype: torch.dtype) -> Any:
    """The four numbers of 16 bits in each of int64, the lowest bits first, with the type int64 that the kernel has."""
    if (value.dtype, dtype) != (torch.int64, torch.int16):
        return NotImplemented
    return torch.stack([value * 2 ** (48 - low) >> 48 for low in (0, 16, 32, 48)], -1).flatten(-2)


def _var(value: Tensor, axes: list[int], correction: float = 1, **_: Any) -> Tensor:
    centred = value - value.mean(axes, keepdim=True)
    return (centred * centred).sum(axes) / (prod(value.shape[axis] for axis in axes) - correction)


def _amax(value: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes, reverse=True):
        while (count := value.shape[axis]) > 1:
            half = (count + 1) // 2
            value = torch.maximum(value.narrow(axis, 0, half), value.narrow(axis, count - half, half))
        value = value.squeeze(axis)
    return value


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], *rest: Any
) -> Any:
    """A series [B, c, n] is an image of one row. Its zeros are written around it, as the row has none above it."""
    options = _options_of_rows(x, stride, rest)
    if options is None:
        return NotImplemented
    x = F.pad(x, (padding[0], padding[0]))
    return torch.ops.aten.convolution.default(x[:, :, None], weight[:, :, None], bias, *options)[:, :, 0]


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: list[int], padding: list[int], *rest: Any
) -> Any:
    *others, needed = rest
    options = _options_of_rows(x, stride, others)
    if options is None:
        return NotImplemented
    padded = F.pad(x, (padding[0], padding[0]))
    of_x, of_weight, of_bias = torch.ops.aten.convolution_backward.default(
        grad[:, :, None], padded[:, :, None], weight[:, :, None], bias_sizes, *options, needed
    )
    of_x = None if of_x is None else of_x[:, :, 0, padding[0] : padding[0] + x.shape[2]]
    return of_x, None if of_weight is None else of_weight[:, :, 0], of_bias


def _options_of_rows(x: Tensor, stride: list[int], rest: Sequence[Any]) -> list[Any] | None:
    """The options of a convolution after its bias, for a series `x` as an image; None where it is none."""
    dilation, transposed, _, groups = rest
    return None if x.ndim != 3 or transposed else [stride * 2, [0, 0], dilation * 2, False, [0, 0], groups]


def _average_pool(x: Tensor, size: Sequence[int], stride: Sequence[int] = (), *options: Any) -> Any:
    windows = _find_windows(x, size, stride, options)
    if windows is None:
        return NotImplemented
    total = x[windows[0]]
    for window in windows[1:]:
        total = total + x[window]
    return total / len(windows)


def _average_pool_backward(grad: Tensor, x: Tensor, size: Sequence[int], stride: Sequence[int], *options: Any) -> Any:
    windows = _find_windows(x, size, stride, options)
    if windows is None:
        return NotImplemented
    slope, share = torch.zeros_like(x), grad / len(windows)
    for window in windows:
        slope[window] += share
    return slope


def _adaptive_pool_backward(grad: Tensor, x: Tensor) -> Any:
    sides = [*zip(x.shape[-2:], grad.shape[-2:], strict=True)]
    if any(before % after for before, after in sides):
        return NotImplemented
    size = [before // after for before, after in sides]
    return _average_pool_backward(grad, x, size, size)


def _find_windows(
    x: Tensor, size: Sequence[int], stride: Sequence[int], options: Sequence[Any]
) -> list[tuple[Any, ...]] | None:
    """For each place of a window, the pixels there of all windows of `x` [..., h, w]; None where there is padding."""
    padding, ceil, divisor = (options[0] if options else (0,)), any(options[1:2]), any(options[3:])
    if any(padding) or ceil or divisor:
        return None
    axes = zip(x.shape[-2:], [*size] * 2, [*(stride or size)] * 2, strict=False)
    rows, columns = ([slice(i, length - wide + i + 1, step) for i in range(wide)] for length, wide, step in axes)
    return [(..., row, column) for row in rows for column in columns]


def _attend(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> tuple[Tensor, float]:
    """The weights [..., L, S], and the scale of their products."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    products = query @ key.transpose(-1, -2) * scale
    if is_causal:
        later = torch.arange(key.shape[-2]) > torch.arange(query.shape[-2])[:, None]
        products = products.masked_fill(later, -torch.inf)
    return (products if attn_mask is None else products + attn_mask).softmax(-1), scale


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout:
        return NotImplemented
    return _attend(query, key, is_causal, attn_mask, scale)[0] @ value, query.new_empty(0)


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    _logs: Tensor,
    _dropout: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    weights, factor = _attend(query, key, is_causal, attn_mask, scale)
    slope = weights * (grad @ value.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * factor
    return slope @ key, slope.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad


COMPOSITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.view.dtype: _view_as,
    torch.ops.aten.convolution.default: _convolution,
    torch.ops.aten.convolution_backward.default: _convolution_backward,
    torch.ops.prims.var.default: _var,
    torch.ops.prims.amax.default: _amax,
    torch.ops.aten.avg_pool2d.default: _average_pool,
    torch.ops.aten.avg_pool2d_backward.default: _average_pool_backward,
    torch.ops.aten._adaptive_avg_pool2d_backward.default: _adaptive_pool_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}


def find_composite(func: Any, simple: Container[str]) -> Callable[..., Any] | None:
    """A function of other operations that computes what the operation `func` does, or None.

    It may return NotImplemented where `func` stays as it is.

    Args:
        simple: names of operations that have no need of it.
    """
    name = func.overloadpacket.__name__
    if func in COMPOSITES or name in simple or name.removesuffix("_") in simple:
        return COMPOSITES.get(func)
    is_view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
    composite: Callable[..., Any] = func.decompose
    return composite if is_view else decomposition_table.get(func, composite)
