"""pFedGraph (Ye et al., ICML 2023, "Personalized federated learning with inferred collaboration graphs").

Server keeps the last model θ_j of every client and infers, for each i, min_a Σ_j a_j d_ij + α ‖a − n‖² over the
simplex, n the shares of training rows and d_ij = −cos(θ_i − θ_0, θ_j − θ_0), below −0.9 counted as −1; the minimum is
the projection of n − d / 2α. Down go θ̄_i = Σ_j a_j θ_j and the direction v_i = Σ_j a_j θ_j / ‖θ_j‖ (2P), up comes θ_i
(P). The client minimises F − λ cos(w, v_i), which draws w towards its collaborators; no such term in its first round.

The public code (MediaBrain-SJTU/pFedGraph) adds λ cos(w, v_i) instead, `repel`, and takes the sum of the a_j cos(w,
θ_j), which does not divide by ‖v_i‖: `summed`.

Deviation: under partial participation the graph is over all clients that have uploaded.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import ClientModels
from fedweave.families.penalties import add_cosine_term
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import model_cosines, simplex_projection
from fedweave.settings import LogSpace, Positive, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("pfedgraph")
@dataclass(frozen=True, kw_only=True)
class PFedGraph(ClientModels):
    """A collaboration graph inferred from what models have learnt."""

    alpha: Annotated[Positive, LogSpace(0.1, 10), "α, weight of data shares relative to similarity; ∞ is FedAvg"] = 0.8
    lam: Annotated[Weight, LogSpace(0.001, 1), "λ, weight of the cosine in the local loss"] = 0.01
    repel: Annotated[bool, "push away from the collaborators"] = False
    summed: Annotated[bool, "the term is Σ_j a_j cos(w, θ_j), which is cos(w, v_i) ‖v_i‖"] = False

    label = "pFedGraph"

    def begin(self, start: Start) -> Tree:
        model = trees.omit(start.model, self.local_names)
        return {"initial": model, "sizes": next(iter(model.values())).new_ones(start.clients)}

    def remember(self, fixed: Tree, ids: Tensor, uploads: Tree, weights: Tensor) -> Tree:
        return {**fixed, "sizes": fixed["sizes"].index_copy(0, ids, weights.to(fixed["sizes"]))}

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        d = -model_cosines(server["models"], server["fixed"]["initial"], ids)
        d = torch.where(d < -0.9, -1.0, d)
        has_model = usable_sources(server["seen"])
        shares = server["fixed"]["sizes"] * has_model
        target = shares / shares.sum() - d / (2.0 * self.alpha)
        return simplex_projection(target.masked_fill(~has_model, -torch.inf)).expand(len(self.task.layers), -1, -1)

    def extra_downloads(self, server: Server, weights: Tensor, ids: Tensor) -> tuple[Tree, Tree]:
        models = server["models"]
        return {}, {"direction": self.mix_models(weights / trees.norms(models).clamp(min=1e-12), models)}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        strength = (self.lam if self.repel else -self.lam) * own["active"].to(self.task.dtype)
        loss = add_cosine_term(self.task.objective(data), own["direction"], strength, self.summed)
        fit = self.descend({**own["mixture"], **client}, data, loss=loss)
        return self.split_update(fit)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own["mixture"], **client}
