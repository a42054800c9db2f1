"""Outputs of stacked clients' models by the kernel: those of one client after the other, as their training steps."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.client.execution_mode import PLAIN, current_mode, use_mode
from fedweave.client.kernel_steps import keep, own_memory
from fedweave.tensors import lowering, native
from fedweave.tensors.array_programs import ArrayProgram, Unsupported
from fedweave.tensors.closures import Rebuild, capture
from fedweave.tensors.trees import is_mapped

_PROGRAMS: dict[Hashable, tuple[ArrayProgram, torch.dtype, torch.Size, torch.dtype] | None] = {}


def run_forward(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`function(rows)` without gradients; by the kernel if stacked clients run with it and it covers the function."""
    if not (current_mode().kernel and is_mapped() and rows.device.type == "cpu"):
        return function(rows)
    captured = capture(function)
    result: Tensor = _StackedForward.apply(_Form(captured.form, captured.rebuild), rows, *captured.tensors)
    return result


@dataclass(frozen=True)
class _Form:
    """A captured function without its tensors; not a tuple, which PyTorch would traverse."""

    form: Any
    rebuild: Rebuild


class _StackedForward(torch.autograd.Function):
    """Passes the stacked tensors of a mapped call to `_run_stacked`, outside the transform."""

    @staticmethod
    def forward(form: _Form, rows: Tensor, *captured: Tensor) -> Tensor:
        result: Tensor = form.rebuild(captured)(rows)  # nothing is stacked
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], form: _Form, *inputs: Tensor) -> tuple[Tensor, int]:
        dims = in_dims[1:]
        stacks = [x if dim is None else x.movedim(dim, 0).contiguous() for x, dim in zip(inputs, dims, strict=True)]
        axes = tuple(None if dim is None else 0 for dim in dims)
        with torch.no_grad():
            result = _run_stacked(form, info.batch_size, stacks, axes)
            if result is None:
                result = vmap(lambda rows, *captured: form.rebuild(captured)(rows), axes)(*stacks)
        return result, 0


def _run_stacked(form: _Form, clients: int, stacks: list[Tensor], axes: tuple[int | None, ...]) -> Tensor | None:
    """The outputs [P, ...] of all clients; None where the kernel does not cover them."""
    stacks = [stack.contiguous() for stack in stacks]
    parts = [stack if axis is None else stack[0] for stack, axis in zip(stacks, axes, strict=True)]
    signature = (form.form, axes, tuple((part.shape, part.dtype) for part in parts))
    if signature not in _PROGRAMS:
        recorded = None
        for real in {part.dtype for part in parts} & native.NAMES.keys():  # other data may have another precision
            with suppress(Unsupported):
                recorded = _record_forward(form, [own_memory(part) for part in parts], real)
        keep(_PROGRAMS, signature, recorded)
    found = _PROGRAMS[signature]
    if found is None:
        return None
    program, real, shape, dtype = found
    output = torch.empty(clients, *shape, dtype=dtype)
    inputs = [(x, 0 if axis is None else x[0].numel(), 0) for x, axis in zip(stacks, axes, strict=True)]
    native.run(program, real, inputs, [(output, shape.numel(), 0)], (clients, 1))
    return output


def _record_forward(
    form: _Form, inputs: list[Tensor], real: torch.dtype
) -> tuple[ArrayProgram, torch.dtype, torch.Size, torch.dtype]:
    if native.load(real) is None:
        raise Unsupported("no kernel")
    results: list[Tensor] = []

    def forward() -> list[Tensor]:
        # As in `kernel_steps`: mapped over one client whose tensors have no axis of clients.
        function = form.rebuild(inputs[1:])
        results[:] = [vmap(lambda _: function(inputs[0]))(torch.zeros(1, dtype=real))[0]]
        return results

    with use_mode(PLAIN):
        program = lowering.record(forward, inputs, 1, real)
    if program.written:
        raise Unsupported("a forward pass that writes to its inputs")
    return program, real, results[0].shape, results[0].dtype
