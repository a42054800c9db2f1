"""Subgraphs with hidden nodes, and clients that learn to generate the neighbours their own subgraph lacks (FedSage+).

Self loops and padding (edges of node 0 to itself) are never neighbours.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedweave import keys
from fedweave.families.heads import head_shape
from fedweave.federation import ClientData
from fedweave.models.sage import GraphSAGE, NeighbourGenerator, neighbours
from fedweave.protocol import Method
from fedweave.task import RowLosses
from fedweave.trees import Params, Tree

NETWORKS = ("classifier", "generator")


class Impaired(NamedTuple):
    """A subgraph some of whose nodes are hidden.

    Attributes:
        hidden: [V].
        kept: [E] edges between visible nodes.
        missing: [V] how many hidden neighbours a visible node has.
        lost: [V, S] which they are; slots beyond `missing` hold anything.
    """

    hidden: Tensor
    kept: Tensor
    missing: Tensor
    lost: Tensor


def linked(data: ClientData) -> Tensor:
    """[E] edges between different nodes."""
    return data.arrays["edges"][0] != data.arrays["edges"][1]


def impair(data: ClientData, share: float, most: int, key: Tensor) -> Impaired:
    """Hide a `share` of the validation nodes, drawn by `key`, and note up to `most` hidden neighbours per node."""
    edges, nodes = data.arrays["edges"], len(data.arrays["x"])
    rank = keys.uniform(key, data.val.shape).masked_fill(data.val < 0, 2.0).argsort(stable=True).argsort(stable=True)
    chosen = rank < (share * (data.val >= 0).sum()).floor()
    hidden = torch.zeros(nodes + 1, dtype=torch.int64, device=edges.device)
    hidden = hidden.scatter_add(0, torch.where(chosen, data.val, nodes), chosen.to(torch.int64))[:nodes] > 0
    source, target = hidden[edges[0]], hidden[edges[1]]
    first, count, sources = neighbours(edges, linked(data) & source & ~target, nodes)
    place = (first[:, None] + torch.arange(most, device=edges.device)).clamp(max=edges.shape[1] - 1)
    return Impaired(hidden, linked(data) & ~source & ~target, count, sources[place])


def bank(data: ClientData, size: int, most: int, key: Tensor) -> Tensor:
    """Features [size, most, F] of random neighbours of random nodes, with repetition; isolated nodes are never drawn."""
    edges, x = data.arrays["edges"], data.arrays["x"]
    first, count, sources = neighbours(edges, linked(data), len(x))
    connected = torch.argsort((count == 0).to(torch.int64), stable=True)
    nodes = connected[(keys.uniform(keys.fold(key, 0), (size,)) * (count > 0).sum()).floor().long()]
    offset = (keys.uniform(keys.fold(key, 1), (size, most)) * count[nodes][:, None]).floor().long()
    return x[sources[(first[nodes][:, None] + offset).clamp(max=edges.shape[1] - 1)]]


def greedy(made: Tensor, live: Tensor, target: Tensor, missing: Tensor) -> Tensor:
    """Per row, the mean over S slots of the smallest mean squared error between a generated neighbour and a true one.

    Args:
        made: [B, S, F] generated, `live` [B, S] of which exist; the others cost nothing.
        target: [B, S, F] true ones, of which the first `missing` [B] count; rows without any cost nothing.
    """
    squared = made.square().sum(-1)[..., None] + target.square().sum(-1)[:, None] - 2.0 * torch.einsum("bsf,btf->bst", made, target)
    valid = torch.arange(target.shape[1], device=target.device) < missing[:, None]
    nearest = squared.clamp(min=0).masked_fill(~valid[:, None], torch.finfo(made.dtype).max).amin(-1) / made.shape[-1]
    return torch.where(live & valid.any(1, keepdim=True), nearest, 0.0).mean(-1)


@dataclass(frozen=True, kw_only=True)
class Mending(Method):
    """Two networks per client: a GraphSAGE classifier on the mended subgraph, and the generator that mends it.

    Attributes:
        width, dropout: of both GraphSAGE networks.
        hidden_share: share of the validation nodes that is hidden then.
        most: S, generated neighbours per node at most.
        narrow, wide: hidden widths of the feature head.
        inert: leave generated neighbours without influence.
    """

    width: int = 128
    dropout: float = 0.5
    hidden_share: float = 0.5
    most: int = 5
    narrow: int = 256
    wide: int = 2048
    inert: bool = False

    bounds: ClassVar[dict] = {**dict.fromkeys(("width", "most", "narrow", "wide"), (1, None)), "dropout": (0, 0.99), "hidden_share": (0, 1)}

    @cached_property
    def networks(self) -> dict[str, nn.Module]:
        """Both networks, without parameters."""
        with torch.device("meta"):
            return {name: self.build(name) for name in NETWORKS}

    def build(self, name: str) -> nn.Module:
        """A freshly initialised network."""
        features = next(shape for shape in self.task.shapes().values() if len(shape) == 2)[0]
        if name == "classifier":
            return GraphSAGE(features, self.width, head_shape(self.task)[0], dropout=self.dropout)
        return NeighbourGenerator(features, self.width, self.most, (self.narrow, self.wide), dropout=self.dropout)

    def generate(
        self, generator: Params, data: ClientData, edges: Tensor, noise: Tensor, key: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of missing neighbours [V], their features [V, S, F], and which of those exist."""
        inputs = (data.arrays["x"], data.arrays["edges"], edges.to(self.task.dtype))
        degree, made = functional_call(self.networks["generator"], generator, inputs, {"noise": noise, "key": key})
        return degree, made, torch.arange(self.most, device=edges.device) < degree.detach().floor()[:, None]

    def mended(self, mine: Tree, data: ClientData) -> tuple[Tensor, Tensor]:
        """Features and existence of the neighbours that mend the client's subgraph; the same in every round."""
        return self.generate(mine["generator"], data, linked(data), keys.fold(mine["key"], 2), None)[1:]

    def classify(
        self, classifier: Params, data: ClientData, edges: Tensor, made: Tensor, live: Tensor, key: Tensor | None = None
    ) -> Tensor:
        """Logits of all nodes [V, C]."""
        extra = {} if self.inert else {"made": made, "live": live}
        inputs = (data.arrays["x"], data.arrays["edges"], edges.to(self.task.dtype))
        return functional_call(self.networks["classifier"], classifier, inputs, {**extra, "key": key})

    def classifier_losses(self, mine: Tree, data: ClientData) -> RowLosses:
        """Cross-entropy on the mended subgraph."""
        made, live = self.mended(mine, data)

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            logits = self.classify(part(model, "classifier"), data, linked(data), made, live, key)
            return self.task.row_loss(logits[rows], self.task.targets(data, rows))

        return losses

    def generator_losses(self, shared: Tree, own: Tree, mine: Tree, data: ClientData) -> RowLosses:
        """What is missing from the impaired subgraph, and cross-entropy on what mends it; `shared` has everybody's "bank"."""
        graph = impair(data, self.hidden_share, self.most, keys.fold(mine["key"], 1))

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            degree, made, live = self.generate(part(model, "generator"), data, graph.kept, keys.fold(key, 3), keys.fold(key, 4))
            logits = self.classify(part(model, "classifier"), data, graph.kept, made, live, keys.fold(key, 5))
            made, live, missing = made[rows], live[rows], graph.missing[rows]
            values = self.task.row_loss(logits[rows], self.task.targets(data, rows))
            values = values + F.smooth_l1_loss(degree[rows], missing.to(degree.dtype), reduction="none")
            values = values + greedy(made, live, data.arrays["x"][graph.lost[rows]], missing)
            for stock, identity in zip(shared["bank"], shared["ids"], strict=True):
                draws = (keys.uniform(keys.fold(key, 6, identity), rows.shape) * len(stock)).long()
                values = values + torch.where(identity == own["id"], 0.0, greedy(made, live, stock[draws], missing))
            return values / len(shared["bank"])

        return losses


def part(model: Params, name: str) -> Params:
    """The parameters of one network out of a joint dictionary, without their prefix."""
    return {n.removeprefix(f"{name}/"): value for n, value in model.items() if n.startswith(f"{name}/")}
