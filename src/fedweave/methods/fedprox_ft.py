"""FedProx-FT: FedProx (Li et al., MLSys 2020, arXiv:1812.06127) whose clients deploy the model after local training.

Server and traffic as FedAvg; the local loss gains (μ/2) ‖w − g‖² over all parameters, g the model as received. No extra
training: the fine-tuned model is the one the client uploads (as in the public code of FedAGHN, songjiarui00/FedAGHN).
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.penalties import ProximalClient


@method("fedprox_ft")
@dataclass(frozen=True, kw_only=True)
class FedProxFT(ProximalClient, GlobalModel):
    """FedProx, evaluated after local training."""

    label = "FedProx-FT"
    point = "post"
    fixed_point = True
