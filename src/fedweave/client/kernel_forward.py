"""Outputs of stacked clients' models by the kernel: those of one client after the other, as their training steps."""

from collections.abc import Callable, Hashable
from contextlib import suppress

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.client.execution_mode import PLAIN, NotCovered, current_mode, use_mode
from fedweave.client.kernel_steps import keep, own_memory
from fedweave.tensors import lowering, native
from fedweave.tensors.array_programs import ArrayProgram, Unsupported
from fedweave.tensors.closures import Capture, Rebuild, capture
from fedweave.tensors.mapping import can_leave, run_outside

BLOCK = 256  # rows at a time, whose intermediate values fit into the cache
Recorded = tuple[ArrayProgram, torch.dtype, torch.Size, torch.dtype]
"""A program, the type of its numbers, and form and type of its output."""
_PROGRAMS: dict[Hashable, Recorded | None] = {}


def run_forward(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`function(rows)` without gradients; by the kernel if stacked clients run with it and it covers the function."""
    if not (current_mode().kernel and rows.device.type == "cpu" and can_leave()):
        return function(rows)
    captured = capture(function)

    def run(clients: int, stacks: list[Tensor], is_stacked: tuple[bool, ...]) -> list[Tensor]:
        if not any(is_stacked):
            return []
        output = _run_stacked(captured, clients, stacks, is_stacked)
        if output is None and current_mode().alone:
            raise NotCovered
        return [] if output is None else [output]

    found = run_outside(run, [rows, *captured.tensors])
    return found[0] if found else function(rows)


def _run_stacked(captured: Capture, clients: int, stacks: list[Tensor], is_stacked: tuple[bool, ...]) -> Tensor | None:
    """The outputs [P, ...] of all clients; None where the kernel does not cover them."""
    stacks = [stack.contiguous() for stack in stacks]
    rows, axis = stacks[0], int(is_stacked[0])
    count = rows.shape[axis]
    whole = count - count % BLOCK
    parts = [(0, min(count, BLOCK), max(1, count // BLOCK))] + [(whole, count - whole, 1)] * (0 < whole < count)
    outputs = []
    for start, size, blocks in parts:
        found = _find_program(captured, [rows.narrow(axis, start, size), *stacks[1:]], is_stacked)
        if found is None:
            return None
        program, real, shape, dtype = found
        output = torch.empty(clients, blocks * shape[0], *shape[1:], dtype=dtype)
        inputs = [(x, x[0].numel() if own else 0, 0) for x, own in zip(stacks, is_stacked, strict=True)]
        inputs[0] = (rows.narrow(axis, start, size), inputs[0][1], size * rows.stride(axis))
        native.run(program, real, inputs, [(output, output[0].numel(), shape.numel())], (clients, blocks))
        outputs.append(output)
    return torch.cat(outputs, 1)


def _find_program(captured: Capture, stacks: list[Tensor], is_stacked: tuple[bool, ...]) -> Recorded | None:
    parts = [stack[0] if own else stack for stack, own in zip(stacks, is_stacked, strict=True)]
    signature = (captured.form, is_stacked, tuple((part.shape, part.dtype) for part in parts))
    if signature not in _PROGRAMS:
        recorded = None
        for real in {part.dtype for part in parts} & native.NAMES.keys():  # other data may have another precision
            with suppress(Unsupported):
                recorded = _record_forward(captured.rebuild, [own_memory(part) for part in parts], real)
        keep(_PROGRAMS, signature, recorded)
    return _PROGRAMS[signature]


def _record_forward(rebuild: Rebuild, inputs: list[Tensor], real: torch.dtype) -> Recorded:
    if native.load(real) is None:
        raise Unsupported("no kernel")
    results: list[Tensor] = []

    def forward() -> list[Tensor]:
        # As in `kernel_steps`: mapped over one client whose tensors have no axis of clients.
        function = rebuild(inputs[1:])
        results[:] = [vmap(lambda _: function(inputs[0]))(torch.zeros(1, dtype=real))[0]]
        return results

    with use_mode(PLAIN):
        program = lowering.record(forward, inputs, 1, real)
    if program.written:
        raise Unsupported("a forward pass that writes to its inputs")
    return program, real, results[0].shape, results[0].dtype
