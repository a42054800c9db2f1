"""Penalties of local training near the point where they are 0."""

import pytest
import torch

from fedweave.families.penalties import SMOOTH, smooth_norm

DIRECTION = {"u": torch.tensor([0.6, 0.0], dtype=torch.float64), "v": torch.tensor([[0.8]], dtype=torch.float64)}


def at(length: float) -> tuple[float, float]:
    """The smooth norm of a vector of this length, and its slope along the vector."""
    scale = torch.tensor(length, dtype=torch.float64, requires_grad=True)
    value = smooth_norm(scale * part for part in DIRECTION.values())
    return float(value.detach()), float(torch.autograd.grad(value, scale)[0])


def test_the_parabola_joins_the_norm() -> None:
    """Value and slope are continuous at the border, and the slope decreases to 0 linearly."""
    assert at(1.0) == pytest.approx((1.0, 1.0))
    for length in (SMOOTH * (1 - 1e-9), SMOOTH * (1 + 1e-9)):
        assert at(length) == pytest.approx((SMOOTH, 1.0), rel=1e-6)
    for share in (0.5, 0.1, 0.0):
        assert at(share * SMOOTH) == pytest.approx((SMOOTH * (1 + share**2) / 2, share), abs=1e-9)
