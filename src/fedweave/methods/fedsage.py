"""FedSage+ (Zhang et al., NeurIPS 2021, arXiv:2106.13430).

Clients train a GraphSAGE classifier of their own instead of the task's model, and a generator of the neighbours that
other clients hold. In the first rounds a share of a client's validation nodes is hidden; generator and classifier learn
from the number and the features of hidden neighbours, from labels on the mended graph, and from neighbours' features of
the other clients: (smooth-L1 + greedy MSE + CE + Σ_others greedy MSE) / N. Nothing is averaged until the last of these
rounds. Then every client mends its graph with up to S generated neighbours per node, and the classifier is trained by
unweighted FedAvg.

Traffic: the classifier both ways; while generators learn, a bank of every client's raw neighbour features goes down
(the paper sends gradients on them), and the generator's start to new clients. Newcomers have no generator and mend
nothing.

Deviations from xkLi-Allen/OpenFGL:
1. Generated neighbours are joined in both directions; in the code they only receive, so that their presence alone
   changes no prediction (`inert`).
2. The generator mends the whole subgraph; in the code it still sees the impaired one.
3. The bank is drawn once per client.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server, Start, Update, init_parameters
from fedweave.engine.registry import method
from fedweave.families import generated_neighbours as neighbours
from fedweave.families.generated_neighbours import NETWORKS
from fedweave.settings import IntegerSpace, Rounds, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("fedsage")
@dataclass(frozen=True, kw_only=True)
class FedSage(neighbours.GeneratedNeighbours):
    """GraphSAGE on graphs mended with generated neighbours."""

    generator_rounds: Annotated[Rounds, IntegerSpace(5, 20), "rounds in which generators learn"] = 10
    bank_size: Annotated[Size, "nodes whose neighbours' features every client reveals"] = 128

    label = "FedSage+"
    needs = frozenset({"subgraphs"})

    def uploads_in(self, round: int) -> bool:
        return round + 1 >= self.generator_rounds

    def init(self, start: Start) -> Server:
        networks = {
            name: init_parameters(partial(self.build, name), start.seed + i, self.task.dtype)
            for i, name in enumerate(NETWORKS)
        }
        return {
            **networks,
            "bank": start.enrolled,
            "seen": torch.zeros(start.clients, dtype=torch.bool),
            "ids": start.ids.clone(),
            "round": torch.tensor(0),
        }

    def enrol(self, model: Params, data: ClientData) -> Tensor:
        return neighbours.draw_bank(data, self.bank_size, self.most, data.key)

    def join(self, model: Params) -> ClientState:
        like = next(iter(model.values()))
        blank = {
            name: {n: like.new_zeros(p.shape) for n, p in net.named_parameters()} for name, net in self.networks.items()
        }
        return {**blank, "key": torch.zeros((), dtype=torch.int64, device=like.device)}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        learning = int(server["round"]) < self.generator_rounds
        shared = trees.select(server, (*NETWORKS, "bank", "ids") if learning else NETWORKS[:1])
        return shared, {"seen": server["seen"][ids], "id": server["ids"][ids]}

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return shared["classifier"], {}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        state, learning = self._client_state(shared, own, client, data), data.round < self.generator_rounds
        networks = NETWORKS if learning else NETWORKS[:1]
        model = {f"{name}/{n}": p for name in networks for n, p in state[name].items()}
        losses = self.generator_losses(shared, own, state, data) if learning else self.classifier_losses(state, data)
        phase = "generators" if learning else "classifier"
        fit = self.descend(model, data, tuple(model), loss=self.task.objective(data, losses), phase=phase)
        new_state = {**state, **{name: neighbours.select_network(fit.model, name) for name in networks}}
        upload = {"model": new_state["classifier"]} if self.uploads_in(data.round) else {}
        return Update(upload, new_state, {**new_state, "mend": torch.ones_like(own["seen"]) & (not learning)}, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        mean = trees.weighted_mean(uploads["model"], torch.ones_like(weights)) if uploads else server["classifier"]
        seen = server["seen"].index_fill(0, ids, True)
        return {**server, "classifier": mean, "seen": seen, "round": server["round"] + 1}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        state = self._client_state(trees.omit(shared, ["generator"]), own, client, data)
        return {**state, "mend": torch.ones_like(own["seen"]) & (data.round >= self.generator_rounds)}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        with torch.no_grad():
            slots = tuple(slot._replace(live=slot.live & model["mend"]) for slot in self.added_neighbours(model, data))
            return self.classify(model["classifier"], data, neighbours.non_loop_edges(data), slots)[rows.clamp(min=0)]

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start._replace(enrolled=torch.cat([server["bank"], enrolled]))))

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        new, common = participants - int(own["seen"].sum()), trees.nbytes(trees.omit(shared, ["generator"]))
        return participants * common + new * trees.nbytes(shared.get("generator", {})), trees.nbytes(uploads)

    def _client_state(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> ClientState:
        """The client's networks and constant key; a new client takes the server's, finally all take its classifier."""
        latest = {**trees.select(shared, NETWORKS), "key": data.key}
        state = {**client, **trees.choose(own["seen"], trees.select(client, latest), latest)}
        return state if data.round < self.generator_rounds else {**state, "classifier": shared["classifier"]}
