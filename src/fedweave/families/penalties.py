"""Penalties in local training: proximity to the received model, modifiers of the loss, distance of two samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit
from fedweave.client.solvers import Loss, add_proximal_term
from fedweave.engine.protocol import ClientState, Update
from fedweave.families.base import ClientModels, SplitClient
from fedweave.settings import LogSpace, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

SMOOTH = 1e-4  # a distance below this may come from rounding alone, so that a parabola replaces it
BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels of `discrepancy`, as in the code of FedCP


@dataclass(frozen=True, kw_only=True)
class ProximalClient(SplitClient):
    """Local training with (μ/2) ‖w − g‖² added to the loss; g: the parameters as received, no BatchNorm statistics."""

    mu: Annotated[Weight, LogSpace(0.0001, 1), "μ, weight of the proximal term"] = 0.01

    def fit(self, model: Params, received: Params, data: ClientData) -> Fit:
        anchor = trees.omit(received, self.task.buffers)
        return self.descend(model, data, loss=add_proximal_term(self.task.objective(data), anchor, self.mu))


class ProximalMixtures(ClientModels):
    """A client that continues from its own model, with (λ / 2α_K) ‖w − u‖² added to the loss; u: its mixture.

    Nothing is added in a client's first round, where u is not defined, or with `detached`.
    """

    alpha: float
    lam: float
    detached: bool

    def join(self, model: Params) -> ClientState:
        return model

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        strength = 0.0 if self.detached else self.lam / self.alpha * own["active"].to(self.task.dtype)
        model = self.personalize(shared, own, client, data)
        fit = self.descend(model, data, loss=add_proximal_term(self.task.objective(data), own["mixture"], strength))
        return Update({"model": trees.omit(fit.model, self.local_names)}, fit.model, fit.model, fit.loss)

    def mixture_model(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**client, **own["mixture"]}


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """√Σ‖·‖² over all entries of `tensors`; its gradient at 0 is 0."""
    return torch.stack([t.norm() for t in tensors]).norm()


def smooth_norm(tensors: Iterable[Tensor]) -> Tensor:
    """`norm`, but a parabola below `SMOOTH`, whose gradient falls to 0, so that rounding errors have no effect."""
    gaps = list(tensors)
    exact = norm(gaps)
    return torch.where(exact > SMOOTH, exact, sum(g.square().sum() for g in gaps) / (2 * SMOOTH) + SMOOTH / 2)


def add_norm_penalties(loss: Loss, anchors: Sequence[tuple[Params, float]]) -> Loss:
    """loss + Σ weight · ‖w − anchor‖, each norm over all parameters in its anchor and not squared."""

    def penalised_loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        value, buffers = loss(model, rows, key)
        return value + sum(
            weight * smooth_norm(model[n] - a for n, a in anchor.items()) for anchor, weight in anchors
        ), buffers

    return penalised_loss


def add_cosine_term(loss: Loss, direction: Params, weight: Tensor | float, scaled: bool = False) -> Loss:
    """loss + weight · cos(w, direction) over the parameters in `direction`; with `scaled`, times its length."""
    size = 1.0 if scaled else norm(direction.values())

    def modified_loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        value, buffers = loss(model, rows, key)
        inner = sum((model[name] * v).sum() for name, v in direction.items())
        return value + weight * inner / (norm(model[name] for name in direction) * size).clamp(min=1e-12), buffers

    return modified_loss


def correct_gradient(loss: Loss, correction: Params) -> Loss:
    """`loss` with `correction` added to its gradient, and with its value."""

    def corrected_loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        value, buffers = loss(model, rows, key)
        return value + sum((c * (model[name] - model[name].detach())).sum() for name, c in correction.items()), buffers

    return corrected_loss


def discrepancy(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """Squared maximum mean discrepancy of two samples [B, D] under a sum of Gaussian kernels exp(−‖·‖² / 2a)."""
    weights = torch.ones_like(x[:, 0]) if mask is None else mask.to(x.dtype)
    weights = weights / weights.sum().clamp(min=1)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2.0 * a @ b.T
        return weights @ sum(torch.exp(-0.5 * squared / width) for width in BANDWIDTHS) @ weights

    return kernel(x, x) + kernel(y, y) - 2.0 * kernel(x, y)
