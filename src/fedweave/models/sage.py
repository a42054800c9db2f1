"""GraphSAGE and the neighbour generator of FedSage+, for subgraph clients.

Sources: Hamilton et al., arXiv:1706.02216; Zhang et al., arXiv:2106.13430; sizes as in github.com/xkLi-Allen/OpenFGL. A graph is
edges [3, E] (row 0 to row 1, `gcn.ordered`) with a weight [E] of 1, or 0 where an edge is to be ignored. Nodes may be mended:
`made` [V, S, F] are features of S generated neighbours of every node, `live` [V, S] says which of them exist.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave import keys
from fedweave.models.gcn import propagate


class SageConv(nn.Module):
    """W_own x_i + W_near mean_{j in N(i)} x_j + b; a generated neighbour has one neighbour, the node it belongs to."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.near, self.own = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor, made: Tensor | None, live: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Outputs of the nodes [V, D] and of their generated neighbours [V, S, D]."""
        sent = F.linear(x, self.near.weight)
        total, count = propagate(sent, edges, weight), propagate(torch.ones_like(x[:, :1]), edges, weight)
        if made is None or live is None:
            return total / count.clamp(min=1) + self.near.bias + self.own(x), None
        present = live.to(x.dtype)
        total = total + (present[..., None] * F.linear(made, self.near.weight)).sum(1)
        mean = total / (count + present.sum(1, keepdim=True)).clamp(min=1)
        return mean + self.near.bias + self.own(x), sent[:, None] + self.near.bias + self.own(made)


class GraphSAGE(nn.Module):
    """Two layers of mean aggregation with ReLU and dropout between them."""

    def __init__(self, fan_in: int, width: int, outputs: int, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1, self.conv2 = SageConv(fan_in, width), SageConv(width, outputs)
        self.dropout = dropout

    def forward(
        self, x: Tensor, edges: Tensor, weight: Tensor, *, made: Tensor | None = None, live: Tensor | None = None, key: Tensor | None = None
    ) -> Tensor:
        """[V, F] -> [V, outputs]; dropout with a key."""
        h, extra = self.conv1(x, edges, weight, made, live)
        h = keys.dropout(F.relu(h), self.dropout, key, salt=1)
        extra = None if extra is None else keys.dropout(F.relu(extra), self.dropout, key, salt=2)
        return self.conv2(h, edges, weight, extra, live)[0]


class NeighbourGenerator(nn.Module):
    """How many neighbours every node lacks, and what they look like.

    An encoder, a degree head ReLU(Linear), and a feature head on the code plus noise N(0, I): two ReLU layers of `sizes`, dropout,
    and S · F outputs in (−1, 1).
    """

    def __init__(self, features: int, width: int, most: int, sizes: tuple[int, int] = (256, 2048), *, dropout: float = 0.5) -> None:
        super().__init__()
        self.encoder = GraphSAGE(features, width, width, dropout=dropout)
        self.degree = nn.Linear(width, 1)
        self.fc1, self.fc2 = nn.Linear(width, sizes[0]), nn.Linear(*sizes)
        self.flat = nn.Linear(sizes[1], most * features)
        self.most, self.dropout = most, dropout

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor, *, noise: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Missing neighbours [V] and features [V, S, F]; `noise` is the key of the noise, `key` turns dropout on."""
        code = self.encoder(x, edges, weight, key=key)
        h = F.relu(self.fc2(F.relu(self.fc1(code + normal(noise, code.shape).to(code)))))
        made = torch.tanh(self.flat(keys.dropout(h, self.dropout, key, salt=3)))
        return F.relu(self.degree(code))[:, 0], made.unflatten(-1, (self.most, -1))


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 draws from N(0, 1), a hash of the 0-d key and the element's index."""
    radius = (-2.0 * torch.log1p(-keys.uniform(keys.fold(key, 0), shape))).sqrt()
    return radius * torch.cos(2.0 * torch.pi * keys.uniform(keys.fold(key, 1), shape))


def neighbours(edges: Tensor, chosen: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where the sources of the `chosen` [E] edges into each of the `nodes` lie: (first [V], count [V], sources [E]).

    Node v's are sources[first[v] : first[v] + count[v]]. Edges must be sorted by target, as `gcn_norm` leaves them.
    """
    order = torch.argsort((~chosen).to(torch.int64), stable=True)
    count = torch.zeros(nodes, dtype=torch.int64, device=edges.device).scatter_add(0, edges[1], chosen.to(torch.int64))
    return count.cumsum(0) - count, count, edges[0][order]
