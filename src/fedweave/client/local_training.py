"""Local training: a solver along a minibatch plan, for one client in plain PyTorch or for many of them stacked.

Under `torch.func.vmap` (the `batched` executor) `descend` leaves the transform: parameters, optimiser state and all
tensors that the loss captured become stacked tensors [P, ...]. Only the loss is mapped. Its gradient is plain autograd
on all clients at once (the gradient of the sum over clients has every client's own), and the step works on whole
stacks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.solvers import Loss, Solver, clone, masked_mean, value_and_grad
from fedweave.tensors import compiled, trees
from fedweave.tensors import dropout_keys as keys
from fedweave.tensors.closures import Rebuild, capture
from fedweave.tensors.gradients import by_name
from fedweave.tensors.trees import Params, Tree, mapped

_COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)


@contextmanager
def compilation(enabled: bool) -> Iterator[None]:
    """Whether stacked steps are compiled inside this block."""
    token = _COMPILING.set(enabled)
    try:
        yield
    finally:
        _COMPILING.reset(token)


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
        plan: epochs [E, S, B]; with `masked`, rows of -1 are padding and a step of nothing but padding changes nothing.
        solver: the local solver; `state` continues an earlier one.
        key: 0-d key of the randomness inside the model.
    """
    params, rest = trees.only(model, names), trees.without(model, names)
    steps = [rows for epoch in plan for rows in epoch]
    # Keys depend on (epoch, step), not on a running count, because padding changes the number of steps before them.
    places = torch.tensor(
        [(e, k) for e, epoch in enumerate(plan) for k, _ in enumerate(epoch)], dtype=torch.int64, device=key.device
    )
    step_keys = keys.fold(key, *places.reshape(-1, 2).T)
    if mapped():
        params, state, rest, mean = _train_together(loss, params, rest, steps, solver, step_keys, state, masked)
    else:
        params, state, rest, mean = _train_one(loss, params, rest, steps, solver, step_keys, state)
    after = {**rest, **params}
    return Fit({name: after[name] for name in model}, state, mean)


def total_gradient(
    loss: Loss, model: Params, parts: Iterable[Tensor], key: Tensor, names: Iterable[str]
) -> tuple[Tensor, Params]:
    """(value, gradient with respect to the parameters `names`) of the sum of `loss` over `parts`, rows [B] each."""
    fit = descend(loss, model, [parts], _Total(), key, names, masked=True)
    return fit.loss * fit.state["steps"], fit.state["sum"]


@dataclass(frozen=True)
class _Total(Solver):
    """Adds gradients up and moves nothing."""

    def init(self, params: Params) -> Tree:
        first = next(iter(params.values()))
        return {"sum": trees.tree_map(torch.zeros_like, params), "steps": first.new_zeros(())}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        return params, {"sum": trees.tree_map(torch.add, state["sum"], grads), "steps": state["steps"] + 1}

    step_ = step


def _train_one(
    loss: Loss,
    params: Params,
    rest: Params,
    steps: Sequence[Tensor],
    solver: Solver,
    step_keys: Tensor,
    state: Tree | None,
) -> tuple[Params, Tree, Params, Tensor]:
    params = clone(params)
    state = solver.init(params) if state is None else clone(state)
    losses = []
    for rows, key in zip(steps, step_keys, strict=True):
        value, buffers, grads = value_and_grad(_of_parameters(loss, rest, rows, key), params)
        params, state = solver.step_(params, grads, state)
        rest = {**rest, **buffers}
        losses.append(value)
    return params, state, rest, torch.stack(losses).mean() if losses else torch.zeros((), device=step_keys.device)


def _of_parameters(loss: Loss, rest: Params, rows: Tensor, key: Tensor) -> Callable[[Params], tuple[Tensor, Params]]:
    return lambda params: loss({**params, **rest}, rows, key)


_Steps = list[tuple[Tensor, Tensor, bool]]  # of every step: rows [P, B], keys [P], whether no client pauses
_Stacks = tuple[Params, Tree, Params]  # trained parameters, the solver's state, everything else of the model


@dataclass(frozen=True)
class _Job:
    """Settings of stacked training, without its tensors: `dims` gives the client axis of each captured tensor (0 or
    None). No tuple, because PyTorch would traverse it several times in every round.
    """

    form: Any
    rebuild: Rebuild
    solver: Solver
    masked: bool
    spec: Any
    dims: tuple[int | None, ...] = ()


def _train_together(
    loss: Loss,
    params: Params,
    rest: Params,
    steps: Sequence[Tensor],
    solver: Solver,
    step_keys: Tensor,
    state: Tree | None,
    masked: bool,
) -> tuple[Params, Tree, Params, Tensor]:
    captured = capture(loss)
    state = solver.init(params) if state is None else state
    if not steps:
        return params, state, rest, torch.zeros((), device=step_keys.device)
    inputs, spec = tree_flatten((params, state, rest, torch.stack([*steps]), step_keys, captured.tensors))
    outputs = _StackedTraining.apply(_Job(captured.form, captured.rebuild, solver, masked, spec), *inputs)
    return tree_unflatten(outputs, tree_flatten((params, state, rest, 0))[1])


class _StackedTraining(torch.autograd.Function):
    """Hands the stacked tensors of a mapped call to `_train_stacks`, outside the transform."""

    @staticmethod
    def forward(job: _Job, *inputs: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("stacked training runs under vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], job: _Job, *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        n, dims = info.batch_size, in_dims[1:]
        fronted = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, dims, strict=True)]
        captured = len(tree_unflatten(inputs, job.spec)[5])
        own = len(fronted) - captured
        fronted[:own] = [
            x.expand(n, *x.shape) if dim is None else x for x, dim in zip(fronted[:own], dims, strict=False)
        ]
        job = replace(job, dims=tuple(None if dim is None else 0 for dim in dims[own:]))
        outputs = tree_flatten(_train_stacks(job, *tree_unflatten(fronted, job.spec)))[0]
        return tuple(outputs), (0,) * len(outputs)


def _train_stacks(
    job: _Job, params: Params, state: Tree, rest: Params, steps: Tensor, step_keys: Tensor, captured: list[Tensor]
) -> tuple[Params, Tree, Params, Tensor]:
    """Stacked training: parameters [P, ...], `steps` [P, K, B], `step_keys` [P, K]; the loss comes back as [P]."""
    active = (steps >= 0).flatten(2).any(-1)
    full = active.all(0).tolist() if job.masked else [True] * steps.shape[1]
    by_step = (stack.movedim(1, 0).contiguous() for stack in (steps, step_keys))
    each = [*zip(*by_step, full, strict=True)]
    run = _run_compiled if _COMPILING.get() else _run
    (params, state, rest), losses = run(job, (clone(params), clone(state), rest), each, captured)
    return params, state, rest, vmap(masked_mean)(torch.stack(losses, 1), active)


def _run(job: _Job, stacks: _Stacks, steps: _Steps, captured: list[Tensor]) -> tuple[_Stacks, list[Tensor]]:
    """All steps, and the loss [P] of each."""
    params, state, rest = stacks
    level, losses = job.solver.stacks(state), []
    for rows, key, everybody in steps:
        params, state, rest, value = _advance(job, params, state, rest, captured, rows, key, level and everybody)
        level = level if everybody else job.solver.stacks(state)
        losses.append(value)
    return (params, state, rest), losses


def _run_compiled(job: _Job, stacks: _Stacks, steps: _Steps, captured: list[Tensor]) -> tuple[_Stacks, list[Tensor]]:
    """As `_run`. Trees are taken apart once for all steps, because this takes as long as a small step."""
    stacks, captured = trees.tree_map(Tensor.contiguous, stacks), [tensor.contiguous() for tensor in captured]
    program = _program(job, (*stacks, captured, *steps[0][:2]))
    if program is None:
        return _run(job, stacks, steps, captured)
    (leaves, spec), losses = tree_flatten(stacks), []
    for rows, key, _ in steps:
        *leaves, value = program(*leaves, *captured, rows, key)
        losses.append(value)
    return tree_unflatten(leaves, spec), losses


def _program(job: _Job, examples: tuple[Any, ...]) -> compiled.Program | None:
    """A compiled step for inputs like `examples`."""

    def step(
        params: Params, state: Tree, rest: Params, captured: list[Tensor], rows: Tensor, keys: Tensor
    ) -> tuple[Params, Tree, Params, Tensor]:
        new = _advance(job, params, state, rest, captured, rows, keys, inplace=False)
        trees.tree_map(_check_alike, (params, state, rest), new[:3])
        return new

    return compiled.program((job.form, job.solver, job.masked, job.dims), step, examples)


def _check_alike(before: Tensor, after: Tensor) -> None:
    """What a program returns is its next input, and a program takes one type and shape without looking at them."""
    if (after.dtype, after.shape) != (before.dtype, before.shape):
        raise TypeError(f"{before.dtype} {[*before.shape]} becomes {after.dtype} {[*after.shape]}")


def _advance(
    job: _Job,
    params: Params,
    state: Tree,
    rest: Params,
    captured: list[Tensor],
    rows: Tensor,
    keys: Tensor,
    inplace: bool,
) -> tuple[Params, Tree, Params, Tensor]:
    """One step of all clients; with `inplace`, nobody pauses and the solver may write to the stacks."""

    own = [tensor for tensor, dim in zip(captured, job.dims, strict=True) if dim is not None]

    def one(params: Params, rest: Params, own: list[Tensor], rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        mine = iter(own)
        tensors = [tensor if dim is None else next(mine) for tensor, dim in zip(captured, job.dims, strict=True)]
        return job.rebuild(tensors)({**params, **rest}, rows, key)

    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        # One axis for all arguments: PyTorch traverses every argument that has an axis of its own.
        values, buffers = vmap(one)(leaves, rest, own, rows, keys)
    grads = by_name(torch.autograd.grad(values.sum(), [*leaves.values()], allow_unused=True), params)
    after = {**rest, **{name: value.detach() for name, value in buffers.items()}}
    if inplace:
        return *job.solver.step_(params, grads, state), after, values.detach()
    new = (*vmap(job.solver.step)(params, grads, state), after)
    if job.masked:
        active = (rows >= 0).flatten(1).any(-1)
        new = trees.tree_map(partial(_where, active), new, (params, state, rest))
    return *new, values.detach()


def _where(active: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """`after` [P, ...] of the clients that are `active` [P], `before` of the others."""
    return torch.where(trees.column(active, after), after, before)
