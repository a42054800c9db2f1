"""Instructions of the kernel, before their operands have places in memory."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

SOURCE = Path(__file__).with_name("native.cpp")
_ENUM = re.search(r"enum Code : Int \{(.*?)\}", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
CODES = {name.lower(): code for code, name in enumerate(re.findall(r"\w+", _ENUM[1] if _ENUM else ""))}
ELEMENTWISE = frozenset(name for name, code in CODES.items() if code < CODES["sum"])
# Operands that an instruction writes to, and how many of them are results; the others are working memory.
WRITES = {
    "adam": ((0, 2, 3), 3),
    "softmax": ((0, 2), 1),
    "log_softmax": ((0, 2), 1),
    "product": ((0, 4), 1),
    **dict.fromkeys(("convolution", "convolution_input", "convolution_weight"), ((0, 5), 1)),
    "max_pool": ((0, 1), 2),
}

Place = tuple[Tensor | None, Sequence[int]]  # an operand and its strides


class Instruction(NamedTuple):
    """An instruction before its operands have places in memory."""

    name: str
    size: tuple[int, ...]
    places: list[Place]


def memory_of(tensor: Tensor) -> int:
    """The identity of the memory of `tensor`."""
    return tensor.untyped_storage()._cdata


def results_of(line: Instruction) -> list[Tensor]:
    """What an instruction writes to, without its working memory."""
    positions, count = WRITES.get(line.name, ((0,), 1))
    return [tensor for i in positions[:count] if (tensor := line.places[i][0]) is not None]
