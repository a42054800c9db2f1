"""HeurFedAMP (Huang et al., AAAI 2021, arXiv:2007.03797, section "HeurFedAMP").

As FedAMP, but with weights that do not depend on the size of models: ξ_ii = ω and ξ_ij = (1 − ω) softmax_{j≠i}(σ
cos(θ_i, θ_j)). Server keeps the last model of every client, u_i = Σ_j ξ_ij θ_j goes down, θ_i comes up (2P). The client
minimises F + (λ / 2α_K) ‖w − u_i‖² and deploys the result. No penalty in a client's first round, where u_i says
nothing.

Deviations:
1. The paper leaves open where w starts; from the client's own model, as in TsingZ0/PFLlib and
   MediaBrain-SJTU/pFedGraph, or from u_i (`begin_at`).
2. `origin="initial"` compares θ − θ_0 instead of θ, as MediaBrain-SJTU/pFedGraph does (with σ = 10, ω = 0.3).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server, Start
from fedweave.engine.registry import method
from fedweave.families.penalties import ProximalMixtures
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import model_cosines
from fedweave.settings import LogSpace, Positive, Share, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("heurfedamp")
@dataclass(frozen=True, kw_only=True)
class HeurFedAMP(ProximalMixtures):
    """Message passing between clients' models by cosine similarity."""

    omega: Annotated[Share, LogSpace(0.02, 0.8), "ω, weight of a client's own model; 1 is local training"] = 0.05
    sigma: Annotated[Positive, LogSpace(1, 100), "σ, sharpness of the softmax"] = 100.0
    lam: Annotated[Weight, LogSpace(0.1, 10), "λ; λ / α_K is the strength of the pull towards u_i"] = 1.0
    alpha: Annotated[Positive, "α_K, see lam"] = 1.0
    begin_at: Annotated[Literal["own", "mixture"], "where local training starts"] = "own"
    origin: Annotated[Literal["zero", "initial"], "compare models, or what they learnt since the initial one"] = "zero"
    detached: Annotated[bool, "leave the penalty's gradient out"] = False

    label = "HeurFedAMP"

    def begin(self, start: Start) -> Tree:
        return {"initial": trees.omit(start.model, self.local_names)}

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        origin = server["fixed"]["initial"] if self.origin == "initial" else None
        cosines = model_cosines(server["models"], origin, ids)
        itself = torch.arange(cosines.shape[1], device=ids.device) == ids[:, None]
        # A client without any other source keeps the weight 1 − ω for itself.
        excluded = itself | ~usable_sources(server["seen"])
        others = (self.sigma * cosines).masked_fill(excluded, -torch.inf).softmax(-1).nan_to_num()
        xi = (1.0 - self.omega) * others
        return (xi + itself * (1.0 - xi.sum(-1, keepdim=True))).expand(len(self.task.layers), -1, -1)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self.mixture_model(shared, own, client, data) if self.begin_at == "mixture" else client
