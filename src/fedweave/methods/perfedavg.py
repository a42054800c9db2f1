"""Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv:2002.07948).

Server keeps one model g (traffic 2P, as FedAvg), trained to be good after one gradient step of size α. A local step
draws independent batches D1, D2, D3: w' = w − α ∇F(w; D1), then w ← w − β d with d = ∇F(w'; D2) ("fo"), or with the
Hessian-vector product by central differences, d = g − α (∇F(w + δg; D3) − ∇F(w − δg; D3)) / 2δ, g = ∇F(w'; D2) ("hf").
β is the run's optimiser. "pre" is g after one α-step on a batch of the client's training rows, "post" is w as trained
(as MediaBrain-SJTU/pFedGraph judges it).

Deviations:
1. D1 and D3 come from epochs of their own; TsingZ0/PFLlib halves double batches and trains twice a round.
2. BatchNorm statistics are those of the pass over D2.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData, remove_padding, shuffled_batches
from fedweave.client.solvers import value_and_grad
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.settings import LogSpace, Positive, Rate
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree, is_mapped


@method("perfedavg")
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(GlobalModel):
    """A model that is one gradient step away from every client's."""

    alpha: Annotated[Rate, LogSpace(0.001, 0.1), "α, size of the adaptation step"] = 0.01
    variant: Annotated[Literal["fo", "hf"], "first-order, or Hessian-free second-order"] = "fo"
    delta: Annotated[Positive, "δ of the central difference"] = 1e-3

    label = "Per-FedAvg"
    point = "pre"

    @property
    def epochs(self) -> int:
        return self.training.epochs * (2 if self.variant == "fo" else 3)

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        meta = replace(data, plan=_group_batches(data.plan, self.training.epochs))
        fit = self.descend(
            {**shared, **client}, meta, loss=lambda model, rows, key: self._meta_loss(model, rows, key, data)
        )
        return self.split_update(fit)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        rows = shuffled_batches(data, self.training.batch_size, drop_last=False)[0]
        return self._step({**shared, **client}, rows, data.key, replace(data, padded=is_mapped()))

    def _meta_loss(self, model: Params, rows: Tensor, key: Tensor, data: ClientData) -> tuple[Tensor, Params]:
        """F(w'; D2), with d as its gradient in w."""
        batches = [remove_padding(r) for r in rows]
        adapted = self._step(model, batches[1], dropout_keys.fold(key, 1), data)
        value, buffers, d = self._gradient(adapted, batches[0], key, data)
        if self.variant == "hf":
            ahead, behind = (
                self._gradient(_move(model, d, s * self.delta), batches[2], dropout_keys.fold(key, 2), data)[2]
                for s in (1, -1)
            )
            d = {name: g - self.alpha * (ahead[name] - behind[name]) / (2 * self.delta) for name, g in d.items()}
        # The second term is zero and its gradient is d.
        return value + sum((d[name] * (model[name] - model[name].detach())).sum() for name in d), buffers

    def _gradient(self, model: Params, rows: Tensor, key: Tensor, data: ClientData) -> tuple[Tensor, Params, Params]:
        objective, fixed = self.task.objective(data), {name: value.detach() for name, value in model.items()}
        return value_and_grad(
            lambda params: objective({**fixed, **params}, rows, key), trees.select(fixed, self.task.params)
        )

    def _step(self, model: Params, rows: Tensor, key: Tensor, data: ClientData) -> Params:
        return _move(model, self._gradient(model, rows, key, data)[2], -self.alpha)


def _move(model: Params, direction: Params, size: float) -> Params:
    return {**model, **{name: model[name].detach() + size * d for name, d in direction.items()}}


def _group_batches(plan: Tree, epochs: int) -> list[list[Tensor]]:
    """Steps of the first `epochs` epochs joined with their counterparts of the further ones: rows [2 or 3, B]."""
    parts = [plan[start : start + epochs] for start in range(0, len(plan), epochs)]
    return [[_stack_batches(rows) for rows in zip(*epoch, strict=True)] for epoch in zip(*parts, strict=True)]


def _stack_batches(rows: tuple[Tensor, ...]) -> Tensor:
    width = max(len(r) for r in rows)
    return torch.stack([F.pad(r, (0, width - len(r)), value=-1) for r in rows])
