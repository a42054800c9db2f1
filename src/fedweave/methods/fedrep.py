"""FedRep (Collins et al., ICML 2021, arXiv:2102.07078).

Server keeps the body B; the head H stays with the client (traffic 2|B|). A round trains H for τ epochs with B frozen,
then B for E epochs with H frozen.

Deviation from the public code (lgcollins/FedRep), as in FedAGHN's comparison: epochs instead of iterations, no momentum
unless the run's optimiser has it.
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit
from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient
from fedweave.families.heads import body
from fedweave.settings import Epochs, IntegerSpace
from fedweave.tensors.trees import Params


@method("fedrep")
@dataclass(frozen=True, kw_only=True)
class FedRep(SplitClient, GlobalModel):
    """A shared body with private heads, trained in turn."""

    head_epochs: Annotated[Epochs, IntegerSpace(0, 10), "τ, epochs of the head, before the body; 0: the task's"] = 0

    label = "FedRep"

    @property
    def private(self) -> tuple[str, ...]:
        return self.task.head

    @property
    def epochs(self) -> int:
        return (self.head_epochs or self.training.epochs) + self.training.epochs

    def fit(self, model: Params, received: Params, data: ClientData) -> Fit:
        first = self.epochs - self.training.epochs
        head_fit = self.descend(model, data, self.task.head, epochs=slice(0, first))
        return self.descend(head_fit.model, data, body(self.task), epochs=slice(first, self.epochs))
