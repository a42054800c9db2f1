"""FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629).

Server keeps one model g; g goes down, the locally trained θ_k comes up (2P). g ← Σ n_k θ_k with n_k the share of
training rows among the participants. Every client deploys g with its own BatchNorm statistics.
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient


@method("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(SplitClient, GlobalModel):
    """One model for all clients, evaluated as received."""

    label = "FedAvg"
    point = "pre"
