"""Values and gradients inside a mapped function, and the vector-Jacobian product of the server's parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

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


def by_name(gradients: Iterable[Tensor | None], params: Params) -> Params:
    """`gradients` by the names of `params`; zeros where a loss does not depend on the parameter."""
    pairs = zip(params.items(), gradients, strict=True)
    return {name: torch.zeros_like(value) if g is None else g for (name, value), g in pairs}


def value_and_grad(loss: Callable[[Params], tuple[Tensor, Tree]], params: Params) -> tuple[Tensor, Tree, Params]:
    """(value, auxiliary, gradient) of `loss` at `params`, with the bits of `torch.func.grad_and_value`.

    That function imports PyTorch's compiler, which takes seconds in every process; its parts do not.
    """
    if not HAS_PARTS:
        grads, (value, aux) = torch.func.grad_and_value(loss, has_aux=True)(params)
        return value, aux, grads
    with grad_increment_nesting() as level, torch.enable_grad():
        leaves = _create_differentiable(_wrap_all_tensors(params, level), level)
        value, aux = loss(leaves)
        slopes = torch.autograd.grad(value, [*leaves.values()], create_graph=True, allow_unused=True)
        outputs: Any = (value, aux, by_name(slopes, leaves))
        result: tuple[Tensor, Tree, Params] = _undo_create_differentiable(outputs, level)
    return result


def derivative_along(function: Callable[[Tensor], Tensor], point: Tensor, direction: Tensor) -> Tensor:
    """The derivative of `function` at `point` along `direction`: J · direction, of the shape of the function's value.

    Two gradients one in the other: Jᵀ v is linear in v, and the slope of v · (J · direction) is asked for. Forward mode
    (`torch.func.jvp`) imports PyTorch's compiler, as `torch.func.grad_and_value` does.
    """

    def along(weights: Params) -> tuple[Tensor, Tree]:
        def weighted(at: Params) -> tuple[Tensor, Tree]:
            return (function(at["point"]) * weights["weights"]).sum(), {}

        slopes = value_and_grad(weighted, {"point": point})[2]
        return (slopes["point"] * direction).sum(), {}

    return value_and_grad(along, {"weights": torch.zeros_like(function(point))})[2]["weights"]


class _ScalarProduct(torch.autograd.Function):
    """The gradient of the scalar product of an output and a vector, which is the vector; the value is not computed.

    With `grad_outputs` in its place, PyTorch imports sympy, which takes seconds in every process.
    """

    @staticmethod
    def forward(output: Tensor, vector: Tensor) -> Tensor:
        return output.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        del grad  # always 1
        return ctx.saved_tensors[0], None


def pull_back(
    generate: Callable[[Tree], Params], phi: Tree, cotangent: Callable[[Params], Params]
) -> tuple[Tree, Params]:
    """(∂ generate(φ) / ∂φ)ᵀ · cotangent(θ̄) and θ̄ = generate(φ).

    One forward and one backward pass serve all participants. With cotangent = θ̄ − θ (received minus trained) this is
    the gradient of ½ ‖generate(φ) − θ‖²: a *descent* step on it moves generated models towards trained ones.
    """
    leaves, spec = tree_flatten(phi)
    tracked = [leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
    with torch.enable_grad():
        outputs = generate(tree_unflatten(tracked, spec))
    start = {name: value.detach() for name, value in outputs.items()}
    vector, differentiable = cotangent(start), [name for name, value in outputs.items() if value.requires_grad]
    with torch.enable_grad():
        products = [_ScalarProduct.apply(outputs[name], vector[name]) for name in differentiable]
    # With one client, the generated models may not depend on φ at all.
    grads = torch.autograd.grad(products, tracked, allow_unused=True) if differentiable else [None] * len(tracked)
    storages = {value.untyped_storage().data_ptr() for value in vector.values()}
    gradients = [
        torch.zeros_like(leaf) if g is None else _separate_memory(g, storages)
        for g, leaf in zip(grads, tracked, strict=True)
    ]
    return tree_unflatten(gradients, spec), start


def _separate_memory(gradient: Tensor, storages: set[int]) -> Tensor:
    """`gradient`, or a copy if its memory is one of `storages` (addresses), because callers may write to it."""
    return gradient.clone() if gradient.untyped_storage().data_ptr() in storages else gradient
