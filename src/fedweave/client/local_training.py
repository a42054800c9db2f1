"""Local training: a solver takes the steps of a minibatch plan, for one client in plain PyTorch or for stacked clients.

Under `torch.func.vmap` (the `batched` executor) `descend` leaves the transform, and `stacked_steps` takes the steps of
all clients together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.loss_check import check_gradient, check_loss
from fedweave.client.solvers import Loss, Solver, clone, value_and_grad
from fedweave.client.stacked_steps import take_steps
from fedweave.client.step_records import Stacks, Steps, StepSettings
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.closures import capture
from fedweave.tensors.mapping import run_outside
from fedweave.tensors.trees import Params, Tree, is_mapped


class Fit(NamedTuple):
    """What local training returns: the model, the solver's last state and the mean loss over the steps."""

    model: Params
    state: Tree
    loss: Tensor


def descend(
    loss: Loss,
    model: Params,
    plan: Sequence[Iterable[Tensor]] | Tensor,
    solver: Solver,
    key: Tensor,
    names: Iterable[str],
    state: Tree | None = None,
    masked: bool = False,
) -> Fit:
    """Train the parameters `names` of `model` along `plan`: epochs of steps of rows [B].

    Args:
        loss: (model, rows, key) -> (scalar, buffers).
        model: parameters and buffers; never written to.
        plan: epochs of steps [E, S, B]; with `masked`, rows of -1 are padding; steps of padding alone have no effect.
        solver: the local solver; training continues from `state`, or from the solver's first state.
        key: 0-d key of the randomness inside the model.
    """
    params, rest = trees.select(model, names), trees.omit(model, names)
    # One tensor is not taken apart, because every part of a stacked one costs several microseconds.
    steps = plan.flatten(0, 1) if isinstance(plan, Tensor) else [rows for epoch in plan for rows in epoch]
    counts = [plan.shape[1]] * len(plan) if isinstance(plan, Tensor) else [sum(1 for _ in epoch) for epoch in plan]
    # Keys depend on (epoch, step), not on a running count, because padding changes the number of earlier steps.
    positions = torch.tensor(
        [(e, k) for e, count in enumerate(counts) for k in range(count)], dtype=torch.int64, device=key.device
    )
    step_keys = dropout_keys.fold(key, *positions.reshape(-1, 2).T)
    if is_mapped():
        params, state, rest, mean = _train_stacked_clients(loss, params, rest, steps, solver, step_keys, state, masked)
    else:
        params, state, rest, mean = _train_single_client(loss, params, rest, steps, solver, step_keys, state)
    trained = {**rest, **params}
    return Fit({name: trained[name] for name in model}, state, mean)


def total_gradient(
    loss: Loss, model: Params, parts: Iterable[Tensor], key: Tensor, names: Iterable[str]
) -> tuple[Tensor, Params]:
    """(value, gradient with respect to the parameters `names`) of the sum of `loss` over `parts`, rows [B] each."""
    fit = descend(loss, model, [parts], _GradientSum(), key, names, masked=True)
    return fit.loss * fit.state["steps"], fit.state["sum"]


@dataclass(frozen=True)
class _GradientSum(Solver):
    """Sums gradients and leaves the parameters unchanged."""

    def init(self, params: Params) -> Tree:
        first = next(iter(params.values()))
        return {"sum": trees.tree_map(torch.zeros_like, params), "steps": first.new_zeros(())}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        return params, {"sum": trees.tree_map(torch.add, state["sum"], grads), "steps": state["steps"] + 1}

    step_ = step


def _train_single_client(
    loss: Loss,
    params: Params,
    rest: Params,
    steps: Sequence[Tensor] | Tensor,
    solver: Solver,
    step_keys: Tensor,
    state: Tree | None,
) -> tuple[Params, Tree, Params, Tensor]:
    params = clone(params)
    state = solver.init(params) if state is None else clone(state)
    losses = []
    for rows, key in zip(steps, step_keys, strict=True):
        value, buffers, grads = value_and_grad(_bind_loss(loss, rest, rows, key), params)
        params, state = solver.step_(params, grads, state)
        rest = {**rest, **buffers}
        losses.append(value)
    return params, state, rest, torch.stack(losses).mean() if losses else torch.zeros((), device=step_keys.device)


def _bind_loss(loss: Loss, rest: Params, rows: Tensor, key: Tensor) -> Callable[[Params], tuple[Tensor, Params]]:
    def checked(params: Params) -> tuple[Tensor, Params]:
        result = check_loss(loss({**params, **rest}, rows, key))
        check_gradient(result[0])
        return result

    return checked


def _train_stacked_clients(
    loss: Loss,
    params: Params,
    rest: Params,
    steps: Sequence[Tensor] | Tensor,
    solver: Solver,
    step_keys: Tensor,
    state: Tree | None,
    masked: bool,
) -> tuple[Params, Tree, Params, Tensor]:
    captured = capture(loss)
    state = solver.init(params) if state is None else state
    if not len(steps):
        return params, state, rest, torch.zeros((), device=step_keys.device)
    rows = steps if isinstance(steps, Tensor) else torch.stack([*steps])
    inputs, spec = tree_flatten((params, state, rest, rows, step_keys))

    def train(clients: int, tensors: list[Tensor], is_stacked: tuple[bool, ...]) -> Tree:
        """(parameters [P, ...], states, other entries, mean loss [P]) of steps [P, K, B] with keys [P, K]."""
        pairs = [*zip(tensors, is_stacked, strict=True)]
        own = [x if stacked else x.expand(clients, *x.shape) for x, stacked in pairs[: len(inputs)]]
        dims = tuple(0 if stacked else None for _, stacked in pairs[len(inputs) :])
        settings = StepSettings(captured.form, captured.rebuild, solver, masked, dims)
        params, state, rest, steps, keys = tree_unflatten(own, spec)
        active = (steps >= 0).flatten(2).any(-1)
        all_active = active.all(0).tolist() if masked else [True] * steps.shape[1]
        records = Steps(steps.movedim(1, 0), keys.movedim(1, 0), all_active)
        stacks = Stacks(clone(params), clone(state), rest)
        stacks, losses = take_steps(settings, stacks, records, tensors[len(inputs) :])
        mean = torch.where(active, losses.T, 0.0).sum(1) / active.sum(1).clamp(min=1)
        return *stacks, mean

    result: tuple[Params, Tree, Params, Tensor] = run_outside(train, [*inputs, *captured.tensors])
    return result
