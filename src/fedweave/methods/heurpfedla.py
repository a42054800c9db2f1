"""HeurpFedLA (Ma et al., CVPR 2022, arXiv:2205.03993): pFedLA that leaves the client the layers it mixes least.

Server as pFedLA. Every round the k layers with the largest self weight α_ii^l are retained: the client continues with
its own, they are not sent down, and nothing is learned from them. Everything comes up, because others may need it: down
P less the retained layers, up P, which reproduces the communication table of the paper.

Deviations:
1. Normalisation layers are not ranked unless `rank_bn` (the layers the paper retains are convolutional and linear).
2. Nothing is learned from retained layers, as nothing of their mixture was used; Algorithm 2 updates all weights:
   `learn_retained`.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Server, Update
from fedweave.engine.registry import method
from fedweave.families.mixtures import LayerwiseHypernetworks, mask_newcomers
from fedweave.settings import Count, IntegerSpace
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("heurpfedla")
@dataclass(frozen=True, kw_only=True)
class HeurpFedLA(LayerwiseHypernetworks):
    """Layer-wise mixtures, except for the layers a client trusts itself most with."""

    retain: Annotated[Count, IntegerSpace(1, 3), "k, layers kept per client and round; 0 is pFedLA"] = 1
    rank_bn: Annotated[bool, "normalisation layers may be retained too"] = False
    learn_retained: Annotated[bool, "their weights learn from retained layers too, as the paper's Algorithm 2"] = False

    label = "HeurpFedLA"
    point = "pre"

    @property
    def learns_from_retained(self) -> bool:
        return self.learn_retained

    def retained_layers(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        # The method's own weights, so that a control of the graph changes what is mixed and not what is retained.
        alpha = mask_newcomers(self.weights(phi, fixed, ids), ids, fixed).detach()
        self_weights = alpha[:, torch.arange(len(ids), device=ids.device), ids].T
        rankable = [self.rank_bn or not set(names) <= set(self.task.norms) for names in self.task.layers.values()]
        ranked = self_weights.masked_fill(~torch.tensor(rankable, device=self_weights.device), -torch.inf)
        best = ranked.argsort(dim=1, descending=True, stable=True)[:, : min(self.retain, sum(rankable))]
        return torch.zeros_like(self_weights, dtype=torch.bool).scatter(1, best, True)

    def attach(self, server: Server, ids: Tensor) -> Tree:
        return {"retained": self.retained_layers(server["phi"], server["fixed"], ids)}

    def join(self, model: Params) -> ClientState:
        return model

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        update = super().client_update(shared, own, client, data)
        return update._replace(client=update.model)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        # Not the server's copy of a retained layer, which noise, clipping or an attack may have changed.
        is_retained = {
            name: retained
            for names, retained in zip(self.task.layers.values(), own["retained"], strict=True)
            for name in names
        }
        received = trees.omit(own, ("retained",))
        mixture = {name: torch.where(is_retained[name], client[name], value) for name, value in received.items()}
        return {**client, **mixture}

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        down = {
            name: value[~is_retained]
            for names, is_retained in zip(self.task.layers.values(), own["retained"].T, strict=True)
            for name, value in trees.select(own, names).items()
        }
        return trees.nbytes(down), trees.nbytes(uploads)
