"""Attention between clients: over whole models (pFedGAT) and over embeddings (FedSheafHN)."""

from collections.abc import Callable
from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import choose
from fedweave.tensors import dropout_keys

Score = Literal["gat", "gatv2"]
Control = Callable[[Tensor], Tensor]
"""Maps the weights [N, N] of an attention to those that are used in their place."""


def no_control(weights: Tensor) -> Tensor:
    """The weights as they are."""
    return weights


class AttentionHeads(nn.Module):
    """K heads of additive attention of every row over every row, without bias, Xavier-uniform.

    gat (Velickovic et al., arXiv:1710.10903): e_ij = LeakyReLU(a . [W h_i || W h_j]). LeakyReLU is monotone,
    so within a head every row i ranks the sources j alike. gatv2 (Brody et al., arXiv:2105.14491): e_ij = a .
    LeakyReLU(W_l h_i + W_r h_j) does not have this limit. With `shared` all heads have one W, and an a of their own.
    """

    def __init__(
        self,
        features: int,
        *,
        width: int = 8,
        heads: int = 8,
        score: Score = "gat",
        shared: bool = False,
        slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.score, self.slope, maps = choose(score, ("gat", "gatv2"), "score"), slope, 1 if shared else heads
        self.source = nn.Parameter(_xavier(maps, width, features))
        self.query = nn.Parameter(_xavier(maps, width, features)) if score == "gatv2" else None
        self.a = nn.Parameter(_xavier(heads, 1, 2 * width if score == "gat" else width)[:, 0])

    def values(self, h: Tensor) -> Tensor:
        """Projected source rows of the heads, [N, D] -> [N, K, width], or [N, 1, width] if they share one W."""
        return F.linear(h, self.source.flatten(0, 1)).unflatten(-1, self.source.shape[:2])

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Rows [N, D] -> weights [K, N, N], a softmax over the sources where `mask` [N, N] is true."""
        z = self.values(h)
        if self.query is None:
            own, other = self.a.chunk(2, dim=-1)
            scores = (z * own).sum(-1)[:, None] + (z * other).sum(-1)  # [N, N, K]
            scores = F.leaky_relu(scores, self.slope)
        else:
            queries = F.linear(h, self.query.flatten(0, 1)).unflatten(-1, self.query.shape[:2])
            scores = (F.leaky_relu(queries[:, None] + z, self.slope) * self.a).sum(-1)
        scores = scores.movedim(-1, 0)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


def _xavier(heads: int, rows: int, columns: int) -> Tensor:
    bound = sqrt(6.0 / (rows + columns))
    return torch.empty(heads, rows, columns).uniform_(-bound, bound)


class ModelAttention(nn.Module):
    """pFedGAT: weights between clients from the parameters of their models.

    The rows are models, layer-normalised without affine terms and, with `h_scale="rsqrt"`, divided by sqrt(d). K
    `heads` (see `AttentionHeads`) attend over all clients including the client itself, and their mean is taken.
    """

    def __init__(self, features: int, *, h_scale: Literal["none", "rsqrt"] = "none", **heads: Any) -> None:
        super().__init__()
        self.attend = AttentionHeads(features, **heads)
        self.scale = {"none": 1.0, "rsqrt": features**-0.5}[choose(h_scale, ("none", "rsqrt"), "h_scale")]

    def head_weights(self, models: Tensor) -> Tensor:
        """Normalised models [N, d] -> row-stochastic weights of every head [K, N, N]."""
        return self.attend(models if self.scale == 1.0 else models * self.scale)

    def forward(self, models: Tensor) -> Tensor:
        """Normalised models [N, d] -> row-stochastic R [N, N]."""
        return self.head_weights(models).mean(0)


def layer_norm(x: Tensor) -> Tensor:
    """Rows of [N, d] with mean 0 and variance 1 (epsilon 1e-5)."""
    return F.layer_norm(x, x.shape[-1:])


def count_sketch(x: Tensor, width: int, key: Tensor) -> Tensor:
    """Rows [N, d] hashed to [N, width]: every column joins a random bucket with a random sign.

    Inner products keep their expectation (Charikar et al., 2002), so attention over large models needs little time.
    """
    bucket = (dropout_keys.uniform(dropout_keys.fold(key, 0), x.shape[1:]) * width).long()
    sign = (dropout_keys.uniform(dropout_keys.fold(key, 1), x.shape[1:]) < 0.5).to(x.dtype) * 2 - 1
    return x.new_zeros(len(x), width).index_add(1, bucket, x * sign)


class FreeAttention(nn.Module):
    """FedSheafHN: a free N x N matrix, the identity at the start, without softmax; then dropout."""

    def __init__(self, clients: int, *, dropout: float = 0.3) -> None:
        super().__init__()
        # Not torch.eye: on the device "meta" it imports PyTorch's compiler, which takes seconds in every process.
        self.matrix = nn.Parameter(torch.zeros(clients, clients).fill_diagonal_(1.0))
        self.dropout = dropout

    def weights(self, x: Tensor) -> Tensor:
        """The mixing matrix [N, N]; it does not depend on `x`."""
        del x
        return self.matrix

    def forward(self, x: Tensor, *, key: Tensor | None = None, control: Control = no_control) -> Tensor:
        """Mix embeddings [N, D] -> [N, D]."""
        return dropout_keys.dropout(control(self.matrix) @ x, self.dropout, key)


def add_newcomers(matrix: Tensor, newcomers: int) -> Tensor:
    """A free matrix [N, N] for N + newcomers clients: newcomers attend only to themselves, and nobody to them."""
    return torch.block_diag(matrix, torch.eye(newcomers, dtype=matrix.dtype, device=matrix.device))


class DotAttention(nn.Module):
    """softmax(Q K^T / sqrt(D)) V with linear Q, K, V, for any number of clients; then dropout."""

    def __init__(self, width: int, *, dropout: float = 0.3) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = dropout

    def weights(self, x: Tensor) -> Tensor:
        """Row-stochastic weights [N, N] of embeddings [N, D]."""
        return (self.query(x) @ self.key(x).T / sqrt(x.shape[-1])).softmax(-1)

    def forward(self, x: Tensor, *, key: Tensor | None = None, control: Control = no_control) -> Tensor:
        """Mix embeddings [N, D] -> [N, D]."""
        return dropout_keys.dropout(control(self.weights(x)) @ self.value(x), self.dropout, key)
