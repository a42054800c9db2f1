"""Randomness as data.

Host-side draws (partitions, participation, minibatch plans) come from named counter-based streams; draws inside a
model (dropout) are hashes of an integer key. Both are functions of their key alone, so every executor, chunk size,
order and resume sees the same numbers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Odd 64-bit constants of the splitmix64 finaliser, as signed integers because torch has no full uint64 arithmetic.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def stream(*ints: int) -> np.random.Generator:
    """A generator that depends on `ints` only, the same on every machine (Philox over numpy's SeedSequence)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(i) for i in ints])))


def _shift(h: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)


def _mix(h: Tensor) -> Tensor:
    h = (h ^ _shift(h, 30)) * _MIX_1
    h = (h ^ _shift(h, 27)) * _MIX_2
    return h ^ _shift(h, 31)


def key(*ints: int) -> Tensor:
    """A 0-d int64 key from integers."""
    return fold(torch.zeros((), dtype=torch.int64), *ints)


def fold(base: Tensor, *ints: int | Tensor) -> Tensor:
    """Derive a new int64 key from `base` and `ints`; elementwise where tensors are given."""
    for value in ints:
        base = _mix((base ^ _mix(torch.as_tensor(value, device=base.device) + _GOLDEN)) + _GOLDEN)
    return base


def uniform(base: Tensor, shape: Sequence[int]) -> Tensor:
    """float32 numbers in [0, 1) of `shape`, a hash of the 0-d key `base` and the element's index."""
    count = torch.arange(int(np.prod(shape)), device=base.device).reshape(tuple(shape))
    return _shift(_mix(base + _GOLDEN * (count + 1)), 40).to(torch.float32) * 2.0**-24


def dropout(h: Tensor, p: float, base: Tensor | None, salt: int = 0) -> Tensor:
    """Inverted dropout of `h` with rate `p`; the identity without a key (evaluation)."""
    if base is None or p == 0.0:
        return h
    keep = uniform(fold(base, salt), h.shape) >= p
    return h * keep / (1.0 - p)
