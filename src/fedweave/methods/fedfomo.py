"""FedFomo (Zhang et al., ICLR 2021, arXiv:2012.08565).

Server keeps the last model θ_j of every client and affinities A [N, N], A = I at first; client i gets the M best
trained models of row i but its own, each slot at random with probability ε (decaying by the round). Candidates j are
these and its own θ_i. On its validation rows it weighs them against θ_i⁰, the model from which it last began to train:
w_j = max(0, (L(θ_i⁰) − L(θ_j)) / ‖θ_j − θ_i⁰‖), normalised; θ_i ← Σ w_j θ_j, unchanged if all are 0; then it trains and
uploads θ_i, and A_ij gains w_j, also for j = i. M·P go down, P + M + 1 scalars come up.

Deviation: validation rows are the task's; NVlabs/FedFomo carves 20 % off the training rows. `raw_affinity` adds the
scores before clipping and normalisation to A, as TsingZ0/PFLlib does. A control of the graph replaces the shares of A.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families.sampling import append_model, best_sources, first_order_gains, gather_models
from fedweave.families.weaving import Weaving, all_ids, usable_sources
from fedweave.graphs.controls import LARGEST
from fedweave.graphs.weights import row_shares
from fedweave.settings import IntegerSpace, Rate, Share, Size
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree


@method("fedfomo")
@dataclass(frozen=True, kw_only=True)
class FedFomo(Weaving):
    """Every client takes from other clients' models what lowers its own validation loss."""

    models: Annotated[Size, IntegerSpace(2, 10), "M, models sent to a client"] = 5
    epsilon: Annotated[Share, "probability of a random pick in round 0"] = 0.3
    decay: Annotated[Rate, "decrease of epsilon in each round"] = 0.05
    raw_affinity: Annotated[bool, "add unclipped, unnormalised scores to A"] = False

    label = "FedFomo"

    @property
    def needs_validation(self) -> str:
        return "by which clients weigh the models of others; use local, which is FedFomo without them"

    def init(self, start: Start) -> Server:
        return {
            "models": trees.build_table(trees.select(start.model, self.task.params), start.clients),
            "affinity": torch.eye(start.clients, dtype=self.task.dtype),
            "ids": start.ids.clone(),
            "seen": torch.zeros(start.clients, dtype=torch.bool),
            "key": dropout_keys.key(start.seed),
            "round": torch.tensor(0),
        }

    def join(self, model: Params) -> ClientState:
        return {"model": model, "base": trees.select(model, self.task.params)}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        picks, live = self.picks(server, ids)
        own = {"models": gather_models(server["models"], picks), "live": live}
        if self.control is None:
            return {}, own
        return {}, {**own, "mixture": self.mix_models(self.collaboration(server)[:, ids], server["models"])}

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return {}, own.get("mixture", {})  # training does not start from any of the models of others

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        scores = self._scores(own, client, data)
        start = self._mix(own, client, w := row_shares(scores.clamp(min=0)))
        fit = self.descend(start, data)
        upload = {"model": trees.select(fit.model, self.task.params), "gained": scores if self.raw_affinity else w}
        return Update(upload, {"model": fit.model, "base": trees.select(start, self.task.params)}, fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        picks, _ = self.picks(server, ids)
        sources = torch.cat([picks, ids[:, None]], 1)
        affinity = server["affinity"].index_put((ids[:, None], sources), uploads["gained"], accumulate=True)
        models, has_model = trees.put(server["models"], ids, uploads["model"]), server["seen"].index_fill(0, ids, True)
        return {**server, "models": models, "affinity": affinity, "seen": has_model, "round": server["round"] + 1}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self._mix(own, client, row_shares(self._scores(own, client, data).clamp(min=0)))

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        model_bytes = trees.nbytes(uploads["model"]) // participants
        count = int(own["live"].sum()) + (participants if "mixture" in own else 0)
        return model_bytes * count + trees.nbytes(own["live"]), trees.nbytes(uploads)

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start))

    def collaboration(self, server: Server) -> Tensor:
        shares = row_shares(server["affinity"].clamp(min=0)).expand(len(self.task.layers), -1, -1)
        return self.controlled(shares, all_ids(shares[0]), usable_sources(server["seen"]))

    def picks(self, server: Server, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Sources [P, M] of clients `ids`, best slots first, and which of them hold a model [P, M]."""
        base, identities = dropout_keys.fold(server["key"], server["round"]), server["ids"][ids]
        draws = dropout_keys.fold(base, identities[:, None], server["ids"][None, :]) & LARGEST
        epsilon = (self.epsilon - self.decay * server["round"]).clamp(min=0.0)
        available = server["seen"] & (ids[:, None] != torch.arange(len(server["ids"]), device=ids.device))
        slots = -1 - torch.arange(min(self.models, len(server["ids"]) - 1), device=ids.device)
        explores = (dropout_keys.fold(base, identities[:, None], slots) & LARGEST) < epsilon * LARGEST
        return best_sources(server["affinity"][ids], available, draws, explores)

    def _scores(self, own: Tree, client: ClientState, data: ClientData) -> Tensor:
        """Scores [M + 1] of the models received, 0 for empty slots, and of the client's own."""
        models = append_model(own["models"], client["model"])
        return first_order_gains(self.task, client, models, data) * torch.cat([own["live"], own["live"].new_ones(1)])

    def _mix(self, own: Tree, client: ClientState, weights: Tensor) -> Params:
        if "mixture" in own:
            return {**client["model"], **own["mixture"]}  # under a control of the graph
        # Weights sum to 1 or to 0. A sum of differences would round where models agree, and ReLU has a kink at 0.
        model = client["model"]
        mixed = trees.mix_rows(append_model(own["models"], model), weights)
        return {**model, **{name: torch.where(weights.any(), value, model[name]) for name, value in mixed.items()}}
