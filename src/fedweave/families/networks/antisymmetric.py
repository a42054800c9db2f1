"""A directed graph learnt from node vectors, at most one direction per pair: the graph constructor of MTGNN and SFL*.

Source: Wu et al., arXiv:2005.11650; its use for models in github.com/dawenzi098/SFL-Structural-Federated-Learning.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AntisymmetricGraph(nn.Module):
    """ReLU(tanh(a (M1 M2ᵀ − M2 M1ᵀ))) with M_k = tanh(a Lin_k(e_k)).

    The vectors e_1, e_2 [N, D] are parameters, zero at first.
    """

    def __init__(self, clients: int, size: int, *, saturation: float = 3.0) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(clients, size)) for _ in range(2))
        self.lin1, self.lin2 = (nn.Linear(size, size) for _ in range(2))
        self.saturation = saturation

    def forward(self) -> Tensor:
        """Weights [N, N] in [0, 1); entry (i, j) is 0 where (j, i) is positive."""
        one = torch.tanh(self.saturation * self.lin1(self.first))
        two = torch.tanh(self.saturation * self.lin2(self.second))
        return F.relu(torch.tanh(self.saturation * (one @ two.T - two @ one.T)))


def keep_largest(weights: Tensor, k: int) -> Tensor:
    """The `k` largest entries of every row of [N, N], the others 0."""
    top = weights.topk(min(k, weights.shape[1]), dim=1)
    return torch.zeros_like(weights).scatter(1, top.indices, top.values)
