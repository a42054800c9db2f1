"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

Server and traffic as FedAvg; the local loss gains (μ/2) ‖w − g‖² over all parameters, g the model as received.
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.penalties import ProximalClient


@method("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(ProximalClient, GlobalModel):
    """FedAvg with local training tied to the received model."""

    label = "FedProx"
    point = "pre"
