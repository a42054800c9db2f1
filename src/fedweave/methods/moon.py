"""MOON, model-contrastive learning (Li, He & Song, CVPR 2021, arXiv:2103.16257).

Server and traffic as FedAvg. With z, z_g and z_p the features of a row by the model in training, the received one and
the client's own of its last round, the local loss gains μ ℓ, ℓ = −log e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} +
e^{cos(z, z_p)/τ}), which draws z to z_g and away from z_p. Only z has a gradient.

Deviations:
1. Features are those below the head; the paper adds a projection head of two layers to its networks.
2. z_g and z_p are taken in evaluation mode (BatchNorm's running statistics, no dropout).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.settings import LogSpace, Positive, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("moon")
@dataclass(frozen=True, kw_only=True)
class MOON(GlobalModel):
    """FedAvg whose clients keep their features near those of the received model."""

    mu: Annotated[Weight, LogSpace(0.1, 10), "μ, weight of the contrastive term"] = 1.0
    tau: Annotated[Positive, "τ, temperature of the similarities"] = 0.5

    label = "MOON"
    point = "pre"

    def join(self, model: Params) -> ClientState:
        return {"buffers": trees.select(model, self.local_names), "previous": model}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        losses = self._losses(model, client["previous"], data)
        fit = self.descend(model, data, loss=self.task.objective(data, losses))
        state = {"buffers": trees.select(fit.model, self.local_names), "previous": fit.model}
        return Update({"model": trees.omit(fit.model, self.local_names)}, state, fit.model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**shared, **client["buffers"]}

    def _losses(self, received: Params, previous: Params, data: ClientData) -> RowLosses:
        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            z = self.task.forward(model, data, rows, key, mask, method="features")
            with torch.no_grad():
                others = [self.task.features(one, data, rows).flatten(1) for one in (received, previous)]
            near, far = (F.cosine_similarity(z.flatten(1), other, dim=1) / self.tau for other in others)
            values = self.task.row_loss(self.task.call(model, z, "classify"), self.task.targets(data, rows))
            return values + self.mu * F.softplus(far - near)  # −log e^a / (e^a + e^b) = log(1 + e^{b − a})

        return losses
