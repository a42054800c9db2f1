"""Hypernetworks made of dense layers: models from embeddings, and mixture weights from an embedding."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import Params, is_mapped

PIECE = 2048  # rows of a wide layer
Shapes = Mapping[str, tuple[int, ...]] | tuple[tuple[str, tuple[int, ...]], ...]
"""Parameter name -> shape of the target network, as a mapping or as pairs."""


class TargetHypernetwork(nn.Module):
    """An embedding becomes a model: a ReLU trunk, then one linear head per target tensor (pFedHN, SHN, GHN).

    Trunk: Linear(f_in, width), then `hidden` times ReLU and Linear(width, width), as in
    github.com/AvivSham/pFedHN.
    """

    def __init__(self, f_in: int, shapes: Shapes, *, width: int = 100, hidden: int = 3) -> None:
        super().__init__()
        blocks = [layer for _ in range(hidden) for layer in (nn.ReLU(), nn.Linear(width, width))]
        self.trunk = nn.Sequential(nn.Linear(f_in, width), *blocks)
        self.shapes = {name: tuple(shape) for name, shape in dict(shapes).items()}
        self.heads = nn.ModuleList(nn.Linear(width, prod(shape)) for shape in self.shapes.values())

    def forward(self, z: Tensor) -> Params:
        """Embeddings [P, f_in] -> name -> [P, *shape]."""
        h = self.trunk(z)
        heads = zip(self.shapes.items(), self.heads, strict=True)
        return {name: apply_wide_head(h, head).reshape(len(z), *shape) for (name, shape), head in heads}


def apply_wide_head(h: Tensor, head: Any) -> Tensor:
    """Outputs of a linear head, an `nn.Linear` with many more outputs than inputs, for h [P, D].

    Without gradients, a CPU computes the outputs in pieces, in place: MKL is twice as fast with them, and `F.linear`
    first fills the memory of the outputs with copies of the bias.
    """
    weight, bias = head.weight, head.bias
    if len(weight) <= PIECE or torch.is_grad_enabled() or is_mapped() or h.device.type != "cpu":
        return F.linear(h, weight, bias)
    outputs = h.new_empty(len(h), len(weight))
    for piece, rows, offset in zip(outputs.split(PIECE, 1), weight.split(PIECE), bias.split(PIECE), strict=True):
        torch.mm(h, rows.T, out=piece).add_(offset)
    return outputs


def backpropagate_heads(heads: Params, cotangents: Sequence[Tensor]) -> Tensor:
    """The gradient [P, D] with respect to the common input of linear heads; it does not depend on the input.

    Args:
        heads: weight [n, D] and bias [n] of one head for all outputs, or of a head for each output in turn.
        cotangents: [P, ...] of every output.
    """
    weights = _split_by_output([*heads.values()][::2], cotangents)
    gradient = weights[0].new_zeros(len(cotangents[0]), weights[0].shape[1])
    for cotangent, weight in zip(cotangents, weights, strict=True):
        gradient.addmm_(cotangent.flatten(1), weight)
    return gradient


def head_gradients(h: Tensor, heads: Params, cotangents: Sequence[Tensor]) -> Params:
    """The gradients with respect to `heads`, see `backpropagate_heads`, at their inputs h [P, D]."""
    gradients = {name: torch.empty_like(value) for name, value in heads.items()}
    weights, biases = (_split_by_output([*gradients.values()][kind::2], cotangents) for kind in (0, 1))
    for cotangent, weight, bias in zip(cotangents, weights, biases, strict=True):
        rows = cotangent.flatten(1)
        torch.mm(rows.T, h, out=weight)
        torch.sum(rows, 0, out=bias)
    return gradients


def _split_by_output(tensors: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """The rows of every output in the weights or the biases of heads; no copies."""
    return tensors[0].split([c[0].numel() for c in cotangents]) if len(tensors) == 1 else tensors


class FlatHypernetwork(nn.Module):
    """An embedding becomes a model through one wide head: the hypernetwork of FedSheafHN.

    Twice [Linear, ReLU, dropout], then Linear(width, P) split into the target tensors, whose total size is P.
    """

    def __init__(self, f_in: int, shapes: Shapes, *, width: int = 128, dropout: float = 0.3) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(f_in, width), nn.Linear(width, width)
        self.shapes = {name: tuple(shape) for name, shape in dict(shapes).items()}
        self.head = nn.Linear(width, sum(prod(shape) for shape in self.shapes.values()))
        self.dropout = dropout

    def forward(self, z: Tensor, ids: Tensor, *, key: Tensor | None = None) -> Params:
        """Embeddings of all clients [N, f_in] -> models of those in `ids` [P], name -> [P, *shape]; dropout with a key.

        Masks are drawn for all clients: a client's model does not depend on which other clients take part.
        """
        outputs = apply_wide_head(self.hidden_features(z, ids, key=key), self.head)
        parts = outputs.split([prod(shape) for shape in self.shapes.values()], dim=-1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(len(ids), *shape) for (name, shape), part in named}

    def hidden_features(self, z: Tensor, ids: Tensor, *, key: Tensor | None = None) -> Tensor:
        """Inputs of the head for the clients `ids`, [P, width]."""
        for salt, layer in enumerate((self.fc1, self.fc2)):
            z = dropout_keys.dropout(F.relu(layer(z)), self.dropout, key, salt=salt)
        return z[ids]


class LayerWeights(nn.Module):
    """The dedicated hypernetwork of one pFedLA client: its embedding becomes one row of weights per layer.

    Three times [Linear, ReLU], then a head Linear(width, N) per layer, all stored as one matrix. With
    `relu_norm` the heads are positive at the start and rows are ReLU divided by their sum, as in
    github.com/KarhouTam/pFedLA, instead of a softmax. 35,350 parameters for 10 clients and 5 layers, plus
    the embedding.
    """

    def __init__(
        self, clients: int, layers: int, *, embed: int = 100, width: int = 100, relu_norm: bool = False
    ) -> None:
        super().__init__()
        sizes = [embed, width, width, width]
        blocks = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.trunk = nn.Sequential(*blocks)
        self.heads = nn.Linear(width, layers * clients)
        self.layers, self.relu_norm = layers, relu_norm
        if relu_norm:
            nn.init.uniform_(self.heads.weight)
            nn.init.zeros_(self.heads.bias)

    def forward(self, v: Tensor, client: Tensor) -> Tensor:
        """Embedding [embed] of the `client`, a 0-d index -> weights [L, N], rows summing to 1.

        With `relu_norm` a row without a positive entry becomes the client's own model.
        """
        scores = self.heads(self.trunk(v)).unflatten(-1, (self.layers, -1))
        if not self.relu_norm:
            return scores.softmax(-1)
        positive = F.relu(scores)
        total = positive.sum(-1, keepdim=True)
        own = (torch.arange(scores.shape[-1], device=scores.device) == client).to(scores.dtype)
        return torch.where(total > 0, positive / torch.where(total > 0, total, 1.0), own)
