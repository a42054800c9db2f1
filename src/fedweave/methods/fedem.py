"""FedEM (Marfoq et al., NeurIPS 2021, arXiv:2108.10252).

Every client's data are a mixture of M distributions that all clients share. Server keeps one model (component) h_m per
distribution and averages each; all of them go down and up (2 M P). A client keeps its weights π. A round: for its rows
s the E-step gives q_s(m) ∝ π_m exp(−ℓ(h_m(x_s), y_s)), the M-step π_m ← mean_s q_s(m), and each h_m is trained on the
mean of q_s(m) ℓ over the batch. The prediction is the mixture Σ_m π_m h_m(x): of probabilities for classes (as
log-probabilities), of outputs for numbers. A client that has never trained takes one such step from uniform π.

Deviations:
1. The first component is the common initial model, the others are drawn independently of it.
2. All components see the same batches; the public code (omarfoq/FedEM) shuffles for each of them.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Start, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.ensembles import initial_models, join_models, split_models
from fedweave.settings import IntegerSpace, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree, is_mapped


@method("fedem")
@dataclass(frozen=True, kw_only=True)
class FedEM(GlobalModel):
    """Shared component models, mixed by every client with weights of its own."""

    components: Annotated[Size, IntegerSpace(2, 5), "M, number of component models; 1 is FedAvg"] = 3

    label = "FedEM"
    point = "pre"

    @property
    def mixes_plainly(self) -> bool:
        return False  # its further models have other names

    def extras(self, start: Start) -> Params:
        models = initial_models(self.task, start, self.components)
        return join_models([trees.omit(model, self.local_names) for model in models])

    def join(self, model: Params) -> ClientState:
        like = next(iter(model.values()))
        return {
            "buffers": join_models([trees.select(model, self.local_names)] * self.components),
            "weights": like.new_full((self.components,), 1 / self.components),
            "trained": like.new_zeros((), dtype=torch.bool),
        }

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        models = split_models({**shared, **client["buffers"]}, self.components)
        shares, weights = self._expect(models, client["weights"], data)
        fits = [
            self.descend(model, data, loss=self.task.objective(data, self._losses(share, data)))
            for model, share in zip(models, shares, strict=True)
        ]
        components, loss = join_models([fit.model for fit in fits]), torch.stack([fit.loss for fit in fits]).sum()
        private = {
            "buffers": trees.select(components, client["buffers"]),
            "weights": weights,
            "trained": torch.ones_like(client["trained"]),
        }
        upload = trees.omit(components, client["buffers"])
        return Update({"model": upload}, private, {"components": components, "weights": weights}, loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        components, weights, trained = {**shared, **client["buffers"]}, client["weights"], client["trained"]
        if is_mapped() or not trained:
            adapted = self._expect(split_models(components, self.components), weights, data)[1]
            weights = torch.where(trained, weights, adapted)
        return {"components": components, "weights": weights}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        parts = split_models(model["components"], self.components)
        outputs = torch.stack([self.task.predict(part, data, rows) for part in parts], -1)
        if self.task.targets_are == "classes":
            return (outputs.log_softmax(-2) + model["weights"].log()).logsumexp(-1)
        return outputs @ model["weights"]

    def _expect(self, models: list[Params], weights: Tensor, data: ClientData) -> tuple[Tensor, Tensor]:
        """(q [M, R] of the training rows, 0 where they are padding; the new weights π [M])."""
        targets, is_row = self.task.targets(data, data.train.clamp(min=0)), data.train >= 0
        outputs = (self.task.predict(model, data, data.train) for model in models)
        losses = torch.stack([self.task.row_loss(out, targets) for out in outputs])
        shares = (weights.log()[:, None] - losses).softmax(0) * is_row
        return shares, shares.sum(1) / is_row.sum()

    def _losses(self, shares: Tensor, data: ClientData) -> RowLosses:
        """The task's loss of a row times its share [R] of the training rows."""
        train = data.train

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            outputs = self.task.forward(model, data, rows, key, mask)
            share = (rows[:, None] == train).to(shares) @ shares
            return self.task.row_loss(outputs, self.task.targets(data, rows)) * share

        return losses
