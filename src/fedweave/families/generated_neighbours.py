"""Subgraphs with hidden nodes, and clients that learn to generate the neighbours their own subgraph lacks (FedSage+).

Self loops and padding (edges of node 0 to itself) are never neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.functional import invoke
from fedweave.client.task import NodeClassification, RowLosses
from fedweave.engine.protocol import Method
from fedweave.families.heads import head_shape
from fedweave.models.sage import GraphSAGE, NeighbourGenerator, Slot, neighbours
from fedweave.settings import Dropout, Share, Size
from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import Params, Tree, is_mapped

NETWORKS = ("classifier", "generator")


class ImpairedSubgraph(NamedTuple):
    """A subgraph with hidden nodes.

    Attributes:
        hidden: [V].
        edges: [E] the edges between visible nodes.
        missing: [V] number of hidden neighbours of a visible node.
        hidden_neighbours: [V, S] the hidden neighbours; slots after the first `missing` ones have no meaning.
    """

    hidden: Tensor
    edges: Tensor
    missing: Tensor
    hidden_neighbours: Tensor


def non_loop_edges(data: ClientData) -> Tensor:
    """[E] edges between different nodes."""
    return data.arrays["edges"][0] != data.arrays["edges"][1]


def impair(data: ClientData, share: float, most: int, key: Tensor) -> ImpairedSubgraph:
    """Hide a `share` of the validation nodes, drawn by `key`, and record up to `most` hidden neighbours per node."""
    edges, nodes = data.arrays["edges"], len(data.arrays["x"])
    rank = (
        dropout_keys.uniform(key, data.val.shape)
        .masked_fill(data.val < 0, 2.0)
        .argsort(stable=True)
        .argsort(stable=True)
    )
    is_hidden = rank < (share * (data.val >= 0).sum()).floor()
    hidden = torch.zeros(nodes + 1, dtype=torch.int64, device=edges.device)
    hidden = hidden.scatter_add(0, torch.where(is_hidden, data.val, nodes), is_hidden.to(torch.int64))[:nodes] > 0
    source, target = hidden[edges[0]], hidden[edges[1]]
    first, count, sources = neighbours(edges, non_loop_edges(data) & source & ~target, nodes)
    slots = (first[:, None] + torch.arange(most, device=edges.device)).clamp(max=edges.shape[1] - 1)
    return ImpairedSubgraph(hidden, non_loop_edges(data) & ~source & ~target, count, sources[slots])


def draw_bank(data: ClientData, size: int, most: int, key: Tensor) -> Tensor:
    """Features [size, most, F] of random neighbours of random nodes, with repetition; never of isolated nodes."""
    edges, x = data.arrays["edges"], data.arrays["x"]
    first, count, sources = neighbours(edges, non_loop_edges(data), len(x))
    connected_first = torch.argsort((count == 0).to(torch.int64), stable=True)
    nodes = connected_first[
        (dropout_keys.uniform(dropout_keys.fold(key, 0), (size,)) * (count > 0).sum()).floor().long()
    ]
    offset = (dropout_keys.uniform(dropout_keys.fold(key, 1), (size, most)) * count[nodes][:, None]).floor().long()
    return x[sources[(first[nodes][:, None] + offset).clamp(max=edges.shape[1] - 1)]]


def draw_neighbours(key: Tensor, identities: Tensor, bank: Tensor, nodes: int) -> Tensor:
    """For every node, one random neighbour from each client's part of `bank` [N, size, T, F].

    Returns rows of bank.flatten(0, 2), [V, N, T].
    """
    n, size, t, _ = bank.shape
    draws = torch.stack(
        [
            (dropout_keys.uniform(dropout_keys.fold(key, 6, identity), (nodes,)) * size).long()
            for identity in identities
        ],
        1,
    )
    first_slots = (torch.arange(n, device=bank.device) * size + draws) * t
    return first_slots[..., None] + torch.arange(t, device=bank.device)


class Features(NamedTuple):
    """Features of true neighbours.

    Attributes:
        table: [R, F].
        lengths: [R] their squared lengths.
    """

    table: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, parts: Tensor) -> "Features":
        """The rows of `parts` [N, ..., F], measured part by part, because the parts of all clients are large."""
        return cls(parts.flatten(0, -2), torch.cat([part.square().sum(-1).flatten() for part in parts]))


def greedy_costs(slots: Sequence[Slot], true: Features, rows: Tensor, missing: Tensor) -> Tensor:
    """Per node, the sum over its generated neighbours of the smallest mean squared error to a true one: [V, M].

    Args:
        slots: generated neighbours.
        true, rows: R rows, and [V, M, T]; they have M choices of T true neighbours for every node.
        missing: [V] how many of a node's T neighbours count; a node without any costs nothing.
    """
    (table, lengths), costs = true, true.table.new_zeros(rows.shape[:2])
    is_true = torch.arange(rows.shape[-1], device=table.device) < missing[:, None]
    for nodes, features, live in slots:
        true_rows = rows[nodes]
        squared = (
            features.square().sum(-1)[:, None, None]
            + lengths[true_rows]
            - 2.0 * _dot_products(features, table, true_rows.flatten(1)).view_as(true_rows)
        )
        is_counted = is_true[nodes][:, None]
        nearest = (
            squared.clamp(min=0).masked_fill(~is_counted, torch.finfo(features.dtype).max).amin(-1) / features.shape[-1]
        )
        costs = costs.index_add(0, nodes, torch.where(live[:, None] & is_counted.any(-1), nearest, 0.0))
    return costs


def _dot_products(features: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Products [L, K] of the rows of `features` [L, F] with the rows table[rows], for `rows` [L, K]."""
    return (features @ table.T).gather(1, rows) if is_mapped() else _DotProducts.apply(features, table, rows)


class _DotProducts(torch.autograd.Function):
    """`_dot_products` without a copy of the rows: an embedding bag's derivative by a row's weight is their product.

    There is no gradient in `table`.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(table, rows)
        bag = torch.arange(len(rows), device=rows.device)
        owner, start = bag.repeat_interleave(rows.shape[1]), bag * rows.shape[1]
        return torch.ops.aten._embedding_bag_per_sample_weights_backward(
            features, table, rows.flatten(), start, owner, 0
        ).view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        table, rows = ctx.saved_tensors
        return F.embedding_bag(rows, table, mode="sum", per_sample_weights=grad.contiguous()), None, None


@dataclass(frozen=True, kw_only=True)
class GeneratedNeighbours(Method):
    """Two networks per client: a GraphSAGE classifier on the mended subgraph, and the generator of its neighbours."""

    task: NodeClassification

    width: Annotated[Size, "hidden width of both GraphSAGE networks"] = 128
    dropout: Annotated[Dropout, "dropout of both GraphSAGE networks"] = 0.5
    hidden_share: Annotated[Share, "share of the validation nodes that generators learn to restore"] = 0.5
    most: Annotated[Size, "S, generated neighbours per node at most"] = 5
    narrow: Annotated[Size, "first hidden width of the feature head"] = 256
    wide: Annotated[Size, "second hidden width of the feature head"] = 2048
    inert: Annotated[bool, "generated neighbours have no effect"] = False

    @property
    def needs_validation(self) -> str:
        return "" if not self.hidden_share else "of which some are hidden from generators; set hidden_share: 0"

    @cached_property
    def networks(self) -> dict[str, nn.Module]:
        """Both networks, without parameters."""
        with torch.device("meta"):
            return {name: self.build(name) for name in NETWORKS}

    @property
    def network(self) -> nn.Module:
        return nn.ModuleDict(self.networks)

    def build(self, name: str) -> nn.Module:
        """A freshly initialised network."""
        features = next(shape for shape in self.task.shapes().values() if len(shape) == 2)[0]
        if name == "classifier":
            return GraphSAGE(features, self.width, head_shape(self.task)[0], dropout=self.dropout)
        return NeighbourGenerator(features, self.width, self.most, (self.narrow, self.wide), dropout=self.dropout)

    def generate(
        self, generator: Params, data: ClientData, edges: Tensor, noise: Tensor, key: Tensor | None
    ) -> tuple[Tensor, tuple[Slot, ...]]:
        """Predicted numbers of missing neighbours [V], and these neighbours."""
        x, places, _ = self.task.inputs(data)
        return invoke(
            self.networks["generator"], generator, "forward", x, places, edges.to(self.task.dtype), noise=noise, key=key
        )

    def added_neighbours(self, state: Tree, data: ClientData) -> tuple[Slot, ...]:
        """The neighbours that are added to the client's subgraph to mend it; the same in every round."""
        return self.generate(state["generator"], data, non_loop_edges(data), dropout_keys.fold(state["key"], 2), None)[
            1
        ]

    def classify(
        self, classifier: Params, data: ClientData, edges: Tensor, slots: Sequence[Slot], key: Tensor | None = None
    ) -> Tensor:
        """Logits of all nodes [V, C]."""
        x, places, _ = self.task.inputs(data)
        slots = () if self.inert else slots
        return invoke(
            self.networks["classifier"],
            classifier,
            "forward",
            x,
            places,
            edges.to(self.task.dtype),
            slots=slots,
            key=key,
        )

    def classifier_losses(self, state: Tree, data: ClientData) -> RowLosses:
        """Cross-entropy on the mended subgraph."""
        slots = self.added_neighbours(state, data)

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            logits = self.classify(select_network(model, "classifier"), data, non_loop_edges(data), slots, key)
            return self.task.row_loss(logits[rows], self.task.targets(data, rows))

        return losses

    def generator_losses(self, shared: Tree, own: Tree, state: Tree, data: ClientData) -> RowLosses:
        """Errors of the generated neighbours of the impaired subgraph, and cross-entropy with these neighbours.

        `shared` has the "bank" of all clients.
        """
        graph, bank = impair(data, self.hidden_share, self.most, dropout_keys.fold(state["key"], 1)), shared["bank"]
        own_features, others = Features.of(data.arrays["x"][None]), Features.of(bank)

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            degree, slots = self.generate(
                select_network(model, "generator"),
                data,
                graph.edges,
                dropout_keys.fold(key, 3),
                dropout_keys.fold(key, 4),
            )
            logits = self.classify(
                select_network(model, "classifier"), data, graph.edges, slots, dropout_keys.fold(key, 5)
            )
            values = self.task.row_loss(logits[rows], self.task.targets(data, rows))
            values = values + F.smooth_l1_loss(degree[rows], graph.missing[rows].to(degree.dtype), reduction="none")
            errors = greedy_costs(slots, own_features, graph.hidden_neighbours[:, None], graph.missing)[:, 0]
            other_errors = greedy_costs(
                slots, others, draw_neighbours(key, shared["ids"], bank, len(graph.missing)), graph.missing
            )
            errors = errors + torch.where(shared["ids"] == own["id"], 0.0, other_errors).sum(1)
            return (values + errors[rows] / self.most) / len(bank)

        return losses


def select_network(model: Params, name: str) -> Params:
    """The parameters of one network out of a joint dictionary, without their prefix."""
    return {n.removeprefix(f"{name}/"): value for n, value in model.items() if n.startswith(f"{name}/")}
