"""Newton's method in a trust region, for functions of few variables that need not be convex.

The step is −|H|⁻¹g, where |H| has the absolute values of the eigenvalues of H (Dauphin et al., NeurIPS 2014,
arXiv:1406.2572), so that it leads away from saddle points and maxima. Directions without curvature do not move.
"""

from collections.abc import Callable

import torch
from torch import Tensor

FLAT = 1e-10  # curvature, relative to the largest one, that counts as none
ITERATIONS = 60


def newton_step(gradient: Tensor, hessian: Tensor, radius: Tensor | float, rows: float = 1.0) -> Tensor:
    """The step [..., T] of a function with this gradient [..., T] and Hessian [..., T, T].

    It is shortened until its length √(step' |H| step / rows) is at most `radius` [...].
    """
    values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
    values = values.abs()
    is_flat = values <= FLAT * values.amax(-1, keepdim=True)
    along = torch.einsum("...ij,...i->...j", vectors, gradient)
    scaled = torch.where(is_flat, 0.0, along / values.masked_fill(is_flat, 1.0))
    length = ((scaled * along).sum(-1) / rows).sqrt()
    shrink = (radius / length.clamp(min=1e-300)).clamp(max=1.0)
    return -torch.einsum("...ij,...j->...i", vectors, scaled) * shrink[..., None]


def minimise(function: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, Tensor]:
    """(point [T], value) of a local minimum of `function`, which maps [T] to one number and has two derivatives."""

    def evaluate(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            variables = point.detach().requires_grad_()
            value = function(variables)
            (gradient,) = torch.autograd.grad(value, variables, create_graph=True)
            rows = [torch.autograd.grad(entry, variables, retain_graph=True)[0] for entry in gradient]
        return gradient.detach(), torch.stack(rows), value.detach()

    point, radius = start, torch.ones((), dtype=start.dtype, device=start.device)
    gradient, hessian, value = evaluate(point)
    for _ in range(ITERATIONS):
        step = newton_step(gradient, hessian, radius)
        length = step.norm()
        step = step / length.clamp(min=1.0)
        new_gradient, new_hessian, new_value = evaluate(point + step)
        if new_value <= value + 1e-10 * (1 + value.abs()):
            point, gradient, hessian, value = point + step, new_gradient, new_hessian, new_value
            radius = (2 * radius).clamp(max=100.0)
            if length <= 1e-11 * (1 + point.norm()):
                break
        else:
            radius = radius.clamp(max=1e3) / 8
            if radius < 1e-12:
                break
    return point, value
