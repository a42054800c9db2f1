"""Programs of array operations: what a function of tensors does, recorded once, for the kernel that repeats it.

The function runs once while every operation below autograd is recorded, those of its backward pass and its optimiser as
well. Each becomes an instruction for `native.cpp`. Views need none: an operand is a place in memory with strides.
Intermediate values share one small memory, by the time of their use.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedweave.tensors.composites import find_composite
from fedweave.tensors.copied import without_copies
from fedweave.tensors.instructions import CODES, Instruction, Place, memory_of, results_of

OPERAND = np.dtype([("buffer", np.int64), ("offset", np.int64), ("stride", np.int64, 4)])
INSTRUCTION = np.dtype([("code", np.int64), ("size", np.int64, 4), ("at", OPERAND, 6)])
AXES, OPERANDS = 4, 6
ARENA, ALIGNMENT = 0, 64  # the buffer of intermediate values; bytes
LANES = BLOCK = 16  # numbers of the widest vector; rows of a softmax at once


def whole_vectors(count: int) -> int:
    """The numbers of as many vectors as hold `count` of them."""
    return -(-count // LANES) * LANES


class Unsupported(Exception):
    """A function does what the kernel has no operation for."""


class Recorder(TorchDispatchMode):
    """Records the calls of PyTorch's operations; it keeps all tensors, so that no memory is used twice.

    A composite operation is recorded as those that it consists of.

    Args:
        simple: names of the operations that are recorded themselves.
    """

    def __init__(self, simple: Container[str]) -> None:
        super().__init__()
        self._simple = simple
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the other answer imports PyTorch's compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if composite := find_composite(func, self._simple):
            with self:
                result = composite(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, _snapshot(args), kwargs or {}, _snapshot(result)))
        return result


def _snapshot(value: Any) -> Any:
    """The same memory in new tensors: an operation in place may later change the shape of the old ones."""
    if isinstance(value, tuple | list):
        return type(value)(map(_snapshot, value))
    return value.detach() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class ArrayProgram:
    """Instructions for the kernel.

    Attributes:
        code: array of `INSTRUCTION`.
        inputs: buffers of the inputs, in their order.
        outputs: buffers of the outputs, in their order.
        constants: tensors that are buffers themselves, by buffer.
        buffers: number of buffers.
        arena: bytes of intermediate values.
        written: positions of the inputs that the program writes to.
    """

    code: np.ndarray
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: dict[int, Tensor]
    buffers: int
    arena: int
    written: frozenset[int]


class Builder:
    """Instructions of recorded calls.

    Attributes:
        real: the floating type.
    """

    def __init__(self, inputs: Sequence[Tensor], real: torch.dtype) -> None:
        self.real = real
        self._inputs = list(inputs)
        self._external = {memory_of(tensor): position + 1 for position, tensor in enumerate(inputs)}
        if len(self._external) != len(inputs):
            raise Unsupported("two inputs share their memory")
        self._buffers = 1 + len(inputs)
        self._constants: dict[int, Tensor] = {}
        self._scalars: dict[tuple[str, str], Tensor] = {}
        self._temporary: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []
        self._code: list[Instruction] = []

    # --- what the rules of lowering.py call ------------------------------------------------------------------------

    def emit(self, name: str, size: Sequence[int], *operands: Place) -> None:
        """One instruction: axes of `size`, and for every operand a tensor with its strides; first the result."""
        padding = (1,) * (AXES - len(size))
        places: list[Place] = [(tensor, (*(0,) * len(padding), *strides)) for tensor, strides in operands]
        for tensor, _ in places:
            if tensor is not None:
                self._check(tensor)
        self._code.append(Instruction(name, (*padding, *size), places))

    def elementwise(self, name: str, out: Tensor, *operands: Tensor) -> None:
        """out = name(operands), which broadcast to `out`; types are those that the instruction needs."""
        if out.numel():
            tensors = [out, *(operand.expand(out.shape) for operand in operands)]
            size, strides = collapse(out.shape, [tensor.stride() for tensor in tensors])
            self.emit(name, size, *zip([out, *operands], strides, strict=True))

    def copy(self, out: Tensor, value: Tensor) -> None:
        """out = value, of any type."""
        kinds = (self.kind(value), self.kind(out))
        name = {("real", "real"): "copy", ("int", "int"): "int_copy", ("bool", "bool"): "bool_copy"}.get(kinds)
        name = name or "_to_".join(kinds)
        if name not in CODES:
            raise Unsupported(name)
        self.elementwise(name, out, value)

    def fill(self, out: Tensor, value: float) -> None:
        """out = value everywhere."""
        self.copy(out, self.scalar(value, out.dtype))

    def accumulate(self, out: Tensor, value: Tensor, axes: Sequence[int]) -> None:
        """out = the sum of `value` over `axes`, which `out` may have kept."""
        self.fill(out, 0)
        kept = out
        if out.ndim != value.ndim:
            for axis in axes:
                kept = kept.unsqueeze(axis)
        steps = [0 if axis in axes else kept.stride(axis) for axis in range(value.ndim)]
        if value.numel():
            size, strides = collapse(value.shape, [steps, value.stride()], by=1)
            name = "sum" if self.kind(out) == "real" else "int_sum"
            self.emit(name, size, (out, strides[0] if size != (1,) else (0,)), (value, strides[1]))

    def scalar(self, value: Any, dtype: torch.dtype) -> Tensor:
        """A constant."""
        key = (repr(value), self.kind_of(dtype))  # -0.0 equals 0.0
        if key not in self._scalars:
            self._scalars[key] = self.constant(torch.tensor(value, dtype=self.real if key[1] == "real" else dtype))
        return self._scalars[key]

    def constant(self, value: Tensor) -> Tensor:
        """A tensor that the program only reads."""
        self._temporary.pop(memory_of(value), None)
        self._external[memory_of(value)] = self._buffers
        self._constants[self._buffers] = value
        self._buffers += 1
        return value

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous intermediate value."""
        value = torch.empty(tuple(shape), dtype=dtype)
        self._temporary[memory_of(value)] = value
        return value

    def tensor(self, value: Any, dtype: torch.dtype) -> Tensor:
        """A tensor or number as a tensor of `dtype`."""
        if not isinstance(value, Tensor):
            return self.scalar(value, dtype)
        if self.kind(value) == self.kind_of(dtype):
            return value
        converted = self.new(value.shape, dtype)
        self.copy(converted, value)
        return converted

    def contiguous(self, value: Tensor) -> Tensor:
        """`value`, or a copy without gaps."""
        if value.is_contiguous():
            return value
        packed = self.new(value.shape, value.dtype)
        self.copy(packed, value)
        return packed

    def find_window(self, index: Tensor) -> tuple[Tensor, int] | None:
        """(rows [m], first) if `index` was computed as rows[:, None] + (first, first + 1, ...)."""
        writes = [i for i, line in enumerate(self._code) if memory_of(index) in map(memory_of, results_of(line))]
        line = self._code[writes[-1]] if writes else None
        if line is None or line.name != "int_add" or line.size != (1, 1, *index.shape):
            return None
        rows, span = (tensor for tensor, _ in line.places[1:])
        assert rows is not None
        assert span is not None
        if rows.shape != (len(index), 1) or self._external.get(memory_of(span)) not in self._constants:
            return None
        written = (memory for later in self._code[writes[-1] + 1 :] for memory in map(memory_of, results_of(later)))
        if memory_of(rows) in written or not torch.equal(span.diff(), torch.ones_like(span[1:])):
            return None
        return rows[:, 0], int(span[0])

    def kind(self, value: Tensor) -> str:
        """ "real", "int" or "bool"."""
        if value.is_floating_point() and value.dtype != self.real and value.ndim:
            raise Unsupported(f"numbers in {value.dtype} beside {self.real}")
        return self.kind_of(value.dtype)

    def kind_of(self, dtype: torch.dtype) -> str:
        """The kind of a dtype; the precision of floating types is not looked at."""
        if dtype.is_floating_point:
            return "real"
        kinds = {torch.int64: "int", torch.bool: "bool"}
        if dtype not in kinds:
            raise Unsupported(f"numbers in {dtype}")
        return kinds[dtype]

    # --- recorded calls --------------------------------------------------------------------------------------------

    def add_call(
        self, rules: Mapping[str, Callable[..., None]], func: Any, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """The instructions of one recorded call, by the rule with the name of its operation."""
        outputs = [t for t in (result if isinstance(result, tuple | list) else [result]) if isinstance(t, Tensor)]
        if not func._schema.is_mutable and outputs and all(self._is_known(out) for out in outputs):
            if func._overloadname == "dtype" and outputs[0].dtype != args[0].dtype:
                raise Unsupported(f"{func}: another type for the same memory")
            return  # a view
        if torch.Tag.inplace_view in func.tags:
            return
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unsupported(f"{func}: random numbers")
        for out in outputs:
            if not self._is_known(out):
                self._temporary[memory_of(out)] = out
        name = func.overloadpacket.__name__
        rule = rules.get(name) or rules.get(name.removesuffix("_"))
        if rule is None:
            raise Unsupported(str(func))
        rule(self, result, *args, **kwargs)

    def _is_known(self, tensor: Tensor) -> bool:
        return memory_of(tensor) in self._external or memory_of(tensor) in self._temporary

    def _check(self, tensor: Tensor) -> None:
        self.kind(tensor)
        if not self._is_known(tensor):
            raise Unsupported("a tensor that is neither an input nor computed")
        if self._is_external(tensor) and tensor.is_floating_point() and tensor.dtype != self.real:
            raise Unsupported(f"an input in {tensor.dtype} beside {self.real}")

    # --- the program -----------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[Tensor], updates: Sequence[Tensor]) -> ArrayProgram:
        """The program that also writes `outputs` to their buffers and `updates` to the first inputs."""
        for value, new in zip(self._inputs, updates, strict=False):
            if (value.dtype, value.shape) != (new.dtype, new.shape):
                raise Unsupported(f"{value.dtype} {[*value.shape]} becomes {new.dtype} {[*new.shape]}")
            if memory_of(value) != memory_of(new):
                if memory_of(new) in map(memory_of, self._inputs):
                    raise Unsupported("inputs that change places")
                self.copy(value, new)
        results = []
        for output in outputs:
            result = torch.empty_like(output, memory_format=torch.contiguous_format)
            results.append(self._buffers)
            self._external[memory_of(self._keep(result))] = self._buffers
            self._buffers += 1
            self.copy(result, output)
        code = self._remove_unread()
        offsets, arena = self._place(code)
        written = {self._external[memory_of(t)] for line in code for t in results_of(line) if self._is_external(t)}
        if written & self._constants.keys():
            raise Unsupported("a constant that is written to")
        inputs = tuple(range(1, len(self._inputs) + 1))
        lines = [self._encode(*line, offsets) for line in code]
        changed = frozenset(number - 1 for number in inputs if number in written)
        return ArrayProgram(
            np.array(lines, INSTRUCTION), inputs, tuple(results), self._constants, self._buffers, arena, changed
        )

    def _keep(self, tensor: Tensor) -> Tensor:
        self._kept.append(tensor)
        return tensor

    def _is_external(self, tensor: Tensor) -> bool:
        return memory_of(tensor) in self._external

    def _remove_unread(self) -> list[Instruction]:
        """The lines of whose results some number reaches an input or output."""
        needed: dict[int, Tensor] = {}  # which numbers of a memory

        def read(tensor: Tensor) -> Tensor:
            count = tensor.untyped_storage().nbytes() // tensor.itemsize
            mask = needed.setdefault(memory_of(tensor), torch.zeros(count, dtype=torch.bool))
            return mask.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        code = []
        for line in reversed([*without_copies(self._code)]):
            if any(self._is_external(t) or bool(read(t).any()) for t in results_of(line)):
                for tensor, _ in line.places:
                    if tensor is not None and not self._is_external(tensor):
                        read(tensor).fill_(True)
                code.append(line)
        return code[::-1]

    def _place(self, code: list[Instruction]) -> tuple[dict[int, int], int]:
        """The offset of every intermediate value, in bytes; two overlap only if they are used at different times."""
        last: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for time, line in enumerate(code):
            for tensor, _ in line.places:
                if tensor is not None and not self._is_external(tensor):
                    last[memory_of(tensor)] = time
                    sizes[memory_of(tensor)] = self._bytes(tensor, tensor.untyped_storage().nbytes() // tensor.itemsize)
        offsets: dict[int, int] = {}
        active: list[tuple[int, int, int]] = []  # offset, end, last use
        for time, line in enumerate(code):
            for memory in [memory_of(t) for t, _ in line.places if t is not None and not self._is_external(t)]:
                if memory in offsets:
                    continue
                active = sorted(place for place in active if place[2] >= time)
                start = 0
                for offset, end, _ in active:
                    if start + sizes[memory] <= offset:
                        break
                    start = max(start, end)
                offsets[memory] = start
                end = start + -(-sizes[memory] // ALIGNMENT) * ALIGNMENT
                active.append((start, end, last[memory]))
        return offsets, max([offsets[memory] + sizes[memory] for memory in offsets], default=0) + ALIGNMENT

    def _bytes(self, tensor: Tensor, count: int) -> int:
        return count * (self.real.itemsize if tensor.is_floating_point() else tensor.itemsize)

    def _encode(self, name: str, size: Sequence[int], places: Sequence[Place], offsets: dict[int, int]) -> Any:
        operands: list[tuple[int, int, tuple[int, ...]]] = []
        for tensor, strides in places:
            if tensor is None:
                operands.append((-1, 0, tuple(strides)))  # numbers that the instruction reads there
                continue
            offset = self._bytes(tensor, int(tensor.storage_offset()))
            buffer = self._external.get(memory_of(tensor), ARENA)
            operands.append((buffer, offset + offsets.get(memory_of(tensor), 0), tuple(strides)))
        operands += [(-1, 0, (0,) * AXES)] * (OPERANDS - len(operands))
        return CODES[name], tuple(size), operands


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]], by: int = 0
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same positions with fewer axes: without axes of one position, and with neighbours joined where all can be.

    Args:
        by: which of `strides` gives the order of the axes, because images may have their channels last.

    Raises:
        Unsupported: more axes are left than an instruction has.
    """
    axes: list[tuple[int, list[int]]] = []
    for position in sorted(range(len(shape)), key=lambda axis: -strides[by][axis]):
        size, steps = shape[position], [each[position] for each in strides]
        if size == 1:
            continue
        if axes and all(outer == inner * size for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    if len(axes) > AXES:
        raise Unsupported(f"{len(axes)} axes that cannot be joined")
    if not axes:
        return (1,), [(1,)] * len(strides)
    return tuple(size for size, _ in axes), [tuple(steps[i] for _, steps in axes) for i in range(len(strides))]
