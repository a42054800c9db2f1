"""FedDyn, dynamic regularisation (Acar et al., ICLR 2021, arXiv:2111.04263).

Server keeps one model x and the drift s of all clients, every client its own drift s_k; all drifts begin at 0. x goes
down, the local loss is L_k(θ) + α ⟨s_k, θ⟩ + (α/2) ‖θ − x‖², and θ_k comes up (2P). Then s_k ← s_k + θ_k − x, s ← s +
|S| / N · Σ n_k (θ_k − x) over the participants S, n_k their shares of training rows, and x ← Σ n_k θ_k + s. In the
paper's words −α s_k is the client's gradient, and −α s the server's state h.

Deviations:
1. The paper weighs clients alike: `averaging: uniform`. Here both means have the run's weights.
2. Drifts of newcomers begin at 0, and s is scaled so that it stays the mean of all.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import add_proximal_term
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.penalties import correct_gradient
from fedweave.settings import LogSpace, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("feddyn")
@dataclass(frozen=True, kw_only=True)
class FedDyn(GlobalModel):
    """FedAvg whose clients remember how far they moved, so that their optima and the server's agree."""

    alpha: Annotated[Weight, LogSpace(0.001, 1), "α, weight of the dynamic regulariser"] = 0.1

    label = "FedDyn"
    point = "pre"
    server_steps = False

    def init(self, start: Start) -> Server:
        drift = trees.tree_map(torch.zeros_like, trees.select(start.model, self.task.params))
        return {**super().init(start), "drift": drift, "clients": torch.tensor(start.clients)}

    def join(self, model: Params) -> ClientState:
        drift = trees.tree_map(torch.zeros_like, trees.select(model, self.task.params))
        return {"buffers": trees.select(model, self.local_names), "drift": drift}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        received = trees.select(model, self.task.params)
        loss = add_proximal_term(self.task.objective(data), received, self.alpha)
        pull = trees.tree_map(lambda moved: self.alpha * moved, client["drift"])
        fit = self.descend(model, data, loss=correct_gradient(loss, pull))
        moved = trees.sub(trees.select(fit.model, self.task.params), received)
        drift = trees.tree_map(torch.add, client["drift"], moved)
        state = {"buffers": trees.select(fit.model, self.local_names), "drift": drift}
        return Update({"model": trees.omit(fit.model, self.local_names)}, state, fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        share, old = len(ids) / server["clients"].double(), trees.select(server["model"], self.task.params)
        mean = super().aggregate(server, ids, uploads, weights)["model"]
        moved = trees.sub(trees.select(mean, self.task.params), old)
        drift = trees.tree_map(lambda s, m: s + share.to(s) * m, server["drift"], moved)
        model = {**mean, **{name: mean[name] + value for name, value in drift.items()}}
        return {**server, "model": model, "drift": drift}

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        share = server["clients"].double() / start.clients
        drift = trees.tree_map(lambda s: share.to(s) * s, server["drift"])
        return {**server, "drift": drift, "clients": torch.full_like(server["clients"], start.clients)}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**shared, **client["buffers"]}
