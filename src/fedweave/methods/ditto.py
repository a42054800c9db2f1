"""Ditto (Li et al., ICML 2021, arXiv:2012.04221).

Server keeps one model g (traffic 2P, as FedAvg); every client also keeps a personal model v. Per round v takes s epochs
of v ← v − lr (∇F(v) + λ (v − g)), then w is trained from g by plain local training and uploaded. v is deployed.
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.client.data import ClientData
from fedweave.client.solvers import add_proximal_term
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.settings import Epochs, LogSpace, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("ditto")
@dataclass(frozen=True, kw_only=True)
class Ditto(GlobalModel):
    """A personal model in addition to the global one, pulled towards it."""

    lam: Annotated[Weight, LogSpace(0.01, 10), "λ, strength of the pull; 0 is local training"] = 1.0
    personal_epochs: Annotated[Epochs, "s, epochs of the personal model per round; 0: as many as the task has"] = 0

    label = "Ditto"
    point = "pre"

    @property
    def epochs(self) -> int:
        return max(self._personal_epochs, self.training.epochs)

    @property
    def _personal_epochs(self) -> int:
        return self.personal_epochs or self.training.epochs

    def join(self, model: Params) -> ClientState:
        return {"personal": model, "buffers": trees.select(model, self.local_names)}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        personal_loss = add_proximal_term(self.task.objective(data), trees.omit(shared, self.task.buffers), self.lam)
        personal = self.descend(client["personal"], data, loss=personal_loss, epochs=slice(0, self._personal_epochs))
        fit = self.descend({**shared, **client["buffers"]}, data)
        state = {"personal": personal.model, "buffers": trees.select(fit.model, self.local_names)}
        return Update({"model": trees.omit(fit.model, self.local_names)}, state, personal.model, personal.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return client["personal"]
