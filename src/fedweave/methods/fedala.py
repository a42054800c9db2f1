"""FedALA (Zhang et al., AAAI 2023, arXiv:2212.01197).

Server and traffic as FedAvg (2P). The client keeps its own θ and weights W for the last p parameter tensors: it takes
the lower layers of g, starts the others from θ + (g − θ) ⊙ W after training W (see `LocalAggregation`), then trains
and uploads everything. It is judged after this aggregation, before local training.

Deviation from TsingZ0/PFLlib: the first training of W ends after `start_epochs`; the code's loop has no bound.
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.engine.registry import method
from fedweave.families.local_aggregation import LocalAggregation
from fedweave.settings import Count


@method("fedala")
@dataclass(frozen=True, kw_only=True)
class FedALA(LocalAggregation):
    """FedAvg with adaptive local aggregation of the upper layers."""

    portion: float = 80.0
    start_epochs: int = 20
    tensors: Annotated[Count, "p, how many of the last parameter tensors are aggregated locally; 0: all"] = 2

    label = "FedALA"
    point = "pre"

    @property
    def aggregated_names(self) -> tuple[str, ...]:
        return self.task.params[-self.tensors :]
