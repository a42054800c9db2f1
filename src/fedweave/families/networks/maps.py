"""Restriction maps of a sheaf from unconstrained numbers, and the inverse root that normalises general maps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


def _lower_triangle(values: Tensor, s: int, offset: int) -> Tensor:
    """Matrices [E, S, S] whose lower triangle from diagonal `offset` on holds `values` [E, n]."""
    rows, columns = torch.tril_indices(s, s, offset, device=values.device)
    return values.new_zeros(len(values), s * s).index_copy(1, rows * s + columns, values).unflatten(1, (s, s))


def householder(values: Tensor, s: int) -> Tensor:
    """Orthogonal maps [E, S, S] from [E, S(S-1)/2]: the product of the reflectors along the columns of I + L.

    L is the strictly lower triangle filled with `values`; the determinant is (-1)^S.
    """
    # Edges last: each of the S steps is one contiguous pass over all edges.
    eye = torch.eye(s, dtype=values.dtype, device=values.device)[..., None]
    columns = _lower_triangle(values, s, -1).permute(2, 1, 0) + eye
    q = eye.expand_as(columns)
    for v in columns:
        q = q - (q * v).sum(1, keepdim=True) * (v * (2.0 / v.square().sum(0)))
    return q.permute(2, 0, 1)


def _skew_matrix(values: Tensor, s: int) -> Tensor:
    lower = _lower_triangle(values, s, 0)
    return lower - lower.mT


def cayley(values: Tensor, s: int) -> Tensor:
    """Rotations [E, S, S] from [E, S(S+1)/2]: (I - M/2)^-1 (I + M/2), M = T - T^T of the lower triangle T."""
    half = 0.5 * _skew_matrix(values, s)
    eye = torch.eye(s, dtype=values.dtype, device=values.device)
    return torch.linalg.solve(eye - half, eye + half)


def exponential(values: Tensor, s: int) -> Tensor:
    """Rotations [E, S, S] from [E, S(S+1)/2]: exp(M), M = T - T^T of the lower triangle T."""
    return torch.linalg.matrix_exp(_skew_matrix(values, s))


class Parametrisation(NamedTuple):
    """Maps from numbers.

    Attributes:
        size: stalk dimension S -> how many numbers make a map.
        build: (numbers [E, size], S) -> maps [E, S, S], or [E, S] if diagonal.
        orthogonal: whether the maps are orthogonal.
    """

    size: Callable[[int], int]
    build: Callable[[Tensor, int], Tensor]
    orthogonal: bool


MAPS: dict[str, Parametrisation] = {
    "householder": Parametrisation(lambda s: s * (s - 1) // 2, householder, True),
    "cayley": Parametrisation(lambda s: s * (s + 1) // 2, cayley, True),
    "exp": Parametrisation(lambda s: s * (s + 1) // 2, exponential, True),
    "diagonal": Parametrisation(lambda s: s, lambda values, s: values, False),
    "general": Parametrisation(lambda s: s * s, lambda values, s: values.unflatten(1, (s, s)), False),
}


class _InverseRoot(torch.autograd.Function):
    """D^{-1/2} of symmetric PSD matrices [..., S, S], zero on the null space.

    The derivative divides by eigenvalues' roots only, never by their differences, so equal eigenvalues (an
    isolated client has all of them equal) are not a singularity, unlike in the derivative of the eigenvectors.
    """

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        small = values <= values.amax(-1, keepdim=True) * 1e-6
        inverse = torch.where(small, torch.inf, values).rsqrt()
        return (vectors * inverse[..., None, :]) @ vectors.mT, inverse, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        del inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> Tensor:
        del others
        inverse, vectors = ctx.saved_tensors
        a, b = inverse[..., :, None], inverse[..., None, :]
        # 1 / (sqrt(x) sqrt(y) (sqrt(x) + sqrt(y))) in terms of inverse roots, 0 where either is 0.
        quotient = a * b * (a * b / torch.where(a + b > 0, a + b, 1.0))
        return -vectors @ ((vectors.mT @ grad @ vectors) * quotient) @ vectors.mT


def inverse_root(matrix: Tensor) -> Tensor:
    """D^{-1/2} of symmetric PSD matrices [..., S, S], zero on the null space; once differentiable."""
    return _InverseRoot.apply(matrix)[0]
