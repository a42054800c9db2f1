"""FedBN (Li et al., ICLR 2021, arXiv:2102.07623).

FedAvg over everything but BatchNorm: scale, shift and statistics stay with the client. Undefined for models without
normalisation.

Deviations:
1. LayerNorm and GroupNorm stay with the client too.
2. Layers are found by module type, not by a substring of their names as in the public code (med-air/FedBN).
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient


@method("fedbn")
@dataclass(frozen=True, kw_only=True)
class FedBN(SplitClient, GlobalModel):
    """FedAvg with private batch normalisation."""

    label = "FedBN"
    needs = frozenset({"batch_norm"})

    @property
    def private(self) -> tuple[str, ...]:
        return self.task.norms

    @property
    def statistics(self) -> tuple[str, ...]:
        return self.task.buffers
