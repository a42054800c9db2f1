"""Multilayer perceptrons on flattened inputs and on the history of a series."""

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import ClientModel
from fedweave.models.registry import model
from fedweave.settings import AtLeast, AtMost

Widths = Annotated[int | Sequence[int], AtLeast(1), AtMost(65_536), "width of the hidden layer, or a list of widths"]


def widths(hidden: int | Sequence[int]) -> tuple[int, ...]:
    """Hidden widths as a tuple; an int is one hidden layer, an empty sequence none.

    Raises:
        BadInput: unless all widths are positive integers.
    """
    sizes = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise BadInput(f"model.hidden: {hidden!r} is not a positive integer or a list of them; try 64")
    return sizes


class Perceptron(ClientModel):
    """Linear layers fc1, fc2, ... with ReLU, then the head fc; subclasses turn an input into a vector."""

    head = ("fc",)

    def __init__(self, inputs: int, hidden: int | Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = (inputs, *widths(hidden))
        self.hidden = tuple(f"fc{i}" for i in range(1, len(sizes)))
        for name, fan_in, fan_out in zip(self.hidden, sizes[:-1], sizes[1:], strict=True):
            self.add_module(name, nn.Linear(fan_in, fan_out))
        self.fc = nn.Linear(sizes[-1], outputs)

    @abstractmethod
    def vector(self, x: Tensor) -> Tensor:
        """The batch as vectors [B, inputs]."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Last hidden activation [B, D]."""
        del key, mask
        h = self.vector(x)
        for name in self.hidden:
            h = F.relu(getattr(self, name)(h))
        return h


@model("mlp")
class MLP(Perceptron):
    """Perceptron on flattened images or vectors; 354 parameters for 2 inputs, hidden [16, 16], 2 outputs."""

    def __init__(self, shape: tuple[int, ...], outputs: int, *, hidden: Widths = 64) -> None:
        super().__init__(prod(shape), hidden, outputs)

    def vector(self, x: Tensor) -> Tensor:
        """Flatten [B, *shape]."""
        return x.flatten(1)


@model("tpt_mlp")
class TptMLP(Perceptron):
    """The three-layer perceptron for temperatures, T_in values -> 16 -> 16 -> T_out; 486 parameters for 6, 6.

    `shape` is (T_in,) or (T_in, features). The input is the window of the recurrent model, [B, T, features]
    with T >= T_in; only the values (feature 0) of the first T_in steps are read.
    """

    reads = "series"

    def __init__(self, shape: tuple[int, ...], outputs: int, *, hidden: Widths = (16, 16)) -> None:
        super().__init__(shape[0], hidden, outputs)
        self.history = shape[0]

    def vector(self, x: Tensor) -> Tensor:
        """Values of the first T_in steps [B, T_in]."""
        return x[:, : self.history, 0]
