"""FedAH, federated learning with an aggregated head (Yue et al., arXiv:2412.01295).

Server and traffic as FedAvg (2P). The client takes the body of g and starts its head from H + (H_g − H) ⊙ W; W was
trained for one epoch on all training rows (see `LocalAggregation`). Then it trains the head for τ epochs with the
body frozen, the body for E epochs with the head frozen, and uploads both. Details follow KarhouTam/FL-bench.
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit
from fedweave.engine.registry import method
from fedweave.families.heads import body
from fedweave.families.local_aggregation import LocalAggregation
from fedweave.models.base import BODY
from fedweave.settings import Epochs, IntegerSpace
from fedweave.tensors.trees import Params


@method("fedah")
@dataclass(frozen=True, kw_only=True)
class FedAH(LocalAggregation):
    """FedRep whose heads take from the global one what helps them."""

    head_epochs: Annotated[Epochs, IntegerSpace(1, 5), "τ, epochs of head training before the body's"] = 1

    label = "FedAH"
    needs = frozenset({BODY})

    @property
    def aggregated_names(self) -> tuple[str, ...]:
        return self.task.head

    @property
    def epochs(self) -> int:
        return self.head_epochs + self.training.epochs

    def fit(self, model: Params, data: ClientData) -> Fit:
        head_fit = self.descend(model, data, self.task.head, epochs=slice(0, self.head_epochs))
        return self.descend(head_fit.model, data, body(self.task), epochs=slice(self.head_epochs, self.epochs))
