"""Controls of a collaboration graph: weights that replace those that a method learned.

A method whose server weighs clients passes its weights through `GraphControl`, so that "learning the graph helps" can
be tested: the difference from a run that is equal but for its graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.graphs.weights import complete_graph, edges_of, row_shares
from fedweave.tensors import dropout_keys, trees

LARGEST = 2**62 - 1


class RecordedGraphs(NamedTuple):
    """Graphs of one repetition, or one graph for all.

    Attributes:
        rounds: [R] the number of rounds after which each graph was recorded, ascending.
        weights: [R, L, N, N]; L = 1 where the graph is the same for every layer.
    """

    rounds: tuple[int, ...]
    weights: Tensor

    def at(self, round: int) -> Tensor:
        """The latest graph [L, N, N] that was recorded in `round` or before; the first graph, if there is none."""
        return self.weights[max([i for i, recorded_at in enumerate(self.rounds) if recorded_at <= round], default=0)]


@dataclass(frozen=True, eq=False)
class GraphControl:
    """What replaces the learned weights, in one round of one repetition.

    Attributes:
        kind: uniform, self, shuffled, stored or without.
        stored: for the kind "stored": graphs by seed; a graph with the key None is used for every seed.
        seed, round: the seed of the repetition, and the number of rounds so far.
        base, sources: for the kind "without": the control to start from, if any, and the source [N] that each client
            loses.
        asked: what a method has asked for since this was emptied: "weights", "edges".
    """

    kind: str
    stored: Mapping[int | None, RecordedGraphs] = field(default_factory=dict)
    seed: int = 0
    round: int = 0
    base: "GraphControl | None" = None
    sources: Tensor | None = None
    asked: set[str] = field(default_factory=set)

    def at(self, seed: int, round: int) -> "GraphControl":
        """The control in another round."""
        return replace(self, seed=seed, round=round)

    def weights(self, learned: Tensor, ids: Tensor, available: Tensor | None = None) -> Tensor:
        """Weights [L, P, N] of clients `ids` in place of `learned` [L, P, N].

        uniform: equal weights on all sources, the client itself included. self: the client itself alone. shuffled: each
        row keeps its self weight, and its other weights are permuted; every row, layer and round has its own
        permutation. stored: the graph of this round. without: all sources but one.

        Args:
            available: bool [N], sources that have a model; by default all. The others get no weight, and shuffled
                weights do not move to or from them.
        """
        self.asked.add("weights")
        allowed = torch.ones(learned.shape[-1], dtype=torch.bool) if available is None else available
        allowed = allowed.to(learned.device)
        sources = torch.arange(len(allowed), device=allowed.device)
        itself = ids[:, None].to(allowed.device) == sources
        if self.kind == "self":
            return itself.to(learned).expand_as(learned)
        if self.kind == "shuffled":
            return self._shuffle(learned, ids, itself, allowed)
        if self.kind == "uniform":
            return row_shares(allowed.to(learned)).expand_as(learned)
        if self.sources is not None:
            rows = learned if self.base is None else self.base.weights(learned, ids, available)
            allowed = self.sources[ids][:, None] != sources
        else:
            rows = self.graph(len(allowed)).to(learned)[:, ids]
        if bool(allowed.all()):
            return rows
        rows = row_shares(rows * allowed)
        return torch.where(rows.any(-1, keepdim=True), rows, itself.to(rows))

    def matrix(self, learned: Tensor, ids: Tensor, available: Tensor | None = None) -> Tensor:
        """`weights` of a method that has one row [P, N] for the whole model; a stored graph is averaged over layers."""
        return self.weights(learned[None], ids, available).mean(0)

    def edges(self, own: Tensor, clients: int, seed: int) -> Tensor:
        """Edges [2, E] in place of a method's `own` undirected edges: all pairs, none, or pairs with a stored weight.

        shuffled: the method's own graph with its clients permuted, so that the graph keeps its form.
        """
        self.asked.add("edges")
        if self.kind == "uniform":
            return complete_graph(clients).to(own)
        if self.kind == "self":
            return own[:, :0]
        if self.kind == "shuffled":
            draws = dropout_keys.uniform(dropout_keys.key(seed, self.seed), (clients,))
            shuffled = draws.argsort().to(own.device)[own]
            adjacency = torch.zeros(clients, clients, dtype=torch.bool, device=own.device)
            return edges_of(adjacency.index_put((shuffled[0], shuffled[1]), torch.tensor(True, device=own.device)))
        return edges_of((self.graph(clients) > 0).any(0)).to(own)

    def graph(self, clients: int) -> Tensor:
        """The stored graph [L, N, N] of this round and repetition, for the first `clients` clients.

        Clients that joined after a recorded graph have a weight on themselves alone.

        Raises:
            BadInput: no graph is stored for this repetition.
        """
        recorded = self.stored.get(self.seed, self.stored.get(None))
        if recorded is None:
            seeds = ", ".join(map(str, self.stored))
            raise BadInput(f"graph: the replayed run has no graphs of seed {self.seed}; it has those of {seeds}")
        graph = recorded.at(self.round)
        missing = clients - graph.shape[-1]
        if missing > 0:
            self_weights = torch.eye(clients).expand(len(graph), -1, -1)
            return trees.grow(graph, self_weights)
        return graph if missing == 0 else row_shares(graph[:, :clients, :clients])

    def _shuffle(self, learned: Tensor, ids: Tensor, itself: Tensor, allowed: Tensor) -> Tensor:
        others = (allowed & ~itself).expand_as(learned)
        base = dropout_keys.key(self.seed, self.round).to(ids.device)
        layers, sources = (torch.arange(n, device=ids.device) for n in (len(learned), len(allowed)))
        draws = dropout_keys.fold(base, layers[:, None, None], ids[:, None], sources) & LARGEST
        random_order = draws.masked_fill(~others, LARGEST).argsort(dim=-1, stable=True)
        places = (~others).to(torch.int8).argsort(dim=-1, stable=True)
        return torch.zeros_like(learned).scatter(-1, places, learned.gather(-1, random_order))
