"""FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295, Algorithm 2).

Server keeps one model g and a sum v of squares; g goes down, the locally trained θ_k comes up (2P). With x̂ = Σ n_k θ_k,
n_k the share of training rows among the participants, and Δ = x̂ − g: v ← v + Δ² and g ← g + η Δ / (√v + τ). v begins
at τ².
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedweave.families import GlobalModel, SplitClient
from fedweave.federation.registry import method
from fedweave.settings import LogSpace


@method("fedadagrad")
@dataclass(frozen=True, kw_only=True)
class FedAdagrad(SplitClient, GlobalModel):
    """FedAvg with Adagrad at the server."""

    server_optimizer: Literal["adagrad"] = "adagrad"
    server_lr: Annotated[float, LogSpace(0.01, 10), "η, learning rate of the server"] = 0.1
    server_tau: Annotated[float, LogSpace(0.00001, 0.1), "τ, how little the server adapts"] = 1e-3

    label = "FedAdagrad"
    point = "pre"
