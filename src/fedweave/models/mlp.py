"""Multilayer perceptrons on flattened inputs and on the history of a series."""

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import ClientModel
from fedweave.models.pretrained import load_weights
from fedweave.models.registry import model
from fedweave.settings import AtLeast, AtMost, Size

Widths = Annotated[int | Sequence[int], AtLeast(1), AtMost(65_536), "width of the hidden layer, or a list of widths"]


class Perceptron(ClientModel):
    """Linear layers fc1, fc2, ... with ReLU, then the head fc; subclasses turn an input into a vector."""

    head = ("fc",)

    def __init__(self, inputs: int, hidden: int | Sequence[int], outputs: int) -> None:
        super().__init__()
        widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
        if not all(isinstance(width, int) and width > 0 for width in widths):
            raise BadInput(f"model.hidden: {hidden!r} is not a positive integer or a list of them; try 64")
        sizes = (inputs, *widths)
        self.hidden = tuple(f"fc{i}" for i in range(1, len(sizes)))
        for name, fan_in, fan_out in zip(self.hidden, sizes[:-1], sizes[1:], strict=True):
            self.add_module(name, nn.Linear(fan_in, fan_out))
        self.fc = nn.Linear(sizes[-1], outputs)

    @abstractmethod
    def to_vectors(self, x: Tensor) -> Tensor:
        """The batch as vectors [B, inputs]."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Last hidden activation [B, D]."""
        del key, mask
        h = self.to_vectors(x)
        for name in self.hidden:
            h = F.relu(getattr(self, name)(h))
        return h


@model("mlp")
class MLP(Perceptron):
    """Perceptron on flattened images or vectors; 354 parameters for 2 inputs, hidden [16, 16], 2 outputs.

    A value that the data set declares as a category selects a row of a table of vectors (`nn.Embedding`). Each category
    has a table, whose width is `embedding`, or the number of codes of the category if that is smaller.
    """

    embeds = True

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        categories: Sequence[int] = (),
        *,
        hidden: Widths = 64,
        embedding: Annotated[Size, "width of the vector of a category's value"] = 8,
        weights: Annotated[str, "file or folder of weights to start from; '': drawn at random"] = "",
    ) -> None:
        coded = [i for i, codes in enumerate(categories) if codes]
        width = [min(embedding, categories[i]) for i in coded]
        super().__init__(prod(shape) - len(coded) + sum(width), hidden, outputs)
        self.coded = tuple(coded)
        self.numbers = tuple(i for i in range(prod(shape)) if i not in {*coded})
        for i, size in zip(coded, width, strict=True):
            self.add_module(f"embedding{i}", nn.Embedding(categories[i], size))
        if weights:
            load_weights(self, weights, head="fc")

    def to_vectors(self, x: Tensor) -> Tensor:
        """[B, *shape] as vectors [B, D]: numbers first, then the vectors of categories."""
        flat = x.flatten(1)
        if not self.coded:
            return flat
        codes = flat.long()  # exact: float32 holds whole numbers up to 2^24
        vectors = [getattr(self, f"embedding{i}")(codes[:, i]) for i in self.coded]
        return torch.cat([flat[:, list(self.numbers)], *vectors], dim=1)


@model("linear")
class Linear(MLP):
    """One linear layer on flattened images or vectors: logistic or linear regression, with the vectors of `MLP`."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        categories: Sequence[int] = (),
        *,
        embedding: Annotated[Size, "width of the vector of a category's value"] = 8,
    ) -> None:
        super().__init__(shape, outputs, categories, hidden=(), embedding=embedding)


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

    def to_vectors(self, x: Tensor) -> Tensor:
        """Values of the first T_in steps [B, T_in]."""
        return x[:, : self.history, 0]
