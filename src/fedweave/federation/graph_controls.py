"""Controls of a collaboration graph: weights in place of those that a method learned.

A method whose server weighs clients passes its weights through `GraphControl`, so that "learning the graph helps" can
be tested: the difference from a run that is equal but for its graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.federation.collaboration import complete_graph, edges_of, row_shares
from fedweave.tensors import dropout_keys, trees

LARGEST = 2**62 - 1


class RecordedGraphs(NamedTuple):
    """Graphs of one repetition, or one graph for all.

    Attributes:
        rounds: [R] after how many rounds each was made, ascending.
        weights: [R, L, N, N]; L = 1 where the graph is the same for every layer.
    """

    rounds: tuple[int, ...]
    weights: Tensor

    def at(self, round: int) -> Tensor:
        """The last graph [L, N, N] that is not after `round`, or the first one."""
        return self.weights[max([i for i, made in enumerate(self.rounds) if made <= round], default=0)]


@dataclass(frozen=True, eq=False)
class GraphControl:
    """What takes the place of learned weights, in one round of one repetition.

    Attributes:
        kind: uniform, self, shuffled, stored or without.
        stored: graphs by seed, of the kind "stored"; one under the seed None stands for every seed.
        seed, round: of the repetition, and rounds done so far.
        base, sources: of the kind "without": the control, if any, whose weights lose one source per client, [N].
    """

    kind: str
    stored: Mapping[int | None, RecordedGraphs] = field(default_factory=dict)
    seed: int = 0
    round: int = 0
    base: "GraphControl | None" = None
    sources: Tensor | None = None

    def at(self, seed: int, round: int) -> "GraphControl":
        """The control in another round."""
        return replace(self, seed=seed, round=round)

    def weights(self, learned: Tensor, ids: Tensor, available: Tensor | None = None) -> Tensor:
        """Weights [L, P, N] of clients `ids` in place of `learned` [L, P, N].

        uniform: every source alike, oneself included. self: oneself alone. shuffled: each row keeps its weights and
        its self weight, and its other sources change places; every row, layer and round has a permutation of its own.
        stored: the graph of this round.

        Args:
            available: [N] sources that have a model; by default all. The others get no weight, and shuffled weights do
                not move to or from them.
        """
        free = torch.ones(learned.shape[-1], dtype=torch.bool) if available is None else available
        free = free.to(learned.device)
        places = torch.arange(len(free), device=free.device)
        itself = ids[:, None].to(free.device) == places
        if self.kind == "self":
            return itself.to(learned).expand_as(learned)
        if self.kind == "shuffled":
            return self._shuffle(learned, ids, itself, free)
        if self.kind == "uniform":
            return row_shares(free.to(learned)).expand_as(learned)
        if self.sources is not None:
            rows = learned if self.base is None else self.base.weights(learned, ids, available)
            free = self.sources[ids][:, None] != places
        else:
            rows = self.graph(len(free)).to(learned)[:, ids]
        if bool(free.all()):
            return rows
        rows = row_shares(rows * free)
        return torch.where(rows.any(-1, keepdim=True), rows, itself.to(rows))

    def matrix(self, learned: Tensor, ids: Tensor, available: Tensor | None = None) -> Tensor:
        """`weights` of a method that has one row [P, N] for the whole model; a stored graph is averaged over layers."""
        return self.weights(learned[None], ids, available).mean(0)

    def edges(self, own: Tensor, clients: int, seed: int) -> Tensor:
        """Edges [2, E] in place of a method's `own` undirected edges: all pairs, none, or pairs with a stored weight.

        shuffled: the clients change places in the method's own graph, so that it keeps its form.
        """
        if self.kind == "uniform":
            return complete_graph(clients).to(own)
        if self.kind == "self":
            return own[:, :0]
        if self.kind == "shuffled":
            draws = dropout_keys.uniform(dropout_keys.key(seed, self.seed), (clients,))
            moved = draws.argsort().to(own.device)[own]
            linked = torch.zeros(clients, clients, dtype=torch.bool, device=own.device)
            return edges_of(linked.index_put((moved[0], moved[1]), torch.tensor(True, device=own.device)))
        return edges_of((self.graph(clients) > 0).any(0)).to(own)

    def graph(self, clients: int) -> Tensor:
        """The stored graph [L, N, N] of this round and repetition, for the first `clients` clients.

        Clients that a recorded graph does not have yet weigh themselves alone.

        Raises:
            BadInput: nothing is stored for this repetition.
        """
        recorded = self.stored.get(self.seed, self.stored.get(None))
        if recorded is None:
            seeds = ", ".join(map(str, self.stored))
            raise BadInput(f"graph: the replayed run has no graphs of seed {self.seed}; it has those of {seeds}")
        graph = recorded.at(self.round)
        missing = clients - graph.shape[-1]
        if missing > 0:
            alone = torch.eye(clients).expand(len(graph), -1, -1)
            return trees.grow(graph, alone)
        return graph if missing == 0 else row_shares(graph[:, :clients, :clients])

    def _shuffle(self, learned: Tensor, ids: Tensor, itself: Tensor, free: Tensor) -> Tensor:
        others = (free & ~itself).expand_as(learned)
        base = dropout_keys.key(self.seed, self.round).to(ids.device)
        places = [torch.arange(n, device=ids.device) for n in (len(learned), len(free))]
        draws = dropout_keys.fold(base, places[0][:, None, None], ids[:, None], places[1]) & LARGEST
        drawn = draws.masked_fill(~others, LARGEST).argsort(dim=-1, stable=True)
        slots = (~others).to(torch.int8).argsort(dim=-1, stable=True)
        return torch.zeros_like(learned).scatter(-1, slots, learned.gather(-1, drawn))
