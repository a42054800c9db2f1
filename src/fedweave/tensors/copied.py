"""Programs of array operations without needless copies: an operand that was copied is read where it came from."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from fedweave.tensors.instructions import ELEMENTWISE, Instruction, Place, memory_of, results_of

COPIES = {"copy", "int_copy", "bool_copy"}
# Operands that have any strides, besides those of elementwise operations.
STRIDED = {"product": (1, 2), "sum": (1,), "int_sum": (1,)}
NOWHERE = -1
LARGE = 2**20  # numbers up to which a copy is followed, which takes sixty bytes for each of them


class CopySources:
    """Where the numbers of every memory were copied from."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # memory -> memory and position of each number
        self._copies: dict[int, set[int]] = {}  # memory -> those with copies of it
        self._tensors: dict[int, Tensor] = {}

    def forget(self, size: Sequence[int] | None, place: Place) -> None:
        """The numbers of an operand have new values; without a `size`, all numbers of its memory."""
        tensor, _ = place
        assert tensor is not None
        memory = memory_of(tensor)
        if memory in self._sources:
            memories, _ = self._sources[memory]
            (memories if size is None else view(memories, size, place))[...] = NOWHERE
        for copy in self._copies.pop(memory, ()):
            memories, _ = self._sources[copy]
            memories[memories == memory] = NOWHERE

    def add(self, size: Sequence[int], place: Place, source: Place) -> None:
        """The numbers of an operand are copies of those of `source`."""
        tensor, other = place[0], source[0]
        assert tensor is not None
        assert other is not None
        memory, origin = memory_of(tensor), memory_of(other)
        if memory == origin or prod(size) > LARGE:
            return
        memories, positions = np.full(size, origin), positions_of(size, source)
        if origin in self._sources:
            earlier = [view(part, size, source) for part in self._sources[origin]]
            positions = np.where(earlier[0] == NOWHERE, positions, earlier[1])
            memories = np.where(earlier[0] == NOWHERE, memories, earlier[0])
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        target = self._sources.setdefault(memory, (np.full(count, NOWHERE), np.zeros(count, np.int64)))
        memories[memories == memory] = NOWHERE
        view(target[0], size, place)[...], view(target[1], size, place)[...] = memories, positions
        self._tensors[origin] = other
        for each in np.unique(memories).tolist():
            self._copies.setdefault(each, set()).add(memory)

    def find(self, size: Sequence[int], place: Place, results: Sequence[Tensor]) -> Place:
        """The same numbers where they came from, if these lie in one memory and not further apart.

        Not in the memory of `results`, which the instruction may have written before it reads there.
        """
        tensor, strides = place
        if tensor is None or memory_of(tensor) not in self._sources:
            return place
        memories, positions = (view(part, size, place) for part in self._sources[memory_of(tensor)])
        corner = (0,) * len(size)
        memory, first = int(memories[corner]), int(positions[corner])
        if memory in (NOWHERE, *map(memory_of, results)) or (memories != memory).any():
            return place
        steps = [
            int(positions[(*corner[:axis], 1, *corner[axis + 1 :])]) - first if count > 1 else stride
            for axis, (count, stride) in enumerate(zip(size, strides, strict=True))
        ]
        if not all(0 <= step <= stride for step, stride in zip(steps, strides, strict=True)):
            return place
        found = self._tensors[memory].as_strided(tuple(size), steps, first), tuple(steps)
        return found if (positions == positions_of(size, found)).all() else place


def view(numbers: np.ndarray, size: Sequence[int], place: Place) -> np.ndarray:
    """What an array with an entry for each number of a memory has for those of an operand."""
    tensor, strides = place
    assert tensor is not None
    steps = [stride * numbers.itemsize for stride in strides]
    return as_strided(numbers[int(tensor.storage_offset()) :], tuple(size), steps)


def positions_of(size: Sequence[int], place: Place) -> np.ndarray:
    """The positions of the numbers of an operand in its memory."""
    tensor, strides = place
    assert tensor is not None
    axes = np.ix_(*(np.arange(count) * stride for count, stride in zip(size, strides, strict=True)))
    return np.asarray(sum(axes, start=np.int64(int(tensor.storage_offset()))))


def without_copies(code: Iterable[Instruction]) -> Iterator[Instruction]:
    """The instructions, with operands where they were copied from; then copies that nobody reads can be left out."""
    sources = CopySources()
    for name, size, places in code:
        movable = range(1, len(places)) if name in ELEMENTWISE else STRIDED.get(name, ())
        results = results_of(Instruction(name, size, places))
        found = [sources.find(size, place, results) if i in movable else place for i, place in enumerate(places)]
        yield Instruction(name, size, found)
        for tensor in results:
            sources.forget(*((size, places[0]) if name in ELEMENTWISE else (None, (tensor, ()))))
        if name in COPIES:
            sources.add(size, places[0], found[1])
