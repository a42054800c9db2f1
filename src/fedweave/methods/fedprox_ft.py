"""FedProx-FT: FedProx (Li et al., MLSys 2020, arXiv:1812.06127) whose clients deploy the model after local training.

Server and wire as FedAvg; the local loss gains (μ/2) ‖w − g‖² over all parameters, g the model as received. No extra
training: the fine-tuned model is the one the client uploads (as in the public code of FedAGHN, songjiarui00/FedAGHN).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.families import GlobalModel, SplitClient
from fedweave.federation import ClientData
from fedweave.solvers import Fit, proximal
from fedweave.trees import Params


@dataclass(frozen=True, kw_only=True)
class FedProxFT(SplitClient, GlobalModel):
    """FedProx, evaluated after local training.

    Attributes:
        mu: μ, weight of the proximal term.
    """

    mu: float = 0.01

    label = "FedProx-FT"
    point = "post"
    bounds: ClassVar[dict] = {"mu": (0.0, None)}

    def fit(self, model: Params, received: Params, data: ClientData) -> Fit:
        return self.descend(model, data, loss=proximal(self.task.objective(data), received, self.mu))
