"""Compiled steps: a traced function of tensors as one fused program, which stays in memory until the process ends.

Compiling takes 10 to 40 seconds per client model. PyTorch caches the result on disk (in `TORCHINDUCTOR_CACHE_DIR`), so
the next process waits a few seconds. A program from the cache gives the same bits as one that was just compiled.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Program = Callable[..., Sequence[Tensor]]
LIMIT = 16  # programs of one process; a run that needs more has shapes that always change
_PROGRAMS: dict[Hashable, Program | None] = {}


def has_compiler() -> bool:
    """Whether this machine has the C++ compiler that programs for a CPU need."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


def program(key: Hashable, function: Callable[..., Any], examples: tuple[Any, ...]) -> Program | None:
    """`function` compiled for trees like `examples`: it takes the leaves and returns those of the result.

    All leaves are contiguous, those of the result too. Callers promise that equal keys mean equal functions. None after
    `LIMIT` programs, and where the compiler fails.
    """
    leaves, spec = tree_flatten(examples)
    signature = (key, str(spec), tuple((t.shape, t.dtype, t.device) for t in leaves))
    if signature not in _PROGRAMS and len(_PROGRAMS) < LIMIT:
        try:
            _PROGRAMS[signature] = _compile(_flatten_arguments(function, spec), leaves)
        except Exception as error:
            warnings.warn(f"a step is not compiled: {type(error).__name__}: {str(error).splitlines()[0]}", stacklevel=2)
            _PROGRAMS[signature] = None
    return _PROGRAMS.get(signature)


def _flatten_arguments(function: Callable[..., Any], spec: Any) -> Program:
    """`function` of trees as a function of their leaves."""
    return lambda *leaves: [leaf.contiguous() for leaf in tree_flatten(function(*tree_unflatten(leaves, spec)))[0]]


def _compile(function: Program, leaves: list[Tensor]) -> Program:
    """Compile traced operations without `torch.compile`, whose checks take a third of the time of a small step."""
    from torch import _inductor as inductor
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    traced = make_fx(function)(*leaves)
    # The compiler's cache on disk asks for an environment of shapes, though all of them are fixed.
    fake = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    # A pool of compiler processes would continue after its run is killed.
    with inductor.config.patch(compile_threads=1), torch.no_grad(), tracing(TracingContext(fake)):
        run = inductor.compile(traced, [*leaves])
    return torch.no_grad()(run)
