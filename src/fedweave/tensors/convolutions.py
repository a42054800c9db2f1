"""Convolutions of many clients at once, each with its own kernel, as batched matrix products.

Under `vmap` PyTorch makes them one convolution with a group per client, which cuDNN computes group by group, with
copies in between. A product over unfolded images (im2col; Chellapilla et al. 2006, section 2) computes all clients at
once.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Largest size of a client's unfolded images for which a product is faster; above, its copies take too long.
LARGEST = 4_000_000


@contextmanager
def use_products(device: str) -> Iterator[None]:
    """On a GPU, two-dimensional convolutions inside this block are products where that is faster."""
    if device == "cpu":
        yield
        return
    with _ProductMode():
        yield


class _ProductMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and (product := _product(*args, **(kwargs or {}))) is not None:
            return product
        return func(*args, **(kwargs or {}))


def _product(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """The result of `F.conv2d`, or None for a convolution that PyTorch shall compute itself."""
    # Inside a gradient, whose transform hides the axis of clients, PyTorch has no rule for the derivative of `unfold`.
    is_per_client = torch._C._functorch.is_batchedtensor(weight)
    if not is_per_client or input.dim() != 4 or groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str):
        return None
    (down, right), steps, sizes, fan_in = _pair(padding), _pair(stride), weight.shape[2:], math.prod(weight.shape[1:])
    sides = input.shape[2] + 2 * down, input.shape[3] + 2 * right
    outputs = [(side - size) // step + 1 for side, size, step in zip(sides, sizes, steps, strict=True)]
    if min(outputs) < 1 or len(input) * fan_in * math.prod(outputs) > LARGEST:
        return None
    x = F.pad(input, (right, right, down, down)) if down or right else input
    patches = x.unfold(2, sizes[0], steps[0]).unfold(3, sizes[1], steps[1])  # [B, c, h, w, k, k]
    columns = patches.permute(0, 1, 4, 5, 2, 3).reshape(len(x), fan_in, math.prod(outputs))
    # One product per image: the gradient of a kernel in one product would be a long sum on few processors.
    out = torch.bmm(weight.flatten(1).expand(len(x), -1, -1), columns)
    out = out if bias is None else out + bias[:, None]
    return out.reshape(len(x), len(weight), *outputs)


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
