"""FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295, Algorithm 2).

Server keeps one model g and moments m, v; g goes down, the locally trained θ_k comes up (2P). With x̂ = Σ n_k θ_k, n_k
the share of training rows among the participants, and Δ = x̂ − g: m ← β1 m + (1 − β1) Δ, v ← v − (1 − β2) Δ² sign(v −
Δ²) and g ← g + η m / (√v + τ). v begins at τ².
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.engine.registry import method
from fedweave.families.server_solvers import ServerOptimizer
from fedweave.settings import LogSpace, Momentum, Positive, Rate


@method("fedyogi")
@dataclass(frozen=True, kw_only=True)
class FedYogi(ServerOptimizer):
    """FedAvg with Yogi at the server."""

    server_lr: Annotated[Rate, LogSpace(0.001, 1), "η, learning rate of the server"] = 0.01
    server_momentum: Annotated[Momentum, "β1, of the mean update"] = 0.9
    server_beta2: Annotated[Momentum, "β2, of its squares"] = 0.99
    server_tau: Annotated[Positive, LogSpace(0.00001, 0.1), "τ, added to the denominator of the step"] = 1e-3

    label = "FedYogi"
    rule = "yogi"
