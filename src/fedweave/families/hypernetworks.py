"""Families whose server is one hypernetwork on a vector per client.

Networks are plain modules with external state: `protocol.init_parameters` makes the parameters of an `Architecture`,
`Architecture.run` takes them.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.solvers import Solver
from fedweave.engine.protocol import Server, Stage, Start, init_parameters
from fedweave.errors import BadInput
from fedweave.families.base import SplitClient
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.networks import Architecture, GCNEncoder, TargetHypernetwork, architecture
from fedweave.families.networks.mlp import backpropagate_heads, head_gradients
from fedweave.families.server_solvers import network_solver
from fedweave.families.weaving import Weaving, graph_values
from fedweave.graphs.weights import knn_graph, relation_graph, row_shares, smoothness, threshold_graph
from fedweave.settings import (
    Between,
    Choices,
    Count,
    Dropout,
    IntegerSpace,
    LogSpace,
    NonNegative,
    Rate,
    Rounds,
    Share,
    Size,
)
from fedweave.tensors import dropout_keys, recordings, trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.random_streams import stream
from fedweave.tensors.trees import Params, Tree


def pull_back_heads(
    hidden: Callable[[Tree], Tensor],
    phi: Tree,
    heads: Params,
    cotangents: Sequence[Tensor],
    call: Callable[[Callable[[], Any]], Any] = lambda function: function(),
) -> tuple[Tree, Params]:
    """`pull_back` of models that linear `heads` make of hidden(φ) [P, D]: (gradient in φ, gradient in `heads`).

    The derivative of the heads needs no generated model. Autograd computes only the rest, which is small.

    Args:
        call: calls the function for the rest, or replays it, see `recordings.call`.
    """
    cotangent = backpropagate_heads(heads, cotangents)
    gradient, out = call(lambda: pull_back(lambda phi: {"h": hidden(phi)}, phi, lambda _: {"h": cotangent}))
    return gradient, head_gradients(out["h"], heads, cotangents)


def draw_vectors(seed: int, ids: Tensor, size: int, like: Tensor) -> Tensor:
    """One draw from N(0, I) per client [len(ids), size], a function of the seed and the client's identity."""
    rows = [stream(seed, i).standard_normal(size) for i in ids.tolist()]
    return torch.from_numpy(np.stack(rows)).to(like)


GRAPHS = ("auto", "given", "knn", "cosine", "learned")
GRAPH = "auto, learned: given if there is one, else knn; or a control that replaces it"


@dataclass(frozen=True, kw_only=True)
class Hypernetwork(SplitClient, GeneratedModels):
    """One hypernetwork for all clients, which turns the code z_i of client i into its model (pFedHN, GHN, SHN).

    The loss is ½ Σ_i ‖θ̄_i − θ_i‖² / P over the P participants, summed over parameters; one step a round of one
    optimiser over all of φ, so momentum and weight decay also move the vectors of absent clients, as in
    AvivSham/pFedHN. `sequential` takes a step per participant instead, in their order, each on its own loss.
    """

    server_optimizer: Annotated[Literal["sgd", "adam"], "optimiser of φ"] = "adam"
    server_lr: Annotated[Rate, LogSpace(0.0003, 0.03), "learning rate of φ"] = 1e-3
    server_momentum: Annotated[Share, "momentum of φ under sgd"] = 0.0
    server_decay: Annotated[Rate, "weight decay of φ"] = 5e-5
    server_clip: Annotated[NonNegative, "largest norm of the gradient of φ; 0 is none"] = 50.0
    sequential: Annotated[bool, "a step of φ per participant and round, instead of one on their mean"] = False
    width: Annotated[Size, "hidden width of the hypernetwork"] = 100
    hidden: Annotated[Count, "hidden layers of the hypernetwork"] = 3
    embedding: Annotated[Literal["table", "mlp"], "clients' vectors; mlp: behind ReLU and a linear layer"] = "table"
    embedding_size: Annotated[Count, "length of a client's vector, 0 for ⌊1 + N/4⌋"] = 0

    @abstractmethod
    def codes(self, phi: Tree, fixed: Tree) -> Tensor:
        """Codes of all clients [N, D], differentiable in φ.

        On a GPU its derivative is recorded, so it must not read values of tensors in Python.
        """

    @property
    def server_solver(self) -> Solver:
        return network_solver(
            self.server_optimizer, self.server_lr, self.server_momentum, self.server_decay, self.server_clip
        )

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        z = self.codes(phi, fixed)[ids]
        return self.hypernetwork(z.shape[1]).run(phi["hyper"], z)

    def cotangent(self, start: Params, uploads: Tree) -> Params:
        return trees.tree_map(lambda a, b: (a - b).div_(len(a)), start, uploads["model"])

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        if type(self).generate is not Hypernetwork.generate:  # a subclass makes models in its own way
            return super().gradient(server, ids, uploads)
        phi, fixed, start = server["phi"], server["fixed"], self.sent_models(server, ids)
        vector, hyper = self.cotangent(start, uploads), phi["hyper"]
        heads = {name: value for name, value in hyper.items() if name.startswith("heads.")}

        def trunk(phi: Tree) -> Tensor:
            z = self.codes(phi, fixed)[ids]
            return self.hypernetwork(z.shape[1]).run(phi["hyper"], z, method="trunk")

        phi_without_heads = {**phi, "hyper": trees.omit(hyper, heads)}
        cotangents = [vector[name] for name in self.generated_shapes]
        gradient, of_heads = pull_back_heads(trunk, phi_without_heads, heads, cotangents, recordings.call)
        hyper_gradient = {**gradient["hyper"], **of_heads}
        return {**gradient, "hyper": {name: hyper_gradient[name] for name in hyper}}, start

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        if not self.sequential:
            return super().aggregate(server, ids, uploads, weights)
        changes = trees.sub(uploads["model"], self.sent_models(server, ids))
        for position in torch.arange(len(ids), device=ids.device).split(1):
            # A client's change θ_i − θ̄_i is added to the model that φ generates after the steps so far.
            target = trees.tree_map(torch.add, self.sent_models(server, ids[position]), trees.take(changes, position))
            server = super().aggregate(server, ids[position], {"model": target}, weights[position])
        return server

    def portrait(self, server: Server) -> Tensor:
        with torch.no_grad():
            return self.codes(server["phi"], server["fixed"])

    def initial_vectors(self, start: Start) -> Tree:
        """Fresh vectors of all clients."""
        like = next(iter(start.model.values()))
        size = self.embedding_size or 1 + start.clients // 4
        rows = {"embedding": draw_vectors(start.seed, start.ids, size, like)}
        if self.embedding == "table":
            return rows
        return {**rows, "lift": init_parameters(lambda: nn.Linear(size, size), start.seed, like.dtype)}

    def client_vectors(self, phi: Tree) -> Tensor:
        """The vectors [N, D] that the network reads."""
        if self.embedding == "table":
            return phi["embedding"]
        return F.linear(F.relu(phi["embedding"]), phi["lift"]["weight"], phi["lift"]["bias"])

    def init_hypernetwork(self, size: int, start: Start) -> Params:
        """Parameters of a new hypernetwork on codes of length `size`."""
        return init_parameters(self.hypernetwork(size), start.seed + 1, next(iter(start.model.values())).dtype)

    def hypernetwork(self, size: int) -> Architecture:
        """The hypernetwork on codes of length `size`."""
        return architecture(TargetHypernetwork, size, self.generated_shapes, width=self.width, hidden=self.hidden)


class TableHypernetwork(Hypernetwork):
    """A learned vector per client is its code."""

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        phi = self.initial_vectors(start)
        return {**phi, "hyper": self.init_hypernetwork(phi["embedding"].shape[1], start)}, {}

    def codes(self, phi: Tree, fixed: Tree) -> Tensor:
        return self.client_vectors(phi)

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        old = phi["embedding"]
        rows = draw_vectors(start.seed, start.ids[-newcomers:], old.shape[1], old)
        return {**phi, "embedding": torch.cat([old, rows])}, fixed


@dataclass(frozen=True, kw_only=True)
class WarmUp(TableHypernetwork):
    """The first stage of graph hypernetworks: it learns the vectors from which the graph is made."""

    label = "warm-up"
    point = "pre"


@dataclass(frozen=True, kw_only=True)
class GraphHypernetwork(Weaving, Hypernetwork):
    """Vectors X from a first stage, a graph between clients, and an encoder that mixes X along it into codes.

    Stage 1 trains a plain hypernetwork and X. Then the graph is made from X (or given), X is fixed, and encoder and
    hypernetwork start again; the budget of rounds is the sum of both stages. `single_stage` leaves stage 1 out. It is
    for given graphs: a graph that is made from untrained vectors has no meaning.
    """

    graph: Annotated[str, graph_values(*GRAPHS), Choices(("knn", "cosine")), GRAPH] = "auto"
    k: Annotated[Count, IntegerSpace(1, 5), "neighbours of knn; 0 leaves every client alone"] = 3
    tau: Annotated[float, Between(-1, 1), Choices((0.2, 0.4, 0.8, 0.9, 0.95, 1.0)), "τ, threshold of cosine"] = 0.95
    stage1_rounds: Annotated[Rounds, "rounds of stage 1, 0 for as many as stage 2 has"] = 0
    single_stage: Annotated[bool, "no stage 1: X is as drawn when stage 2 begins"] = False
    train_x: Annotated[bool, "train X in stage 2 too"] = False
    warm_start: Annotated[bool, "stage 2 takes over the hypernetwork of stage 1"] = False
    depth: Annotated[Size, Choices((1, 2, 3, 4)), "layers of the encoder"] = 3
    channels: Annotated[Size, Choices((8, 16, 32, 64)), "channels of the encoder"] = 32
    dropout: Annotated[Dropout, "dropout of the encoder"] = 0.0

    own_graphs = GRAPHS

    def encoder(self, size: int) -> Architecture:
        """A network (x [N, size], edges [2, E], key) -> codes [N, size]; by default graph convolutions."""
        return architecture(GCNEncoder, size, size, width=self.channels, depth=self.depth, dropout=self.dropout)

    def extra_parameters(self, size: int, start: Start) -> Tree:
        """Learnable parameters in addition to encoder and hypernetwork; by default none."""
        return {}

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        return self.second_stage(self.client_vectors(self.initial_vectors(start)), start)

    def second_stage(self, x: Tensor, start: Start) -> tuple[Tree, Tree]:
        """(φ, fixed) of stage 2 on vectors x [N, D]."""
        size = x.shape[1]
        phi = {
            "encoder": init_parameters(self.encoder(size), start.seed + 2, x.dtype),
            "hyper": self.init_hypernetwork(size, start),
            **self.extra_parameters(size, start),
        }
        fixed = {"edges": self.edges(x, start), "key": dropout_keys.key(start.seed)}
        return self.put_vectors(phi, fixed, x)

    def put_vectors(self, phi: Tree, fixed: Tree, x: Tensor) -> tuple[Tree, Tree]:
        """(φ, fixed) with vectors x [N, D], which belong to φ if they are trained."""
        return ({**phi, "x": x}, fixed) if self.train_x else (phi, {**fixed, "x": x})

    def edges(self, x: Tensor, start: Start) -> Tensor:
        """The graph [2, E] between clients with vectors x [N, D]."""
        return self.controlled_edges(self._own_edges(x, start), len(x), start.seed)

    def _own_edges(self, x: Tensor, start: Start) -> Tensor:
        if self.graph not in ("knn", "cosine") and start.relation is not None:
            return relation_graph(start.relation, len(x))
        if self.graph == "given":
            raise BadInput("graph: 'given', but this partition has no client graph; use knn or cosine")
        return threshold_graph(x, self.tau) if self.graph == "cosine" else knn_graph(x, self.k)

    def codes(self, phi: Tree, fixed: Tree) -> Tensor:
        x, params = {**fixed, **phi}["x"], phi["encoder"]
        encoder, edges, key = self.encoder(x.shape[1]), fixed["edges"], fixed.get("key")
        return recordings.call(lambda: encoder.run(params, x, edges, key=key))

    def portrait(self, server: Server) -> Tensor:
        # Without its key, an encoder has no dropout: the portrait must not depend on the dropout of a round.
        return super().portrait({**server, "fixed": trees.omit(server["fixed"], ["key"])})

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        return {**fixed, "key": dropout_keys.fold(fixed["key"], 1)}

    def stages(self, rounds: int) -> list[Stage]:
        if self.single_stage:
            return [Stage(self, rounds)]
        first = WarmUp(**{f.name: getattr(self, f.name) for f in fields(WarmUp)})
        return [Stage(first, self.stage1_rounds or rounds), Stage(self, rounds, self.take_over)]

    def take_over(self, server: Server, start: Start) -> Server:
        """The server of stage 2 from that of stage 1."""
        phi, fixed = self.second_stage(self.client_vectors(server["phi"]), start)
        return self.assemble({**phi, "hyper": server["phi"]["hyper"]} if self.warm_start else phi, fixed)

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        old = {**fixed, **phi}["x"]
        # Nothing is known of a newcomer, so it starts from the mean vector.
        x = torch.cat([old, old.mean(0, keepdim=True).expand(newcomers, -1)])
        return self.put_vectors(phi, {**fixed, "edges": self.edges(x, start)}, x)

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        return smoothness(self.portrait(server), server["fixed"]["edges"])

    def collaboration(self, server: Server) -> Tensor:
        """Equal weights on the neighbours and on the client itself; the same for every layer."""
        edges, x = server["fixed"]["edges"], {**server["fixed"], **server["phi"]}["x"]
        adjacency = torch.eye(len(x), dtype=x.dtype, device=x.device).index_put((edges[0], edges[1]), x.new_ones(()))
        return row_shares(adjacency).expand(len(self.task.layers), -1, -1)
