"""APFL, adaptive personalized federated learning (Deng et al., 2020, arXiv:2003.13461).

Server keeps one model g (traffic 2P, as FedAvg); every client also keeps a personal model v and a weight α. A client
trains w from g by plain local training and, on the same batches, v by ∂/∂v F(α v + (1 − α) w), w held fixed. w is
uploaded, v̄ = α v + (1 − α) g is deployed. An adaptive α moves once a round, by α ← α − η ⟨v − w, ∇F(v̄)⟩ on the first
batch, and stays in [0, 1]; η is the rate of the run's optimiser.

Deviations from the public code (MLOPTPSU/FedTorch):
1. v̄ is a mixture of parameters, as in the paper; the code mixes the outputs of both models.
2. Both models take each step from where the step before left them; the code moves w first.
3. α moves before the round's first step; in the code after it, with an additional pull of 0.02 α towards 0.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import total_gradient
from fedweave.client.solvers import SGD, Adam, GroupedSolver, Loss
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.settings import Choices, LinearSpace, Share
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

OWN = "personal/"


@method("apfl")
@dataclass(frozen=True, kw_only=True)
class APFL(GlobalModel):
    """A mixture of a personal and the global model, both trained."""

    solver: SGD | Adam
    alpha: Annotated[Share, LinearSpace(0, 1), "α, weight of the personal model; where it begins, if adaptive"] = 0.5
    adaptive: Annotated[bool, Choices((True, False)), "every client learns its α"] = True

    label = "APFL"
    point = "pre"

    def join(self, model: Params) -> ClientState:
        alpha = next(iter(model.values())).new_full((), self.alpha)
        return {"personal": model, "buffers": trees.select(model, self.local_names), "alpha": alpha}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        w, v, objective = {**shared, **client["buffers"]}, client["personal"], self.task.objective(data)
        alpha = self._adapt(client["alpha"], v, w, objective, data) if self.adaptive else client["alpha"]
        both = {**w, **{OWN + name: value for name, value in v.items()}}
        names = (*self.task.params, *(OWN + name for name in self.task.params))
        solver = GroupedSolver(solvers={"personal": self.solver, "global": self.solver}, group=owner)
        fit = self.descend(both, data, names, loss=self._loss(objective, alpha), solver=solver)
        w, v = trees.select(fit.model, w), {name: fit.model[OWN + name] for name in v}
        state = {"personal": v, "buffers": trees.select(w, self.local_names), "alpha": alpha}
        return Update({"model": trees.omit(w, self.local_names)}, state, self._mixture(alpha, v, w), fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self._mixture(client["alpha"], client["personal"], shared)

    def _mixture(self, alpha: Tensor, v: Params, w: Params) -> Params:
        """v̄, with the BatchNorm statistics of v."""
        return {**v, **{name: alpha * v[name] + (1 - alpha) * w[name] for name in self.task.params}}

    def _adapt(self, alpha: Tensor, v: Params, w: Params, objective: Loss, data: ClientData) -> Tensor:
        mixed, first = self._mixture(alpha, v, w), [next(iter(data.plan[0]))]
        gradient = total_gradient(objective, mixed, first, data.key, self.task.params)[1]
        derivative = sum(((v[name] - w[name]) * g).sum() for name, g in gradient.items())
        return (alpha - self.solver.lr * derivative).clamp(0.0, 1.0)

    def _loss(self, objective: Loss, alpha: Tensor) -> Loss:
        """The loss of v̄, whose gradient in w is that of w's own loss."""

        def joint_loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            w = {name: value for name, value in model.items() if not name.startswith(OWN)}
            v = {name: model[OWN + name] for name in w}
            global_loss, buffers = objective(w, rows, key)
            fixed = {name: value.detach() for name, value in w.items()}
            value, own = objective(self._mixture(alpha, v, fixed), rows, key)
            both = {**buffers, **{OWN + name: buffer for name, buffer in own.items()}}
            return value + global_loss - global_loss.detach(), both

        return joint_loss


def owner(name: str) -> str:
    """Whose parameter this is: of the "personal" model or of the "global" one."""
    return "personal" if name.startswith(OWN) else "global"
