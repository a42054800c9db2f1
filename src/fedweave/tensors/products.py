"""Large matrix products on AMD processors, by oneDNN in place of MKL.

PyTorch multiplies float32 matrices with MKL, which selects kernels with vectors of half the width where the processor
is not Intel's. PyTorch hands them to oneDNN only where float32 may be computed in bfloat16. But oneDNN does that with
matrix units alone (AMX), which no AMD processor has: without them its products are in float32, with errors like MKL's.
So the permission is given on such processors only, after a test of the numbers, and only around products of our own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedweave.tensors.trees import Tree, tree_leaves

LARGE = 2**19  # numbers of a tensor from which on its products are faster; small ones are slower
CPUINFO = Path("/proc/cpuinfo")


@contextmanager
def use_fast_products(*trees: Tree) -> Iterator[None]:
    """Inside this block, float32 products are computed by the faster library, if one of the `trees` has a large leaf.

    PyTorch's setting is that of the caller again afterwards.
    """
    if not any(leaf.numel() >= LARGE for leaf in tree_leaves(trees)) or not has_fast_products():
        yield
        return
    with _permit_bfloat16():
        yield


@cache
def has_fast_products() -> bool:
    """Whether oneDNN is faster than MKL on this processor, and computes in float32."""
    return needs_onednn(CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else "") and _is_float32()


def needs_onednn(cpuinfo: str) -> bool:
    """Whether the processor is AMD's, with AVX-512 and without matrix units; by the text of /proc/cpuinfo."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "").split()
    return "AuthenticAMD" in cpuinfo and "avx512f" in flags and not any(flag.startswith("amx") for flag in flags)


def _is_float32() -> bool:
    """Whether products keep digits that bfloat16 and TF32 lose, where these are permitted."""
    if not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    with _permit_bfloat16():
        for rows, inner, columns in ((64, 64, 64), (512, 512, 512), (100, 128, 4096), (100, 4096, 128)):
            exact = torch.eye(rows, inner) @ torch.full((inner, columns), 1 + 2**-20)
            if not torch.equal(exact[0], torch.full((columns,), 1 + 2**-20)):
                return False
    return True


@contextmanager
def _permit_bfloat16() -> Iterator[None]:
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before
