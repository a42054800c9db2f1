"""Values and gradients inside a mapped function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedweave.tensors.trees import Params, Tree

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_all_tensors,
        grad_increment_nesting,
    )
except ImportError:  # another version of PyTorch may have other parts; its public function takes seconds to import
    HAS_PARTS = False
else:
    HAS_PARTS = True


def value_and_grad(loss: Callable[[Params], tuple[Tensor, Tree]], params: Params) -> tuple[Tensor, Tree, Params]:
    """(value, auxiliary, gradient) of `loss` at `params`, with the bits of `torch.func.grad_and_value`.

    That function imports PyTorch's compiler, which costs every process seconds; its parts do not.
    """
    if not HAS_PARTS:
        grads, (value, aux) = torch.func.grad_and_value(loss, has_aux=True)(params)
        return value, aux, grads
    with grad_increment_nesting() as level, torch.enable_grad():
        leaves = _create_differentiable(_wrap_all_tensors(params, level), level)
        value, aux = loss(leaves)
        slopes = torch.autograd.grad(value, [*leaves.values()], create_graph=True, allow_unused=True)
        grads = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(leaves.items(), slopes, strict=True)}
        outputs: Any = (value, aux, grads)
        result: tuple[Tensor, Tree, Params] = _undo_create_differentiable(outputs, level)
    return result
