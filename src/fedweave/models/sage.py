"""GraphSAGE and the neighbour generator of FedSage+, for subgraph clients.

Sources: Hamilton et al., arXiv:1706.02216; Zhang et al., arXiv:2106.13430; sizes as in github.com/xkLi-Allen/OpenFGL.
A graph is edges [3, E] (row 0 to row 1, column order) with a weight [E] of 1, or 0 for edges to ignore. In a
completed graph, each node has up to S generated neighbours. Most nodes have fewer, so neighbours are stored by slot
(`Slot`), without empty slots.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.models.gcn import SparseMatrix, project, propagate
from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import is_mapped


class Slot(NamedTuple):
    """At most one generated neighbour per node.

    Attributes:
        nodes: [L] nodes that have these neighbours, each at most once.
        features: [L, D] of these neighbours.
        live: [L] whether they exist; always true outside of `vmap`, under which sizes cannot differ.
    """

    nodes: Tensor
    features: Tensor
    live: Tensor


class SageConv(nn.Module):
    """W_near mean_{j in N(i)} x_j + W_own x_i + b; a generated neighbour has one neighbour, the node it belongs to.

    `weight` [fan_in, 2 · fan_out] is W_near next to W_own, a row per feature as in `gcn.GraphConv`.
    """

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        bound = fan_in**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(fan_in, 2 * fan_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))

    def forward(
        self, x: Tensor | SparseMatrix, edges: Tensor, weight: Tensor, slots: Sequence[Slot] = ()
    ) -> tuple[Tensor, tuple[Slot, ...]]:
        """Outputs of the nodes [V, D] and of their generated neighbours."""
        messages, own_part = project(x, self.weight).chunk(2, -1)
        total, count = propagate(messages, edges, weight), propagate(messages.new_ones(len(messages), 1), edges, weight)
        outputs = []
        for nodes, features, live in slots:
            near, own = (features @ self.weight).chunk(2, -1)
            present = live.to(features.dtype)[:, None]
            total, count = total.index_add(0, nodes, present * near), count.index_add(0, nodes, present)
            outputs.append(Slot(nodes, messages[nodes] + self.bias + own, live))
        return total / count.clamp(min=1) + self.bias + own_part, tuple(outputs)


class GraphSAGE(nn.Module):
    """Two layers of mean aggregation with ReLU and dropout between them."""

    def __init__(self, fan_in: int, width: int, outputs: int, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1, self.conv2 = SageConv(fan_in, width), SageConv(width, outputs)
        self.dropout = dropout

    def forward(
        self,
        x: Tensor | SparseMatrix,
        edges: Tensor,
        weight: Tensor,
        *,
        slots: Sequence[Slot] = (),
        key: Tensor | None = None,
    ) -> Tensor:
        """[V, F] or its cells -> [V, outputs]; dropout with a key."""
        h, features = self.conv1(x, edges, weight, slots)
        h = dropout_keys.dropout(F.relu(h), self.dropout, key, salt=1)
        return self.conv2(
            h, edges, weight, [self._activate(slot, len(h), key, 2 + i) for i, slot in enumerate(features)]
        )[0]

    def _activate(self, slot: Slot, nodes: int, key: Tensor | None, salt: int) -> Slot:
        # Drawn for every node, so that it does not depend on which other nodes have a neighbour in this slot.
        mask = dropout_keys.dropout(slot.features.new_ones(nodes, slot.features.shape[1]), self.dropout, key, salt)
        return slot._replace(features=F.relu(slot.features) * mask[slot.nodes])


class NeighbourGenerator(nn.Module):
    """Predicts how many neighbours every node lacks, and their features.

    An encoder, a degree head ReLU(Linear), and a feature head on the code plus noise N(0, I): two ReLU layers of
    `sizes`, dropout, and S · F outputs in (−1, 1). Only the outputs of existing neighbours are computed.
    """

    def __init__(
        self, features: int, width: int, most: int, sizes: tuple[int, int] = (256, 2048), *, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.encoder = GraphSAGE(features, width, width, dropout=dropout)
        self.degree = nn.Linear(width, 1)
        self.fc1, self.fc2 = nn.Linear(width, sizes[0]), nn.Linear(*sizes)
        self.flat = nn.Linear(sizes[1], most * features)
        self.most, self.dropout = most, dropout

    def forward(
        self, x: Tensor | SparseMatrix, edges: Tensor, weight: Tensor, *, noise: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, tuple[Slot, ...]]:
        """How many neighbours are missing [V], and these neighbours; `noise` and `key` seed the noise and dropout."""
        code = self.encoder(x, edges, weight, key=key)
        degree = F.relu(self.degree(code))[:, 0]
        return degree, self._generate_slots(code + normal(noise, code.shape).to(code), degree.detach(), key)

    def _generate_slots(self, code: Tensor, degree: Tensor, key: Tensor | None = None) -> tuple[Slot, ...]:
        """⌊degree⌋ neighbours of every node, S at most, from its noisy code [V, width]."""
        all_nodes = torch.arange(len(code), device=code.device)
        nodes = all_nodes if is_mapped() else all_nodes[degree >= 1]
        h = F.relu(self.fc2(F.relu(self.fc1(code[nodes]))))
        if key is not None and len(nodes):
            # Drawn for every node, so that it does not depend on which other nodes have neighbours.
            h = h * dropout_keys.dropout(h.new_ones(len(code), h.shape[1]), self.dropout, key, salt=3)[nodes]
        parts = [part.unflatten(0, (self.most, -1)).unbind(0) for part in (self.flat.weight, self.flat.bias)]
        slots = []
        for i, (weight, bias) in enumerate(zip(*parts, strict=True)):
            live = degree[nodes] >= i + 1
            rows = all_nodes if is_mapped() else live.nonzero()[:, 0]
            if not len(rows):
                break
            slots.append(Slot(nodes[rows], torch.tanh(F.linear(h[rows], weight, bias)), live[rows]))
        return tuple(slots)


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """float32 draws from N(0, 1), a hash of the 0-d key and the element's index."""
    radius = (-2.0 * torch.log1p(-dropout_keys.uniform(dropout_keys.fold(key, 0), shape))).sqrt()
    return radius * torch.cos(2.0 * torch.pi * dropout_keys.uniform(dropout_keys.fold(key, 1), shape))


def neighbours(edges: Tensor, chosen: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of the sources of the `chosen` [E] edges into each of the `nodes`: (first [V], count [V], sources [E]).

    Node v's are sources[first[v] : first[v] + count[v]]. Edges must be sorted by target, as `gcn_norm` leaves them.
    """
    order = torch.argsort((~chosen).to(torch.int64), stable=True)
    count = torch.zeros(nodes, dtype=torch.int64, device=edges.device).scatter_add(0, edges[1], chosen.to(torch.int64))
    return count.cumsum(0) - count, count, edges[0][order]
