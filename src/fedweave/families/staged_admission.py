"""Newcomers of a graph hypernetwork, led through the stages that all clients before them went through."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.solvers import Solver, clone
from fedweave.engine.protocol import Server, Start
from fedweave.errors import BadInput
from fedweave.families.hypernetworks import GraphHypernetwork
from fedweave.families.server_solvers import network_solver
from fedweave.settings import Rate, Rounds
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class StagedAdmission(GraphHypernetwork):
    """A graph hypernetwork that learns the vector of a newcomer before it takes part in the graph.

    A newcomer goes through five steps:

    1. Its vector begins at the mean of those that stage 1 learned. That stage's hypernetwork is frozen.
    2. For `admission_rounds` rounds this network makes its model θ̄ from the vector, and the client trains it to θ.
    3. After each of these rounds Adam takes a step of the vector alone on ½ ‖θ̄ − θ‖².
    4. The graph is made anew from the vectors of all clients.
    5. From then on stage 2 makes its model, as for all others; local training fine-tunes it.

    Who joins while others are being admitted begins the rounds of step 2 again for all of them.

    Until step 4 the others have the graph, the models and the server's steps that they have without newcomers. With
    `admission_rounds: 0` a newcomer keeps the mean vector and is in the graph at once.

    State, in addition: "stage1", the frozen network and the mean vector; "joining", the vectors [n, D] of newcomers,
    their optimiser, the rounds that are left, and what the graph is made from.
    """

    admission_rounds: Annotated[Rounds, "rounds that learn a newcomer's vector; 0: it has the mean vector"] = 0
    admission_lr: Annotated[Rate, "learning rate of a newcomer's vector"] = 0.1

    resized = ("fixed.edges",)

    def __post_init__(self) -> None:
        if self.admission_rounds and self.single_stage:
            raise BadInput(
                "admission_rounds: needs the network of stage 1, which single_stage leaves out; set one of them"
            )

    def take_over(self, server: Server, start: Start) -> Server:
        begun = super().take_over(server, start)
        if not self.admission_rounds:
            return begun
        first = {**trees.omit(server["phi"], ["embedding"]), "mean": server["phi"]["embedding"].mean(0, keepdim=True)}
        return {**begun, "fixed": {**begun["fixed"], "stage1": first}}

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        if "stage1" not in fixed:
            return super().add_rows(phi, fixed, enrolled, newcomers, start)
        mean, x = fixed["stage1"]["mean"], {**fixed, **phi}["x"]
        earlier = fixed["joining"]["vectors"]["embedding"] if self._admits(fixed) else mean[:0]
        vectors = {"embedding": torch.cat([earlier, mean.repeat(newcomers, 1)])}
        joining = {
            "vectors": vectors,
            "optimizer": self._vector_solver.init(vectors),
            "rounds": torch.tensor(self.admission_rounds, device=start.ids.device),
            "seed": torch.tensor(start.seed),
            **({} if start.relation is None else {"relation": start.relation}),
        }
        x = torch.cat([x[: len(x) - len(earlier)], self._inputs(fixed["stage1"], vectors)])
        return self.put_vectors(phi, {**fixed, "joining": joining}, x)

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        shared, own = super().download(server, ids)
        if not self._admits(server["fixed"]):
            return shared, own
        rows, vectors = self._newcomer_rows(server, ids), server["fixed"]["joining"]["vectors"]
        with torch.no_grad():
            models = self._first_models(server, vectors, ids[rows])
        return shared, {**own, **{name: own[name].index_copy(0, rows, value) for name, value in models.items()}}

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        if not self._admits(server["fixed"]):
            return super().aggregate(server, ids, uploads, weights)
        rest = (ids < self._first_newcomer(server)).nonzero()[:, 0]
        if len(rest):
            others = super().aggregate(server, ids[rest], trees.take(uploads, rest), weights[rest])
        return self.settle(others if len(rest) else server, ids, uploads, weights)

    def settle(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        phi, fixed = server["phi"], server["fixed"]
        if not self._admits(fixed):
            return server
        joining, rows = fixed["joining"], self._newcomer_rows(server, ids)
        trained = {"model": trees.take(uploads["model"], rows)}
        gradient, _ = pull_back(
            lambda vectors: self._first_models(server, vectors, ids[rows]),
            joining["vectors"],
            lambda start: self.cotangent(start, trained),
        )
        before = clone(joining["vectors"]), clone(joining["optimizer"])
        vectors, optimizer = self._vector_solver.step_(before[0], gradient, before[1])
        left = joining["rounds"] - 1
        x = torch.cat([{**fixed, **phi}["x"][: self._first_newcomer(server)], self._inputs(fixed["stage1"], vectors)])
        fixed = {**fixed, "joining": {**joining, "vectors": vectors, "optimizer": optimizer, "rounds": left}}
        if left == 0:
            start = Start({}, {}, len(x), int(joining["seed"]), joining.get("relation"), torch.arange(len(x)))
            fixed = {**fixed, "edges": self.edges(x, start)}
        phi, fixed = self.put_vectors(phi, fixed, x)
        return {**server, "phi": phi, "fixed": fixed}

    @property
    def _vector_solver(self) -> Solver:
        return network_solver("adam", self.admission_lr, 0.0, 0.0, self.server_clip)

    def _admits(self, fixed: Tree) -> bool:
        """Whether vectors of newcomers are being learned."""
        return "joining" in fixed and bool(fixed["joining"]["rounds"] > 0)

    def _newcomer_rows(self, server: Server, ids: Tensor) -> Tensor:
        """The places in `ids` of the clients that joined last."""
        return (ids >= self._first_newcomer(server)).nonzero()[:, 0]

    def _first_newcomer(self, server: Server) -> int:
        phi, fixed = server["phi"], server["fixed"]
        return len({**fixed, **phi}["x"]) - len(fixed["joining"]["vectors"]["embedding"])

    def _first_models(self, server: Server, vectors: Tree, ids: Tensor) -> Params:
        """Models [P, ...] of newcomers `ids` by the network of stage 1, differentiable in `vectors`."""
        stage1 = server["fixed"]["stage1"]
        z = self._inputs(stage1, vectors)[ids - self._first_newcomer(server)]
        return self.hypernetwork(z.shape[1]).run(stage1["hyper"], z)

    def _inputs(self, stage1: Tree, vectors: Tree) -> Tensor:
        """What a network reads of `vectors` [n, D]."""
        return self.client_vectors({**stage1, **vectors})
