"""The steps of stacked clients by a kernel: all steps of one client after the other, its weights in the cache.

What the loop does in one step of one client (loss, gradient, optimiser) is recorded once and repeated by the kernel. So
whatever a method or model does is covered if the kernel has its operations; other steps run as without it.
"""

import warnings
from collections.abc import Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.execution_mode import PLAIN, use_mode
from fedweave.client.loss_check import check_gradient, check_loss
from fedweave.client.solvers import clone
from fedweave.client.step_records import Stacks, Steps, StepSettings
from fedweave.tensors import lowering, native, trees
from fedweave.tensors.array_programs import ArrayProgram, Unsupported
from fedweave.tensors.gradients import by_name
from fedweave.tensors.native import Input
from fedweave.tensors.trees import Params

LIMIT = 64  # programs of a process at a time
T = TypeVar("T")
_PROGRAMS: dict[Hashable, ArrayProgram | None] = {}


def take_kernel_steps(
    settings: StepSettings, stacks: Stacks, steps: Steps, captured: list[Tensor]
) -> tuple[Stacks, Tensor] | None:
    """All steps, and the loss [K, P] of each; None where the kernel does not cover them. Stacks may be written to."""
    leaves, spec = tree_flatten(trees.tree_map(Tensor.contiguous, stacks))
    real = next(iter(stacks.params.values())).dtype
    if steps.rows.device.type != "cpu" or native.load(real) is None:
        return None
    captured = [tensor.contiguous() for tensor in captured]
    program = _find_program(settings, spec, leaves, steps, captured, real)
    if program is None:
        return None
    # Parameters and state are copies of this call; the rest may still be in use elsewhere.
    own = len(tree_flatten(stacks.rest)[0])
    leaves = [x.clone() if i in program.written and i >= len(leaves) - own else x for i, x in enumerate(leaves)]
    rows, keys = (tensor.movedim(0, 1).contiguous() for tensor in (steps.rows, steps.keys))
    clients, count = keys.shape
    inputs: list[Input] = [(leaf, leaf[0].numel(), 0) for leaf in leaves]
    inputs += [(t, 0 if dim is None else t[0].numel(), 0) for t, dim in zip(captured, settings.dims, strict=True)]
    width = rows[0, 0].numel()
    inputs += [(rows, count * width, width), (keys, count, 1)]
    losses = torch.zeros(clients, count, dtype=real)
    masked = len(inputs) - 2 if settings.masked else None
    native.run(program, real, inputs, [(losses, count, 1)], (clients, count), masked)
    return tree_unflatten(leaves, spec), losses.T


def _find_program(
    settings: StepSettings, spec: Any, leaves: list[Tensor], steps: Steps, captured: list[Tensor], real: torch.dtype
) -> ArrayProgram | None:
    parts = [leaf[0] for leaf in leaves]
    parts += [t if dim is None else t[0] for t, dim in zip(captured, settings.dims, strict=True)]
    parts += [steps.rows[0, 0], steps.keys[0, 0]]
    signature = (settings.key, spec, tuple((part.shape, part.dtype) for part in parts))
    if signature not in _PROGRAMS:
        # A recorded step really takes place, so it gets copies of what it writes to.
        copies = [clone(part) if i < len(leaves) else own_memory(part) for i, part in enumerate(parts)]
        try:
            program = _record_step(settings, spec, len(leaves), copies, real)
        except Unsupported as error:
            warnings.warn(f"steps run without the kernel: {error}", stacklevel=2)
            program = None
        keep(_PROGRAMS, signature, program)
    return _PROGRAMS[signature]


def keep(programs: dict[Hashable, T], signature: Hashable, program: T) -> None:
    """Add a program, in place of the oldest one if there are many: a result never depends on what ran before."""
    if len(programs) >= LIMIT:
        del programs[next(iter(programs))]
    programs[signature] = program


def own_memory(part: Tensor) -> Tensor:
    """`part` in a memory of its own; large data that all clients share are not copied."""
    whole = part.untyped_storage().nbytes() == part.nbytes
    return part.detach() if whole and part.nbytes > 2**16 else part.clone(memory_format=torch.contiguous_format)


def _record_step(
    settings: StepSettings, spec: Any, count: int, inputs: list[Tensor], real: torch.dtype
) -> ArrayProgram:
    leaves, captured, (rows, key) = inputs[:count], inputs[count:-2], inputs[-2:]
    params, state, rest = tree_unflatten(leaves, spec)
    loss = settings.rebuild(captured)

    def evaluate_loss(params: Params) -> tuple[Tensor, Params]:
        return check_loss(loss({**params, **rest}, rows, key))

    def step() -> list[Tensor]:
        tracked = {name: value.detach().requires_grad_() for name, value in params.items()}
        with torch.enable_grad():
            # Mapped over one client whose tensors have no axis of clients: code that asks whether it is mapped then
            # makes no shapes that depend on data.
            value, buffers = vmap(lambda _: evaluate_loss(tracked))(torch.zeros(1, dtype=real))
        check_gradient(value)
        grads = by_name(torch.autograd.grad(value.sum(), [*tracked.values()], allow_unused=True), params)
        new, new_state = settings.solver.step_(params, grads, state)
        after = Stacks(new, new_state, {**rest, **{name: buffer[0].detach() for name, buffer in buffers.items()}})
        return [value[0].detach(), *tree_flatten(after)[0]]

    with use_mode(PLAIN):
        return lowering.record(step, inputs, 1, real)
