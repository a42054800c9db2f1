"""FedBABU (Oh et al., ICLR 2022, arXiv:2106.06042).

Server keeps the body B; every client has the one common head H as it was drawn, and nobody trains it. A round trains B
with H fixed; B goes down and up (2|B|). Whoever deploys the model first fine-tunes it on its own training rows: the
whole model, its head, or its body. "pre" is fine-tuned, "post" is the body as trained in the round below the head as
drawn.

Deviations from the public code (jhoon-oh/FedBABU): bodies are weighted by training rows unless `averaging: uniform`;
fine-tuning has the run's optimiser, started anew; BatchNorm statistics stay with the client.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel, tuning
from fedweave.families.heads import body
from fedweave.settings import Epochs, IntegerSpace
from fedweave.tensors.trees import Params, Tree


@method("fedbabu")
@dataclass(frozen=True, kw_only=True)
class FedBABU(GlobalModel):
    """A shared body below a head that nobody trains, fine-tuned when it is deployed."""

    fine_tune: Annotated[Literal["all", "head", "body"], "what is trained before the model is deployed"] = "all"
    fine_tune_epochs: Annotated[Epochs, IntegerSpace(0, 10), "epochs of it; 0: the task's"] = 0

    label = "FedBABU"
    point = "pre"

    @property
    def local_names(self) -> tuple[str, ...]:
        return (*self.task.head, *self.statistics)

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        return self.split_update(self.descend({**shared, **client}, data, body(self.task)))

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        parts = {"all": self.task.params, "head": self.task.head, "body": body(self.task)}
        epochs = self.fine_tune_epochs or self.training.epochs
        return tuning.fine_tune(self, {**shared, **client}, parts[self.fine_tune], epochs, data)
