"""Shared code of methods in which a vector describes a client's subgraph to the server."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import Grouped
from fedweave.client.task import NodeClassification
from fedweave.errors import BadInput
from fedweave.federation.protocol import ClientState, Method, Update
from fedweave.models.gcn import gcn_norm
from fedweave.settings import Epochs, Rounds
from fedweave.tensors import trees
from fedweave.tensors.random_streams import stream
from fedweave.tensors.trees import Params, Tree


def random_blocks(seed: int, blocks: int, size: int, density: float, features: int, dtype: torch.dtype) -> Tree:
    """A random graph of `blocks` of `size` nodes: edges within a block only, features N(0, 1).

    Args:
        density: share of a block's possible edges that exist.

    Returns:
        {"x": [V, features], "edges": [3, E], "weight": [E]}, as a GCN reads them.
    """
    g, n = stream(seed), blocks * size
    pairs = np.stack(np.triu_indices(n, 1))
    exists = (g.random(pairs.shape[1]) < density) & (pairs[0] // size == pairs[1] // size)
    chosen = torch.from_numpy(pairs[:, exists])
    edges, weight = gcn_norm(torch.cat([chosen, chosen.flip(0)], 1), n, dtype)
    return {"x": torch.from_numpy(g.standard_normal((n, features))).to(dtype), "edges": edges, "weight": weight}


def unit_vectors(first: int, count: int, size: int) -> Tensor:
    """Rows `first` to `first + count` of the identity matrix [count, size].

    Raises:
        BadInput: the matrix has fewer rows.
    """
    if first + count > size:
        raise BadInput(
            f"embedding: 'onehot' has vectors of length {size} and none for client {size + 1}; let fewer join"
        )
    return torch.eye(first + count, size)[first:]


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
    def local_names(self) -> tuple[str, ...]:
        return (*self.task.head, *self.task.buffers)

    @property
    def enrolment_epochs(self) -> int:
        return self.enrol_epochs

    def enrol(self, model: Params, data: ClientData) -> Tree:
        return {
            "embedding": self.task.embedding(self.descend(model, data, epochs=slice(0, self.enrol_epochs)).model, data)
        }

    def join(self, model: Params) -> ClientState:
        return {
            "model": trees.only(model, self.local_names),
            "moments": self.solver.init(trees.only(model, self.task.head)),
        }

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        solver = Grouped(
            solvers={"head": self.solver, "body": self.solver},
            group=lambda n: "head" if n in self.task.head else "body",
        )
        moments = {**solver.init(trees.only(model, self.task.params)), "head": client["moments"]}
        fit = self.descend(model, data, solver=solver, state=moments)
        upload = {"model": trees.without(fit.model, self.local_names), **self._news(fit.model, data)}
        return Update(
            upload,
            {"model": trees.only(fit.model, self.local_names), "moments": fit.state["head"]},
            fit.model,
            fit.loss,
        )

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own, **client["model"]}

    def _news(self, model: Params, data: ClientData) -> dict[str, Tensor]:
        due = self.refresh and data.round and data.round % self.refresh == 0
        return {"embedding": self.task.embedding(model, data)} if due else {}
