"""Randomness as data.

Host-side draws (partitions, participation, minibatch plans) come from named counter-based streams
(`fedweave.tensors.random_streams`); draws inside a model (dropout) are hashes of an integer key. Both are functions of
their key alone, so every executor, chunk size, order and resume sees the same numbers.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.func import vmap

# Odd 64-bit constants of the splitmix64 finaliser, as signed integers because torch has no full uint64 arithmetic.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _shift(h: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, as a fresh tensor."""
    return (h >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(h: Tensor) -> Tensor:
    h = _shift(h, 30).bitwise_xor_(h).mul_(_MIX_1)
    h = _shift(h, 27).bitwise_xor_(h).mul_(_MIX_2)
    return _shift(h, 31).bitwise_xor_(h)


def _hashes(base: Tensor, count: int) -> Tensor:
    """`count` int64 numbers, a hash of the 0-d key `base` and the position."""
    return _mix(base + _GOLDEN * torch.arange(1, count + 1, device=base.device))


def _mix_integer(number: int) -> int:
    """`_mix` of one number modulo 2⁶⁴, as a signed integer; fifty times faster than with a 0-d tensor."""
    h = number % 2**64
    for bits, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        h = (h ^ h >> bits) * factor % 2**64
    return h - 2**64 * (h >> 63)


def _split_to_int16(h: Tensor) -> Tensor:
    """int64 [K] as int16 [4 K], the lowest bits first."""
    if _views_are_mapped():
        return h.view(torch.int16)
    return torch.stack([h, h >> 16, h >> 32, h >> 48], 1).to(torch.int16).flatten()


@cache
def _views_are_mapped() -> bool:
    """Whether `vmap` supports a view with another dtype, which needs no copy; PyTorch 2.13 does, 2.11 does not."""
    try:
        vmap(lambda h: h.view(torch.int16))(torch.zeros(1, 1, dtype=torch.int64))
    except RuntimeError:
        return False
    return True


def key(*ints: int) -> Tensor:
    """A 0-d int64 key from integers."""
    base = 0
    for value in ints:
        base = _mix_integer((base ^ _mix_integer(value + _GOLDEN)) + _GOLDEN)
    return torch.tensor(base)


def fold(base: Tensor, *ints: int | Tensor) -> Tensor:
    """Derive a new int64 key from `base` and `ints`; elementwise where tensors are given."""
    for value in ints:
        code = _mix(value.to(base.device) + _GOLDEN) if isinstance(value, Tensor) else _mix_integer(value + _GOLDEN)
        base = _mix((base ^ code) + _GOLDEN)
    return base


def uniform(base: Tensor, shape: Sequence[int]) -> Tensor:
    """float32 numbers in [0, 1) of `shape`, a hash of the 0-d key `base` and the element's index."""
    return _shift(_hashes(base, math.prod(shape)).reshape(tuple(shape)), 40).to(torch.float32) * 2.0**-24


def uniform_rows(base: Tensor, rows: Tensor, width: int) -> Tensor:
    """Rows `rows` [P] of the matrix `uniform(base, (N, width))`, float32 [P, width]; other rows are not computed."""
    positions = rows[:, None] * width + torch.arange(1, width + 1, device=rows.device)
    return _shift(_mix(base + _GOLDEN * positions), 40).to(torch.float32) * 2.0**-24


def dropout(h: Tensor, p: float, base: Tensor | None, salt: int = 0) -> Tensor:
    """Inverted dropout of `h` with rate `p` (to the nearest 2⁻¹⁶); the identity without a key (evaluation)."""
    if base is None or p == 0.0:
        return h
    # Sixteen bits decide about one element, so one hash is enough for four elements.
    bits = _split_to_int16(_hashes(fold(base, salt), -(-h.numel() // 4)))[: h.numel()].reshape(h.shape)
    dropped = round(p * 2**16)
    kept = (bits >= dropped - 2**15).to(torch.float64 if h.dtype == torch.float64 else torch.float32)
    return h * (kept * (1.0 / (1.0 - dropped * 2.0**-16)))
