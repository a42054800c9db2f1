"""FedAdam (Reddi et al., ICLR 2021, arXiv:2003.00295, Algorithm 2).

Server keeps one model g and moments m, v; g goes down, the locally trained θ_k comes up (2P). With x̂ = Σ n_k θ_k, n_k
the share of training rows among the participants, and Δ = x̂ − g: m ← β1 m + (1 − β1) Δ, v ← β2 v + (1 − β2) Δ² and
g ← g + η m / (√v + τ). v begins at τ², and nothing corrects the moments' bias.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedweave.families import GlobalModel, SplitClient
from fedweave.federation.registry import method
from fedweave.settings import LogSpace


@method("fedadam")
@dataclass(frozen=True, kw_only=True)
class FedAdam(SplitClient, GlobalModel):
    """FedAvg with Adam at the server."""

    server_optimizer: Literal["adam"] = "adam"
    server_lr: Annotated[float, LogSpace(0.001, 1), "η, learning rate of the server"] = 0.01
    server_tau: Annotated[float, LogSpace(0.00001, 0.1), "τ, how little the server adapts"] = 1e-3

    label = "FedAdam"
    point = "pre"
