"""FedGTA, topology-aware averaging (Li et al., VLDB 2024, arXiv:2401.11755).

Server keeps the last model θ_j of every client, the moments M_j of its labels and its confidence H_j. θ̄_i = Σ H_j θ_j /
Σ H_j over the clients with cos(M_i, M_j) > ε goes down, θ_i, M_i and H_i come up (2P + |M| + 1). For them the client
propagates labels for k steps, Y ← α Â Y + (1 − α) Y⁰ and Y ← Y + Y⁰ at training nodes; Y⁰ is the model's softmax, and
one-hot at training nodes. M has the moments of order 1 to K of softmax(Y), per class over the client's nodes: means of
powers, and of powers of the deviation from the mean ("hybrid"). H = Σ_v deg(v) Σ_c (1/e + p_vc log p_vc), p =
softmax(Y / T). Training nodes keep their one-hot labels in both.

Deviations from xkLi-Allen/FedGTA:
1. Moments are compared with every client's latest ones, not with this round's participants only. A client without any
   gets the mixture of all.
2. A client always counts for itself; with ε = 1 there, nobody would.
"""

from dataclasses import dataclass
from math import exp
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.task import NodeClassification
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import ClientModels
from fedweave.families.generated_neighbours import non_loop_edges
from fedweave.families.heads import head_shape
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import cosines, row_shares
from fedweave.models.gcn import propagate
from fedweave.settings import AtLeast, Between, Count, IntegerSpace, LinearSpace, Share
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("fedgta")
@dataclass(frozen=True, kw_only=True)
class FedGTA(ClientModels):
    """Mixtures of the models whose labels spread alike, by the smoothness of these labels."""

    task: NodeClassification
    threshold: Annotated[float, Between(-1, 1), LinearSpace(0.3, 0.99), "ε, similarity above which models mix"] = 0.5
    orders: Annotated[int, Between(1, 50), IntegerSpace(2, 20), "K, highest order of a moment"] = 6
    moments: Annotated[Literal["hybrid", "raw", "central"], "which moments; hybrid: both"] = "hybrid"
    steps: Annotated[Count, "k, steps of the propagation"] = 5
    alpha: Annotated[Share, "α, share of the neighbours' labels in a step"] = 0.5
    temperature: Annotated[float, AtLeast(1e-3), "T, of the labels of the confidence"] = 20.0

    label = "FedGTA"
    point = "pre"
    needs = frozenset({"subgraphs"})

    def begin(self, start: Start) -> Tree:
        size = (2 if self.moments == "hybrid" else 1) * self.orders * head_shape(self.task)[0]
        like = next(iter(start.model.values()))
        return {"moments": like.new_zeros(start.clients, size), "confidence": like.new_zeros(start.clients)}

    def remember(self, fixed: Tree, ids: Tensor, uploads: Tree, weights: Tensor) -> Tree:
        return {name: table.index_copy(0, ids, uploads[name]) for name, table in fixed.items()}

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        is_similar = cosines(server["fixed"]["moments"]) > self.threshold
        itself = torch.eye(len(is_similar), dtype=torch.bool, device=is_similar.device)
        partners = (is_similar | ~server["seen"][:, None] | itself)[ids]
        # Noise may make a confidence negative, and a subgraph without edges has none: it still counts for itself.
        shares = row_shares(partners * usable_sources(server["seen"]) * server["fixed"]["confidence"].clamp(min=1e-9))
        return shares.expand(len(self.task.layers), -1, -1)

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        return trees.nbytes(own["mixture"]), trees.nbytes(uploads)

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        fit = self.descend(self.personalize(shared, own, client, data), data)
        moments, confidence = self.statistics_of(fit.model, data)
        return self.split_update(fit, moments=moments, confidence=confidence)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own["mixture"], **client}

    def statistics_of(self, model: Params, data: ClientData) -> tuple[Tensor, Tensor]:
        """M [orders · C, or twice as many] and H [] of a client whose model is `model`."""
        x, edges, weight = self.task.inputs(data)
        with torch.no_grad():
            probabilities = self.task.call(model, (x, edges, weight)).softmax(-1)
        training, is_node = self._training_nodes(data), data.arrays["nodes"].to(probabilities)
        classes = torch.arange(probabilities.shape[1], device=probabilities.device)
        labels = (data.arrays["y"][:, None] == classes).to(probabilities)
        y0 = y = torch.where(training, labels, probabilities)
        for _ in range(self.steps):
            y = self.alpha * propagate(y, edges, weight) + (1 - self.alpha) * y0
            y = torch.where(training, y + y0, y)
        sharp, flat = (torch.where(training, labels, (y / t).softmax(-1)) for t in (1.0, self.temperature))
        degree = propagate(is_node[:, None], edges, non_loop_edges(data).to(probabilities))[:, 0]
        smoothness = (exp(-1) - torch.special.entr(flat)).sum(-1)
        return self._moments(sharp, is_node), (degree * smoothness * is_node).sum()

    def _moments(self, labels: Tensor, is_node: Tensor) -> Tensor:
        """Moments [orders · C, or twice as many] of labels [V, C] over the nodes that are `is_node` [V]."""

        def mean(values: Tensor) -> Tensor:
            return (values * is_node[:, None]).sum(0) / is_node.sum()

        orders = range(1, self.orders + 1)
        raw, central = ([mean(x**p) for p in orders] for x in (labels, labels - mean(labels)))
        selection = {"raw": raw, "central": central, "hybrid": [*raw, *central]}[self.moments]
        return torch.cat(selection)

    def _training_nodes(self, data: ClientData) -> Tensor:
        """Boolean [V, 1]."""
        nodes = len(data.arrays["y"])
        position = torch.where(data.train >= 0, data.train, nodes)
        counts = torch.zeros(nodes + 1, dtype=torch.int64, device=position.device)
        return counts.scatter_add(0, position, torch.ones_like(position))[:nodes, None] > 0
