"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

Server and wire as FedAvg; the local loss gains (μ/2) ‖w − g‖² over all parameters, g the model as received.
"""

from dataclasses import dataclass

from fedweave.families import GlobalModel, SplitClient
from fedweave.federation import ClientData
from fedweave.solvers import Fit, proximal
from fedweave.trees import Params


@dataclass(frozen=True, kw_only=True)
class FedProx(SplitClient, GlobalModel):
    """FedAvg with local training tied to the received model.

    Attributes:
        mu: μ, weight of the proximal term.
    """

    mu: float = 0.01

    label = "FedProx"
    point = "pre"

    def fit(self, model: Params, received: Params, data: ClientData) -> Fit:
        return self.descend(model, data, loss=proximal(self.task.objective(data), received, self.mu))
