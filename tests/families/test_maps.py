"""Maps on edges: orthogonality, derivatives at equal eigenvalues."""

from collections.abc import Callable

import pytest
import torch
from tiny import seeded_numbers as numbers
from torch import Tensor

from fedweave.families.networks.maps import MAPS, inverse_root

ORTHOGONAL = [name for name, kind in MAPS.items() if kind.orthogonal]


@pytest.mark.parametrize("maps", ORTHOGONAL)
@pytest.mark.parametrize("stalk", [2, 3, 5])
def test_maps_are_orthogonal(maps: str, stalk: int) -> None:
    f = MAPS[maps].build(3.0 * numbers(50, MAPS[maps].size(stalk)), stalk)
    torch.testing.assert_close(f.mT @ f, torch.eye(stalk, dtype=f.dtype).expand_as(f), rtol=0, atol=1e-10)
    expected = (-1.0) ** stalk if maps == "householder" else 1.0
    torch.testing.assert_close(torch.linalg.det(f), torch.full((50,), expected, dtype=f.dtype))
    assert (f[0] - f[1]).abs().max() > 0.1


@pytest.mark.parametrize("maps", ORTHOGONAL)
def test_maps_are_differentiable(maps: str) -> None:
    values = numbers(3, MAPS[maps].size(3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: MAPS[maps].build(v, 3), values)


@pytest.mark.parametrize(("maps", "angle"), [("exp", lambda b: b), ("cayley", lambda b: 2 * (b / 2).atan())])
def test_rotations_of_the_plane_have_the_angle_of_their_formula(maps: str, angle: Callable[[Tensor], Tensor]) -> None:
    """The diagonal of T has no effect."""
    values = numbers(20, 3)
    cos, sin = (function(angle(values[:, 1])) for function in (torch.cos, torch.sin))
    expected = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    torch.testing.assert_close(MAPS[maps].build(values, 2), expected)


def test_householder_is_the_product_of_its_reflectors() -> None:
    values = numbers(1, 3)[0]
    columns = torch.eye(3, dtype=values.dtype)
    columns[1, 0], columns[2, 0], columns[2, 1] = values
    q = torch.eye(3, dtype=values.dtype)
    for v in columns.T:
        q = q @ (torch.eye(3, dtype=v.dtype) - 2.0 * torch.outer(v, v) / (v @ v))
    torch.testing.assert_close(MAPS["householder"].build(values[None], 3)[0], q)


def test_inverse_root_and_its_derivative_at_equal_eigenvalues() -> None:
    a = numbers(4, 3, 3)
    positive = a @ a.mT + torch.eye(3)
    root = inverse_root(positive)
    torch.testing.assert_close(root @ positive @ root, torch.eye(3).double().expand(4, 3, 3))

    def symmetric(x: Tensor) -> Tensor:
        return inverse_root(x @ x.mT + torch.eye(3))

    assert torch.autograd.gradcheck(symmetric, a.requires_grad_())
    assert torch.autograd.gradcheck(symmetric, torch.zeros(1, 3, 3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_root_is_zero_for_zero_eigenvalues(dtype: torch.dtype) -> None:
    """Rounding gives tiny eigenvalues of either sign. Their inverse roots would be very large."""
    v = numbers(40, 4, seed=1).to(dtype)
    length = v.norm(dim=1)[:, None, None]
    outer = v[:, :, None] * v[:, None]
    torch.testing.assert_close(inverse_root(outer), outer / length**3, rtol=1e-4, atol=1e-4)
