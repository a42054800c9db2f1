"""FedALA (Zhang et al., AAAI 2023, arXiv:2212.01197).

Server and wire as FedAvg (2P). The client keeps its own θ and weights W for the last p parameter tensors: it takes the lower
layers of g, starts the others from θ + (g − θ) ⊙ W after W has learnt (see `Blending`), then trains and uploads everything.
It is judged after the blending, before local training.

Deviations from TsingZ0/PFLlib:
1. The last incomplete batch of W's lessons is kept; the code drops it and learns nothing on clients smaller than a batch.
2. The first lesson ends after `start_epochs`; the code's loop has no bound.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedweave.families.blending import Blending


@dataclass(frozen=True, kw_only=True)
class FedALA(Blending):
    """FedAvg with adaptive local aggregation of the upper layers.

    Attributes:
        eta, portion, start_epochs, threshold: see `Blending`.
        tensors: p, how many of the last parameter tensors are blended; 0 for all.
    """

    portion: float = 80.0
    start_epochs: int = 20
    tensors: int = 2

    label = "FedALA"
    point = "pre"
    bounds: ClassVar[dict] = {**Blending.bounds, "tensors": (0, None)}

    @property
    def blended(self) -> tuple[str, ...]:
        return self.task.params[-self.tensors :]
