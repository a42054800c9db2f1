"""FedAMP (Huang et al., AAAI 2021, arXiv:2007.03797).

Server keeps the last model of every client and sends u_i = Σ_j ξ_ij θ_j with ξ_ij = (α_K/σ) exp(−‖θ_i − θ_j‖²/σ) for j
≠ i and ξ_ii = 1 − Σ_{j≠i} ξ_ij. The client continues from its own θ_i with the loss F + (λ / 2α_K) ‖w − u_i‖² and
uploads θ_i (2P). No penalty in a client's first round, where u_i is undefined.

Deviations:
1. The penalty is squared and differentiated. `detached` reproduces TsingZ0/PFLlib, where it is a constant.
2. Weights of others that add up to more than 1 are scaled down to 1: ξ_ii is never negative, and each u_i is a mixture.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server
from fedweave.engine.registry import method
from fedweave.families.penalties import ProximalMixtures
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import squared_distances
from fedweave.settings import LogSpace, Positive, Weight
from fedweave.tensors.trees import Params, Tree


@method("fedamp")
@dataclass(frozen=True, kw_only=True)
class FedAMP(ProximalMixtures):
    """Attentive message passing between clients' models."""

    alpha: Annotated[Positive, LogSpace(1, 1000), "α_K, step size of the server's gradient step"] = 100.0
    lam: Annotated[Weight, LogSpace(0.1, 100), "λ, strength of the pull towards u_i"] = 1.0
    sigma: Annotated[Positive, "σ, scale of squared distances"] = 10000.0
    detached: Annotated[bool, "leave the penalty's gradient out"] = False

    label = "FedAMP"
    point = "pre"
    rowwise = True

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        xi = self.alpha / self.sigma * torch.exp(-squared_distances(server["models"], ids) / self.sigma)
        xi = xi * usable_sources(server["seen"])
        rows = torch.arange(len(ids), device=xi.device)
        xi[rows, ids] = 0.0
        # The step α_K may be too large for many clients; a negative weight of oneself would push away from θ_i.
        xi = xi / xi.sum(1, keepdim=True).clamp(min=1.0)
        xi[rows, ids] = 1.0 - xi.sum(1)
        return xi.expand(len(self.task.layers), -1, -1)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return client
