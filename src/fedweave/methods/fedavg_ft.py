"""FedAvg-FT: FedAvg whose clients deploy the model after their local training of the round.

Server and traffic as FedAvg. No extra training: the fine-tuned model is the one the client uploads (as in the public
code of FedAGHN, songjiarui00/FedAGHN). The control that every method with a collaboration graph has to beat.
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient


@method("fedavg_ft")
@dataclass(frozen=True, kw_only=True)
class FedAvgFT(SplitClient, GlobalModel):
    """FedAvg, evaluated after local training."""

    label = "FedAvg-FT"
    point = "post"
    fixed_point = True
