"""The steps of stacked clients: in plain PyTorch, by a kernel, or recorded as a CUDA graph.

Parameters, optimiser state and all tensors that the loss captured are stacked tensors [P, ...]. Only the loss is
mapped. Plain autograd gives the gradients of all clients at once: the gradient of the sum over clients holds the
gradient of every client. The step works on whole stacks.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.execution_mode import NotCovered, current_mode
from fedweave.client.kernel_steps import take_kernel_steps
from fedweave.client.loss_check import check_gradient, check_loss
from fedweave.client.step_records import Stacks, Steps, StepSettings
from fedweave.tensors import recordings, trees
from fedweave.tensors.convolutions import use_products
from fedweave.tensors.gradients import by_name
from fedweave.tensors.trees import Params


def take_steps(settings: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]) -> tuple[Stacks, Tensor]:
    """All steps, and the loss [K, P] of each. The stacks may be written to."""
    mode = current_mode()
    if mode.kernel:
        if result := take_kernel_steps(settings, stacks, steps, captured):
            return result
        if mode.alone:
            raise NotCovered
    steps = Steps(steps.rows.contiguous(), steps.keys.contiguous(), steps.all_active)
    with use_products(steps.rows.device.type):  # entered again, because leaving the transform has switched it off
        if mode.recorded and (result := _take_recorded_steps(settings, stacks, steps, captured)):
            return result
        return _take_plain_steps(settings, stacks, steps, captured)


def _take_plain_steps(
    settings: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]
) -> tuple[Stacks, Tensor]:
    is_stackable, losses = settings.solver.can_stack(stacks.state), []
    for rows, key, step_is_full in zip(*steps, strict=True):
        stacks, value = _advance(settings, stacks, captured, rows, key, is_stackable and step_is_full)
        is_stackable = is_stackable if step_is_full else settings.solver.can_stack(stacks.state)
        losses.append(value)
    return stacks, torch.stack(losses)


def _take_recorded_steps(
    settings: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]
) -> tuple[Stacks, Tensor] | None:
    """As `_take_plain_steps` with the same bits; None where steps cannot be recorded."""
    leaves, spec = tree_flatten(trees.tree_map(Tensor.contiguous, stacks))
    captured = [tensor.contiguous() for tensor in captured]
    rows, keys, all_active = steps
    step = partial(_flat_step, settings, spec)

    def advance(recording: recordings.Recording) -> None:
        is_stackable = settings.solver.can_stack(stacks.state)
        for step_is_full in all_active:
            recording.advance(is_stackable and step_is_full)
            if not step_is_full:
                is_stackable = settings.solver.can_stack(tree_unflatten(recording.state, spec).state)

    result = recordings.run((settings.key, str(spec)), step, advance, leaves, captured, [rows, keys])
    return None if result is None else (tree_unflatten(result[0], spec), result[1])


def _flat_step(
    settings: StepSettings, spec: Any, inplace: bool, leaves: list[Tensor], captured: list[Tensor], inputs: list[Tensor]
) -> recordings.Advanced:
    """`_advance` on leaves in place of trees.

    Raises:
        TypeError: a result has another type or shape than its input, which a recording would misread.
    """
    rows, keys = inputs
    new, value = _advance(settings, tree_unflatten(leaves, spec), captured, rows, keys, inplace)
    new_leaves = tree_flatten(new)[0]
    for leaf, new_leaf in zip(leaves, new_leaves, strict=True):
        if (new_leaf.dtype, new_leaf.shape) != (leaf.dtype, leaf.shape):
            raise TypeError(f"{leaf.dtype} {[*leaf.shape]} becomes {new_leaf.dtype} {[*new_leaf.shape]}")
    return new_leaves, value


def _advance(
    settings: StepSettings, stacks: Stacks, captured: list[Tensor], rows: Tensor, keys: Tensor, inplace: bool
) -> tuple[Stacks, Tensor]:
    """One step of all clients; with `inplace`, all clients are active and the solver may write to the stacks."""
    params, state, rest = stacks
    own_tensors = [tensor for tensor, dim in zip(captured, settings.dims, strict=True) if dim is not None]

    def client_loss(
        params: Params, rest: Params, own_tensors: list[Tensor], rows: Tensor, key: Tensor
    ) -> tuple[Tensor, Params]:
        iterator = iter(own_tensors)
        tensors = [
            tensor if dim is None else next(iterator) for tensor, dim in zip(captured, settings.dims, strict=True)
        ]
        return check_loss(settings.rebuild(tensors)({**params, **rest}, rows, key))

    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        # One axis for all arguments: PyTorch traverses every argument that has an axis of its own.
        values, buffers = vmap(client_loss)(leaves, rest, own_tensors, rows, keys)
    check_gradient(values)
    grads = by_name(torch.autograd.grad(values.sum(), [*leaves.values()], allow_unused=True), params)
    rest_after = {**rest, **{name: value.detach() for name, value in buffers.items()}}
    if inplace:
        return Stacks(*settings.solver.step_(params, grads, state), rest_after), values.detach()
    new = Stacks(*vmap(settings.solver.step)(params, grads, state), rest_after)
    if settings.masked:
        active = (rows >= 0).flatten(1).any(-1)
        new = trees.tree_map(partial(_where, active), new, stacks)
    return new, values.detach()


def _where(active: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """`after` [P, ...] for the clients that are `active` [P], `before` for the others."""
    return torch.where(trees.column(active, after), after, before)
