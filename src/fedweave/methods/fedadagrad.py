"""FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295, Algorithm 2).

Server keeps one model g and a sum v of squares; g goes down, the locally trained θ_k comes up (2P). With x̂ = Σ n_k θ_k,
n_k the share of training rows among the participants, and Δ = x̂ − g: v ← v + Δ² and g ← g + η Δ / (√v + τ). v begins
at τ².
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.engine.registry import method
from fedweave.families.server_solvers import ServerOptimizer
from fedweave.settings import LogSpace, Positive, Rate


@method("fedadagrad")
@dataclass(frozen=True, kw_only=True)
class FedAdagrad(ServerOptimizer):
    """FedAvg with Adagrad at the server."""

    server_lr: Annotated[Rate, LogSpace(0.01, 10), "η, learning rate of the server"] = 0.1
    server_tau: Annotated[Positive, LogSpace(0.00001, 0.1), "τ, added to the denominator of the step"] = 1e-3

    label = "FedAdagrad"
    rule = "adagrad"
