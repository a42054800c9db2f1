"""The steps of stacked clients: in plain PyTorch, compiled to one program, or recorded as a CUDA graph.

Parameters, optimiser state and all tensors that the loss captured are stacked tensors [P, ...]. Only the loss is
mapped. Its gradient is plain autograd on all clients at once (the gradient of the sum over clients has every client's
own), and the step works on whole stacks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.solvers import Solver
from fedweave.tensors import compilation, recordings, trees
from fedweave.tensors.closures import Rebuild
from fedweave.tensors.convolutions import use_products
from fedweave.tensors.gradients import by_name
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True)
class ExecutionMode:
    """How stacked steps run: `compiled` to one program, `recorded` as a CUDA graph, on a GPU alone."""

    compiled: bool = False
    recorded: bool = False


PLAIN = ExecutionMode()
_MODE: ContextVar[ExecutionMode] = ContextVar("mode", default=PLAIN)


@contextmanager
def use_mode(mode: ExecutionMode) -> Iterator[None]:
    """How stacked steps run inside this block."""
    token = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(token)


class Stacks(NamedTuple):
    """Trained parameters, the solver's state, and everything else of the model."""

    params: Params
    state: Tree
    rest: Params


class Steps(NamedTuple):
    """Of every step: rows [K, P, B], keys [K, P], and whether no client pauses."""

    rows: Tensor
    keys: Tensor
    full: list[bool]


@dataclass(frozen=True)
class StepSettings:
    """Settings of stacked training, without its tensors: `dims` gives the client axis of each captured tensor (0 or
    None). No tuple, because PyTorch would traverse it several times in every round.
    """

    form: Any
    rebuild: Rebuild
    solver: Solver
    masked: bool
    spec: Any
    dims: tuple[int | None, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for jobs whose steps are the same function."""
        return self.form, self.solver, self.masked, self.dims


def take_steps(job: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]) -> tuple[Stacks, Tensor]:
    """All steps, and the loss [K, P] of each. The stacks may be written to."""
    mode = _MODE.get()
    with use_products(steps.rows.device.type):  # again, as the transform that was left has put it aside
        if mode.recorded and (done := _take_recorded_steps(job, stacks, steps, captured, mode.compiled)):
            return done
        return (
            _take_compiled_steps(job, stacks, steps, captured)
            if mode.compiled
            else _take_plain_steps(job, stacks, steps, captured)
        )


def _take_plain_steps(job: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]) -> tuple[Stacks, Tensor]:
    level, losses = job.solver.can_stack(stacks.state), []
    for rows, key, everybody in zip(*steps, strict=True):
        stacks, value = _advance(job, stacks, captured, rows, key, level and everybody)
        level = level if everybody else job.solver.can_stack(stacks.state)
        losses.append(value)
    return stacks, torch.stack(losses)


def _take_compiled_steps(
    job: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]
) -> tuple[Stacks, Tensor]:
    """As `_take_plain_steps`. Trees are taken apart once for all steps, because this takes as long as a small step."""
    leaves, spec = tree_flatten(trees.tree_map(Tensor.contiguous, stacks))
    captured, losses = [tensor.contiguous() for tensor in captured], []
    program = _compile_step(job, spec, (leaves, captured, [steps.rows[0], steps.keys[0]]))
    if program is None:
        return _take_plain_steps(job, stacks, steps, captured)
    for rows, key, _ in zip(*steps, strict=True):
        *leaves, value = program(*leaves, *captured, rows, key)
        losses.append(value)
    return tree_unflatten(leaves, spec), torch.stack(losses)


def _take_recorded_steps(
    job: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor], fused: bool
) -> tuple[Stacks, Tensor] | None:
    """As `_take_plain_steps` with the same bits, or `_take_compiled_steps`; None where a step cannot be recorded."""
    leaves, spec = tree_flatten(trees.tree_map(Tensor.contiguous, stacks))
    captured = [tensor.contiguous() for tensor in captured]
    rows, keys, full = steps
    program = _compile_step(job, spec, (leaves, captured, [rows[0], keys[0]])) if fused else None

    def step(inplace: bool, leaves: list[Tensor], captured: list[Tensor], at: list[Tensor]) -> recordings.Advanced:
        if program is None:
            return _flat_step(job, spec, inplace, leaves, captured, at)
        *new, value = program(*leaves, *captured, *at)
        return new, value

    def advance(recording: recordings.Recording) -> None:
        level = job.solver.can_stack(stacks.state)
        for everybody in full:
            recording.advance(level and everybody)
            if not everybody:
                level = job.solver.can_stack(tree_unflatten(recording.state, spec).state)

    done = recordings.run((job.key, str(spec), program is None), step, advance, leaves, captured, [rows, keys])
    return None if done is None else (tree_unflatten(done[0], spec), done[1])


def _compile_step(
    job: StepSettings, spec: Any, examples: tuple[list[Tensor], list[Tensor], list[Tensor]]
) -> compilation.Program | None:
    """A compiled step for leaves, captured tensors, rows and keys like `examples`."""

    def step(leaves: list[Tensor], captured: list[Tensor], at: list[Tensor]) -> recordings.Advanced:
        return _flat_step(job, spec, False, leaves, captured, at)

    return compilation.program((job.key, str(spec)), step, examples)


def _flat_step(
    job: StepSettings, spec: Any, inplace: bool, leaves: list[Tensor], captured: list[Tensor], at: list[Tensor]
) -> recordings.Advanced:
    """`_advance` on leaves in place of trees.

    Raises:
        TypeError: a tensor of another type or shape comes back, which a program or recording would misread.
    """
    rows, keys = at
    new, value = _advance(job, tree_unflatten(leaves, spec), captured, rows, keys, inplace)
    after = tree_flatten(new)[0]
    for old, fresh in zip(leaves, after, strict=True):
        if (fresh.dtype, fresh.shape) != (old.dtype, old.shape):
            raise TypeError(f"{old.dtype} {[*old.shape]} becomes {fresh.dtype} {[*fresh.shape]}")
    return after, value


def _advance(
    job: StepSettings, stacks: Stacks, captured: list[Tensor], rows: Tensor, keys: Tensor, inplace: bool
) -> tuple[Stacks, Tensor]:
    """One step of all clients; with `inplace`, nobody pauses and the solver may write to the stacks."""
    params, state, rest = stacks
    own = [tensor for tensor, dim in zip(captured, job.dims, strict=True) if dim is not None]

    def client_loss(
        params: Params, rest: Params, own: list[Tensor], rows: Tensor, key: Tensor
    ) -> tuple[Tensor, Params]:
        mine = iter(own)
        tensors = [tensor if dim is None else next(mine) for tensor, dim in zip(captured, job.dims, strict=True)]
        return job.rebuild(tensors)({**params, **rest}, rows, key)

    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        # One axis for all arguments: PyTorch traverses every argument that has an axis of its own.
        values, buffers = vmap(client_loss)(leaves, rest, own, rows, keys)
    grads = by_name(torch.autograd.grad(values.sum(), [*leaves.values()], allow_unused=True), params)
    after = {**rest, **{name: value.detach() for name, value in buffers.items()}}
    if inplace:
        return Stacks(*job.solver.step_(params, grads, state), after), values.detach()
    new = Stacks(*vmap(job.solver.step)(params, grads, state), after)
    if job.masked:
        active = (rows >= 0).flatten(1).any(-1)
        new = trees.tree_map(partial(_where, active), new, stacks)
    return new, values.detach()


def _where(active: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """`after` [P, ...] of the clients that are `active` [P], `before` of the others."""
    return torch.where(trees.column(active, after), after, before)
