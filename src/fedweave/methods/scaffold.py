"""SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378).

Server keeps one model x and a control variate c, every client its own c_i; all variates begin at 0. x and c go down,
the client takes its steps on ∇f_i(y) − c_i + c, and θ_i = y and Δc_i = c_i⁺ − c_i come up: 4P, twice FedAvg's. Option
I: c_i⁺ = ∇f_i(x) over the batches of the round's first epoch. Option II: c_i⁺ = c_i − c + (x − y) / (K η), which is
the mean of the K gradients of the round. x ← Σ n_k θ_k and c ← c + |S| / N · Σ n_k Δc_k over the participants S, n_k
their shares of training rows.

Deviations:
1. Paper and public code weigh clients alike: `averaging: uniform`. Here both means have the run's weights.
2. Option II takes the mean of the gradients themselves, so that it also holds under momentum, Adam and weight decay.
3. The server's step size η_g is that of `train.server_optimizer: sgd`; without one it is the paper's 1.
4. Under `train.privacy` a client adds to c_i the Δc_i that it sent, with clipping and noise, so that c is their mean.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import total_gradient
from fedweave.client.solvers import GradientRecorder, Loss
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.penalties import correct_gradient
from fedweave.settings import Choices
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(GlobalModel):
    """FedAvg whose clients' steps are corrected for how their gradients differ from everybody's."""

    option: Annotated[Literal["I", "II"], Choices(("I", "II")), "c_i⁺: a gradient at x, or that of the round"] = "II"

    label = "SCAFFOLD"
    point = "pre"

    def init(self, start: Start) -> Server:
        control = trees.tree_map(torch.zeros_like, trees.select(start.model, self.task.params))
        return {**super().init(start), "control": control, "clients": torch.tensor(start.clients)}

    def join(self, model: Params) -> ClientState:
        control = trees.tree_map(torch.zeros_like, trees.select(model, self.task.params))
        return {"buffers": trees.select(model, self.local_names), "control": control}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return trees.select(server, ("model", "control")), {}

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return shared["model"], own

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model, objective = self.personalize(shared, own, client, data), self.task.objective(data)
        correction = trees.sub(shared["control"], client["control"])
        fit = self.descend(
            model, data, loss=correct_gradient(objective, correction), solver=GradientRecorder(self.solver)
        )
        if self.option == "I":
            control = self._gradient(model, objective, data)
        else:
            steps = fit.state["steps"].clamp(min=1)
            control = trees.tree_map(lambda total, c: total / steps - c, fit.state["sum"], correction)
        change = trees.sub(control, client["control"])
        state = {"buffers": trees.select(fit.model, self.local_names), "control": control}
        upload = {"model": trees.omit(fit.model, self.local_names), "control": change}
        return Update(upload, state, fit.model, fit.loss)

    def acknowledge(self, client: ClientState, upload: Tree, sent: Tree) -> ClientState:
        # c stays the mean of the c_i only if clients add what the server received.
        error = trees.sub(sent["control"], upload["control"])
        return {**client, "control": trees.tree_map(torch.add, client["control"], error)}

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        share, mean = len(ids) / server["clients"].double(), trees.weighted_mean(uploads["control"], weights)
        control = trees.tree_map(lambda c, change: c + share.to(c) * change, server["control"], mean)
        return {**server, **super().aggregate(server, ids, uploads, weights), "control": control}

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        # c is the mean of the clients' variates, and those of newcomers are 0.
        share = server["clients"].double() / start.clients
        control = trees.tree_map(lambda c: share.to(c) * c, server["control"])
        return {**server, "control": control, "clients": torch.full_like(server["clients"], start.clients)}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**shared["model"], **client["buffers"]}

    def _gradient(self, model: Params, objective: Loss, data: ClientData) -> Params:
        """∇f_i at `model`: the mean over the rows in the batches of the first epoch."""
        batches = [*data.plan[0]]
        rows = torch.stack([(batch >= 0).sum() for batch in batches]).sum()

        def batch_loss(params: Params, batch: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            value, buffers = objective(params, batch, key)
            return value * (batch >= 0).sum().to(value) / rows, buffers

        return total_gradient(batch_loss, model, batches, data.key, self.task.params)[1]
