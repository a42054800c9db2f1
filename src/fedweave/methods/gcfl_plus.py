"""GCFL+, clustered federated learning by sequences of gradient norms (Xie et al., NeurIPS 2021, arXiv:2106.13423).

As CFL: one model per cluster goes down, θ_k comes up (2P), and a cluster with ‖mean Δ‖ < ε1 and max ‖Δ‖ > ε2 splits,
from round t0 on. But the parts are those of the minimum cut (Stoer and Wagner) of the graph with weights max d − d_kl,
where d_kl is the dynamic time warping distance between the last `sequence` norms ‖Δ_k‖ and ‖Δ_l‖. A cluster whose
members have fewer norms does not split, and a split empties all sequences. The mean of Δ over a cluster is by training
rows.

Deviations from Oxfordblue7/GCFL:
1. Norms are those of the updates, as in the paper, which the server sees; the code sends the norm of the last
   minibatch's gradient. All parameters are shared; there, graph convolutions only.
2. All clusters may split in one round; there, the first one empties the sequences before the others are looked at.
3. Under partial participation only a cluster's own members need whole sequences, not all clients.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.engine.protocol import Server, Start
from fedweave.engine.registry import method
from fedweave.families.bisection import Bisection
from fedweave.settings import Between, IntegerSpace, LogSpace, NonNegative
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("gcfl_plus")
@dataclass(frozen=True, kw_only=True)
class GCFLPlus(Bisection):
    """FedAvg that splits where the course of clients' updates differs."""

    eps1: Annotated[NonNegative, LogSpace(0.01, 4)] = 0.05
    eps2: Annotated[NonNegative, LogSpace(0.01, 4)] = 0.1
    sequence: Annotated[int, Between(1, 100), IntegerSpace(2, 10), "norms of a client that are compared"] = 5
    standardize: Annotated[bool, "divide a client's norms by their standard deviation"] = False

    label = "GCFL+"
    point = "pre"

    def init(self, start: Start) -> Server:
        like = next(iter(start.model.values()))
        return {
            **super().init(start),
            "norms": like.new_zeros(start.clients, self.sequence),
            "length": torch.zeros(start.clients, dtype=torch.int64),
            "sizes": like.new_zeros(start.clients),
        }

    def observe(self, server: Server, ids: Tensor, updates: Params, weights: Tensor) -> Tree:
        latest = torch.cat([server["norms"][ids, 1:], trees.norms(updates)[:, None]], 1)
        return {
            "norms": server["norms"].index_copy(0, ids, latest),
            "length": server["length"].index_add(0, ids, torch.ones_like(ids)),
            "sizes": server["sizes"].index_copy(0, ids, weights.to(server["sizes"])),
        }

    def state_after_splits(self, server: Server) -> Tree:
        return {"length": torch.zeros_like(server["length"])}

    def client_weights(self, server: Server) -> Tensor:
        return torch.where(server["seen"].any(), server["sizes"], 1.0)

    def part(self, server: Server, members: Tensor) -> Tensor | None:
        if int(server["length"][members].min()) < self.sequence:
            return None
        norms = server["norms"][members].double().cpu()
        if self.standardize:
            norms = norms / norms.std(1, keepdim=True, correction=0).clamp(min=1e-12)
        distance = warping_distances(norms)
        return minimum_cut(distance.max() - distance).to(members.device)


def warping_distances(x: Tensor) -> Tensor:
    """Dynamic time warping distances [n, n] of the rows of `x` [n, T]: the root of the least sum of squared gaps."""
    total = torch.full((len(x), len(x), x.shape[1] + 1), torch.inf, dtype=x.dtype)
    total[..., 0] = 0.0
    for i in range(x.shape[1]):
        cost = (x[:, i, None, None] - x).square()
        new = torch.full_like(total, torch.inf)
        for j in range(x.shape[1]):
            smallest = torch.minimum(torch.minimum(total[..., j], total[..., j + 1]), new[..., j])
            new[..., j + 1] = cost[..., j] + smallest
        total = new
    return total[..., -1].sqrt()


def minimum_cut(weights: Tensor) -> Tensor:
    """Boolean [n], one side of the minimum cut of the complete graph with symmetric `weights` [n, n]."""
    import networkx

    graph = networkx.Graph()
    pairs = torch.combinations(torch.arange(len(weights))).tolist()
    graph.add_weighted_edges_from((i, j, float(weights[i, j])) for i, j in pairs)
    side = networkx.stoer_wagner(graph)[1][0]
    return torch.zeros(len(weights), dtype=torch.bool).index_fill(0, torch.tensor(sorted(side)), True)
