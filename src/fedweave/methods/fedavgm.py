"""FedAvgM (Hsu et al., 2019, arXiv:1909.06335; Reddi et al., ICLR 2021, arXiv:2003.00295).

Server keeps one model g and a velocity u; g goes down, the locally trained θ_k comes up (2P). With x̂ = Σ n_k θ_k, n_k
the share of training rows among the participants, u ← β u + (g − x̂) and g ← g − η u. β = 0 and η = 1 is FedAvg.
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.engine.registry import method
from fedweave.families.server_solvers import ServerOptimizer
from fedweave.settings import LinearSpace, LogSpace, Momentum, Rate


@method("fedavgm")
@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """FedAvg with momentum at the server."""

    server_lr: Annotated[Rate, LogSpace(0.1, 3), "η, learning rate of the server"] = 1.0
    server_momentum: Annotated[Momentum, LinearSpace(0, 0.99), "β, momentum of the server"] = 0.9

    label = "FedAvgM"
    rule = "sgd"
