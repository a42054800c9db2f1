"""Compiled steps: a traced function of tensors as one fused program, kept for as long as the process lives.

Compiling takes 10 to 40 seconds per client model. PyTorch caches the result on disk (in `TORCHINDUCTOR_CACHE_DIR`), so
the next process waits a few seconds. A program from the cache gives the same bits as one that was just compiled.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

Program = Callable[..., Any]
LIMIT = 16  # programs of one process; a run that needs more has shapes that change all the time
_PROGRAMS: dict[Hashable, Program] = {}


def available() -> bool:
    """Whether this machine has the C++ compiler that programs for a CPU need."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


def program(key: Hashable, function: Program, examples: tuple[Any, ...]) -> Program:
    """`function` compiled for trees of the shapes of `examples`; equal keys promise equal functions.

    After `LIMIT` programs, and where the compiler fails, it is `function` itself, which gives the same up to rounding.
    """
    leaves, spec = tree_flatten(examples)
    place = (key, str(spec), tuple((t.shape, t.dtype, t.device) for t in leaves))
    if place not in _PROGRAMS and len(_PROGRAMS) < LIMIT:
        try:
            _PROGRAMS[place] = _compiled(function, leaves, spec)
        except Exception as error:
            warnings.warn(f"a step is not compiled: {type(error).__name__}: {str(error).splitlines()[0]}", stacklevel=2)
            _PROGRAMS[place] = function
    return _PROGRAMS.get(place, function)


def _compiled(function: Program, leaves: list[torch.Tensor], spec: Any) -> Program:
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx

    shape: list[Any] = []

    def flat(*inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs, after = tree_flatten(function(*tree_unflatten(inputs, spec)))
        shape.append(after)
        return outputs

    with config.patch(compile_threads=1):  # a pool of compilers would outlive a run that is killed
        traced = torch.compile(make_fx(flat)(*leaves), dynamic=False)
        with torch.no_grad():
            traced(*leaves)

    def run(*trees: Any) -> Any:
        with torch.no_grad():
            return tree_unflatten(traced(*tree_flatten(trees)[0]), shape[0])

    return run
