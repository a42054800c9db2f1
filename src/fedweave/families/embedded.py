"""A family of clients whose data is a subgraph, and who tell the server a vector that describes it."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import Grouped
from fedweave.client.task import NodeClassification
from fedweave.federation.protocol import ClientState, Method, Update
from fedweave.settings import Epochs, Rounds
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class EmbeddedClient(Method):
    """The client trains what it receives together with its own classifier, whose optimiser it never resets.

    It uploads everything but the classifier, and its embedding x_i [D], the mean over nodes of the last graph layer:
    first on joining, after training a model of its own, then in every `refresh`-th round. State: {"model": classifier
    and BatchNorm buffers, "moments": the classifier's optimiser}; moments of received tensors are reset, as their
    values changed.
    """

    task: NodeClassification
    enrol_epochs: Annotated[Epochs, "epochs before the first embedding"] = 10
    refresh: Annotated[Rounds, "rounds between embeddings, 0 for the first one only"] = 5

    needs = frozenset({"subgraphs"})
    embeds = True

    @property
    def kept(self) -> tuple[str, ...]:
        return (*self.task.head, *self.task.buffers)

    @property
    def enrolment_epochs(self) -> int:
        return self.enrol_epochs

    def enrol(self, model: Params, data: ClientData) -> Tree:
        return {
            "embedding": self.task.embedding(self.descend(model, data, epochs=slice(0, self.enrol_epochs)).model, data)
        }

    def join(self, model: Params) -> ClientState:
        return {"model": trees.only(model, self.kept), "moments": self.solver.init(trees.only(model, self.task.head))}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        solver = Grouped(
            solvers={"head": self.solver, "body": self.solver},
            group=lambda n: "head" if n in self.task.head else "body",
        )
        moments = {**solver.init(trees.only(model, self.task.params)), "head": client["moments"]}
        fit = self.descend(model, data, solver=solver, state=moments)
        upload = {"model": trees.without(fit.model, self.kept), **self._news(fit.model, data)}
        return Update(
            upload, {"model": trees.only(fit.model, self.kept), "moments": fit.state["head"]}, fit.model, fit.loss
        )

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own, **client["model"]}

    def _news(self, model: Params, data: ClientData) -> dict[str, Tensor]:
        due = self.refresh and data.round and data.round % self.refresh == 0
        return {"embedding": self.task.embedding(model, data)} if due else {}
