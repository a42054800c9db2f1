"""Values and gradients inside a mapped function."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch._functorch import eager_transforms as functorch

from fedweave.tensors.trees import Params, Tree


def value_and_grad(loss: Callable[[Params], tuple[Tensor, Tree]], params: Params) -> tuple[Tensor, Tree, Params]:
    """(value, auxiliary, gradient) of `loss` at `params`, with the bits of `torch.func.grad_and_value`.

    That function imports PyTorch's compiler, which costs every process seconds; the steps below are its own.
    """
    with functorch.grad_increment_nesting() as level, torch.enable_grad():
        leaves = functorch._create_differentiable(functorch._wrap_all_tensors(params, level), level)
        value, aux = loss(leaves)
        slopes = torch.autograd.grad(value, [*leaves.values()], create_graph=True, allow_unused=True)
        grads = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(leaves.items(), slopes, strict=True)}
        value, aux, grads = (
            functorch._undo_create_differentiable(tree, level) for tree in cast(Any, (value, aux, grads))
        )
    return value, aux, grads
