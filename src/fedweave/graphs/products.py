"""Mixtures of low-rank adapters by their products.

The mean of B A over clients is not the mean of B times the mean of A (FLoRA, arXiv:2409.05976). Here the products are
mixed, and the mixture gets two factors of the same rank again: the nearest ones, by a singular value decomposition.
"""

import torch
from torch import Tensor

from fedweave.tensors.trees import Params

Pairs = tuple[tuple[str, str], ...]
"""Names of A and B of each adapter."""


def mix_products(weights: Tensor, models: Params, pairs: Pairs) -> Params:
    """Factors [P, ...] of the mixtures Σ_j weights[i, j] B_j A_j of every adapter in `pairs`.

    Args:
        weights: [P, N], each row with at least one weight above 0.
        models: stacked [N, ...]; an adapter of which it lacks a factor is left out.
    """
    mixed: Params = {}
    for name_a, name_b in pairs:
        if name_a in models and name_b in models:
            rows = [_mix_row(row, models[name_a], models[name_b]) for row in weights]
            mixed[name_a], mixed[name_b] = (torch.stack(factors) for factors in zip(*rows, strict=True))
    return mixed


def _mix_row(weights: Tensor, all_a: Tensor, all_b: Tensor) -> tuple[Tensor, Tensor]:
    """A [r, in] and B [out, r] of one mixture of A [N, r, in] and B [N, out, r] with `weights` [N].

    The rows of A are orthogonal, with the mean length that they had, so that an adapter with B = 0 can learn. The side
    of a singular vector that is free is chosen by its largest number.
    """
    sources = weights.nonzero()[:, 0]
    a, b, shares = all_a[sources].double(), all_b[sources].double(), weights[sources].double()
    rank = a.shape[1]
    q_b, r_b = torch.linalg.qr((shares[:, None, None] * b).movedim(0, 1).flatten(1))  # [out, n r]
    q_a, r_a = torch.linalg.qr(a.flatten(0, 1).T)  # [in, n r]
    u, s, vh = torch.linalg.svd(r_b @ r_a.T)
    left, right = q_b @ u[:, :rank], vh[:rank] @ q_a.T
    sign = torch.gather(right, 1, right.abs().argmax(1, keepdim=True)).sign()
    length = ((shares * a.square().sum((1, 2))).sum() / shares.sum() / rank).sqrt().clamp(min=1e-12)
    return (length * sign * right).to(all_a), (left * sign.T * s[:rank] / length).to(all_b)
