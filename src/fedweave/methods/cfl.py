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

from dataclasses import dataclass

import torch
from torch import Tensor

from fedweave.engine.protocol import Server
from fedweave.engine.registry import method
from fedweave.families.bisection import Bisection
from fedweave.graphs.weights import cosines
from fedweave.tensors import trees


@method("cfl")
@dataclass(frozen=True, kw_only=True)
class CFL(Bisection):
    """FedAvg that splits where clients' updates contradict each other."""

    label = "CFL"

    def part(self, server: Server, members: Tensor) -> Tensor:
        return _bisect(trees.to_matrix(trees.take(server["updates"], members)))


def _bisect(updates: Tensor) -> Tensor:
    """Boolean [n]: one part of the complete-linkage clustering into two under the cosine distance."""
    from scipy.cluster.hierarchy import cut_tree, linkage

    distance = 1.0 - cosines(updates).double().cpu()
    upper = torch.triu_indices(len(updates), len(updates), offset=1)
    parts = cut_tree(linkage(distance[upper[0], upper[1]].numpy(), method="complete"), n_clusters=2)
    return torch.from_numpy(parts[:, 0] == 1).to(updates.device)
