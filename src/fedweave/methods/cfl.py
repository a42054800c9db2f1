"""CFL, clustered federated learning (Sattler et al., TNNLS 2020, arXiv:1910.01991).

Server keeps a partition of the clients and one model per cluster (as rows [N, ...], equal within a cluster). The
cluster's model goes down, θ_k comes up (2P); Δ_k = θ_k − received. A cluster with ‖mean Δ‖ < ε1, max ‖Δ‖ > ε2 and more
than `min_size` members splits, from round t0 on, into two parts: complete-linkage clustering by −cos(Δ_k, Δ_l). Then
every member's model gains the unweighted mean of Δ over its (new) cluster.

Deviations:
1. In the paper all clients take part. Under partial participation splits use every member's latest update, members
   without any update stay with the larger part, and a cluster moves by the mean over its participants.
2. Newcomers join the largest cluster; later splits may move them. The paper walks them down its tree of past splits.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedweave.families import SplitClient
from fedweave.families.weaving import Weaving, everybody
from fedweave.federation.collaboration import cosines, row_shares
from fedweave.federation.protocol import Server, Stage, Start
from fedweave.federation.registry import method
from fedweave.settings import AtLeast, AtMost, LogSpace, NonNegative, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


@method("cfl")
@dataclass(frozen=True, kw_only=True)
class CFL(Weaving, SplitClient):
    """FedAvg that splits where clients' updates contradict each other."""

    eps1: Annotated[NonNegative, LogSpace(0.1, 4), "ε1, a cluster is stationary below this norm of its mean"] = 0.5
    eps2: Annotated[NonNegative, LogSpace(0.1, 4), "ε2, a client is not stationary above this norm of its update"] = 0.5
    min_size: Annotated[Size, "clusters of this size or smaller never split"] = 2
    first_split: Annotated[int, AtLeast(-1), AtMost(1_000_000), "t0, rounds without splits; -1: a tenth of all"] = -1

    label = "CFL"

    def stages(self, rounds: int) -> list[Stage]:
        first_split = rounds // 10 if self.first_split < 0 else self.first_split
        return [Stage(replace(self, first_split=first_split), rounds)]

    def init(self, start: Start) -> Server:
        models = trees.broadcast(trees.without(start.model, self.local_names), start.clients)
        return {
            "models": models,
            "updates": trees.tree_map(torch.zeros_like, models),
            "round": torch.zeros((), dtype=torch.int64),
            "labels": torch.zeros(start.clients, dtype=torch.int64),
            "seen": torch.zeros(start.clients, dtype=torch.bool),
        }

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {}, trees.take(server["models"], ids)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        updates = trees.put(server["updates"], ids, trees.sub(uploads["model"], trees.take(server["models"], ids)))
        has_update = server["seen"].index_fill(0, ids, True)
        split = int(server["round"]) >= self.first_split
        labels = self._split(server["labels"], trees.flat(updates), has_update) if split else server["labels"]
        present = torch.zeros_like(has_update).index_fill(0, ids, True)
        own = row_shares(((labels[:, None] == labels) & present).double())
        share = self.controlled_row(own, everybody(labels), present, ahead=1) * present
        models = trees.tree_map(torch.add, server["models"], trees.mixed(updates, share))
        return {
            "models": models,
            "updates": updates,
            "round": server["round"] + 1,
            "labels": labels,
            "seen": has_update,
        }

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        largest = server["labels"].mode().values
        host = (server["labels"] == largest).nonzero()[0]
        grown = trees.grown(server, self.init(start))
        new = torch.arange(start.clients - newcomers, start.clients, device=host.device)
        models = trees.put(grown["models"], new, trees.take(grown["models"], host.expand(newcomers)))
        return {**grown, "models": models, "labels": grown["labels"].index_fill(0, new, int(largest))}

    def collaboration(self, server: Server) -> Tensor:
        same = (server["labels"][:, None] == server["labels"]).to(torch.get_default_dtype())
        return self.controlled_row(row_shares(same), everybody(same)).expand(len(self.task.layers), -1, -1)

    def _split(self, labels: Tensor, updates: Tensor, has_update: Tensor) -> Tensor:
        """New labels [N] from the last ones and the latest updates [N, P]; the smaller part gets a new label."""
        new = labels
        for label in labels.unique():
            members = (labels == label).nonzero().flatten()
            with_update = members[has_update[members]]
            if len(members) <= self.min_size or len(with_update) < 2 or not self._contradictory(updates[with_update]):
                continue
            second = _bisect(updates[with_update])
            second = second if 2 * int(second.sum()) <= len(with_update) else ~second
            new = new.index_fill(0, with_update[second], int(new.max()) + 1)
        return new

    def _contradictory(self, updates: Tensor) -> bool:
        return float(updates.mean(0).norm()) < self.eps1 and float(updates.norm(dim=1).max()) > self.eps2


def _bisect(updates: Tensor) -> Tensor:
    """Boolean [n]: one part of the complete-linkage clustering into two under the cosine distance."""
    from scipy.cluster.hierarchy import cut_tree, linkage

    distance = 1.0 - cosines(updates).double().cpu()
    upper = torch.triu_indices(len(updates), len(updates), offset=1)
    parts = cut_tree(linkage(distance[upper[0], upper[1]].numpy(), method="complete"), n_clusters=2)
    return torch.from_numpy(parts[:, 0] == 1).to(updates.device)
