"""Shared code of methods in which clients send a vector that describes their subgraph."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit
from fedweave.client.solvers import GroupedSolver, TwoGroups
from fedweave.client.task import NodeClassification, Task
from fedweave.engine.protocol import ClientState, Enrolment, Method, Update
from fedweave.errors import BadInput
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
    generator, n = stream(seed), blocks * size
    pairs = np.stack(np.triu_indices(n, 1))
    exists = (generator.random(pairs.shape[1]) < density) & (pairs[0] // size == pairs[1] // size)
    chosen = torch.from_numpy(pairs[:, exists])
    edges, weight = gcn_norm(torch.cat([chosen, chosen.flip(0)], 1), n, dtype)
    return {"x": torch.from_numpy(generator.standard_normal((n, features))).to(dtype), "edges": edges, "weight": weight}


def embed_blocks(task: Task, model: Params, graph: Tree) -> Tensor:
    """The mean embedding [D] of the nodes of `graph`, see `random_blocks`, under `model`."""
    return task.call(model, (graph["x"], graph["edges"], graph["weight"]), "embed").mean(0)


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
    """The client trains what it receives together with its own classifier, whose optimiser is never reset.

    It uploads everything but the classifier, and its embedding x_i [D], the mean over nodes of the last graph layer:
    first on joining, after training a model of its own, then in every `refresh`-th round. State: {"model": classifier
    and BatchNorm buffers, "moments": the classifier's optimiser}; moments of received tensors are reset, as their
    values changed, unless clients keep their optimisers.
    """

    task: NodeClassification
    enrol_epochs: Annotated[Epochs, "epochs before the first embedding"] = 10
    continued: Annotated[bool, "rounds continue with the classifier and moments of the enrolment"] = False
    refresh: Annotated[Rounds, "rounds between embeddings, 0 for the first one only"] = 5
    generated: Annotated[Literal["body", "biases"], "what is generated; biases: of the body, never trained"] = "body"

    needs = frozenset({"subgraphs"})
    embeds = True

    @property
    def local_names(self) -> tuple[str, ...]:
        if self.generated == "body":
            return (*self.task.head, *self.task.buffers)
        return (*self.trained_names, *self.task.buffers)

    @property
    def _biases(self) -> tuple[str, ...]:
        return tuple(n for n, shape in self.task.shapes().items() if len(shape) == 1 and n not in self.task.head)

    @property
    def trained_names(self) -> tuple[str, ...]:
        """Names of the parameters that local training moves."""
        fixed = () if self.generated == "body" else self._biases
        return tuple(name for name in self.task.params if name not in fixed)

    @property
    def _grouped_solver(self) -> GroupedSolver:
        """The client's optimiser, in which the classifier has a state of its own."""
        solvers = {"head": self.solver, "body": self.solver}
        return GroupedSolver(solvers=solvers, group=TwoGroups(tuple(self.task.head), "head", "body"))

    @property
    def enrolment_epochs(self) -> int:
        return self.enrol_epochs

    def enrol(self, model: Params, data: ClientData) -> Tree:
        names, solver = (self.trained_names, self._grouped_solver) if self.continued else (None, None)
        fit = self.descend(model, data, names, epochs=slice(0, self.enrol_epochs), solver=solver)
        upload = {"embedding": self.task.embedding(fit.model, data)}
        return Enrolment(upload, self._private_state(fit)) if self.continued else upload

    def join(self, model: Params) -> ClientState:
        return {
            "model": trees.select(model, self.local_names),
            "moments": self.solver.init(trees.select(model, self.task.head)),
        }

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model, solver = self.personalize(shared, own, client, data), self._grouped_solver
        moments = {**solver.init(trees.select(model, self.trained_names)), "head": client["moments"]}
        fit = self.descend(model, data, self.trained_names, solver=solver, state=moments)
        upload = {"model": trees.omit(fit.model, self.local_names), **self._embedding_upload(fit.model, data)}
        return Update(upload, self._private_state(fit), fit.model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own, **client["model"]}

    def _private_state(self, fit: Fit) -> ClientState:
        return {"model": trees.select(fit.model, self.local_names), "moments": fit.state["head"]}

    def _embedding_upload(self, model: Params, data: ClientData) -> dict[str, Tensor]:
        is_refreshed = self.refresh and data.round and data.round % self.refresh == 0
        return {"embedding": self.task.embedding(model, data)} if is_refreshed else {}
