"""FedAux, differentiable auxiliary projections (Zhuo et al., NeurIPS 2025, arXiv:2505.23864).

A client trains its model together with a vector a [D]. With h_v the features of node v and s_v = cos(h_v, a), z_v = Σ_u
κ_vu h_u / Σ_u κ_vu over all nodes u of the client, κ_vu = exp(−(s_v − s_u)² / σ²), and the classifier reads (h_v, z_v).
Server keeps every client's last model θ_j and a_j. θ̄_i = Σ_j S_ij θ_j with S_ij ∝ exp(τ cos(a_i, a_j)) goes down, with
a mixed alike, and what was trained comes up (2P + 2D + 2CD).

Deviations from JhuoW/FedAux:
1. The classifier on (h_v, z_v) is the model's head on h_v plus a linear map U of z_v, each initialised as a layer of
   width D.
2. A client is compared with the latest vectors of all clients, not with those of this round's participants only.
3. The masks of `fedpub_aux` there, which are not part of the paper, are left out.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import NodeClassification, RowLosses
from fedweave.engine.protocol import ClientState, Server, Start, Update, init_parameters
from fedweave.engine.registry import method
from fedweave.families import ClientModels
from fedweave.families.heads import classify, head_shape
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import cosines
from fedweave.settings import AtLeast, LogSpace, Weight
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree

VECTOR, MAP = AUXILIARY = ("aux/vector", "aux/map")


@method("fedaux")
@dataclass(frozen=True, kw_only=True)
class FedAux(ClientModels):
    """Mixtures by the similarity of vectors along which clients order their nodes."""

    task: NodeClassification
    tau: Annotated[Weight, LogSpace(1, 30), "τ, sharpness of the similarity"] = 10.0
    sigma: Annotated[float, AtLeast(1e-3), LogSpace(0.1, 10), "σ, width of the kernel between nodes"] = 10.0

    label = "FedAux"
    needs = frozenset({"subgraphs"})
    parameters = ("model", "aux")

    def begin(self, start: Start) -> Tree:
        classes, width = head_shape(self.task)
        dense = init_parameters(lambda: nn.Linear(width, classes, bias=False), start.seed, self.task.dtype)["weight"]
        vector = dropout_keys.uniform(dropout_keys.key(start.seed), (width,)).to(dense)
        return trees.build_table({VECTOR: vector, MAP: dense}, start.clients)

    def remember(self, fixed: Tree, ids: Tensor, uploads: Tree, weights: Tensor) -> Tree:
        return trees.put(fixed, ids, uploads["aux"])

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        similarity = self.tau * cosines(server["fixed"][VECTOR])[ids]
        shares = similarity.masked_fill(~usable_sources(server["seen"]), -torch.inf).softmax(-1)
        return shares.expand(len(self.task.layers), -1, -1)

    def extra_downloads(self, server: Server, weights: Tensor, ids: Tensor) -> tuple[Tree, Tree]:
        return {}, {"aux": trees.mix_rows(server["fixed"], weights[-1])}

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return {}, {**own["mixture"], **own["aux"]}

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        return trees.nbytes(trees.select(own, ("mixture", "aux"))), trees.nbytes(uploads)

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        loss = self.task.objective(data, self._losses(data))
        fit = self.descend(model, data, (*self.task.params, *AUXILIARY), loss=loss)
        upload = {
            "model": trees.omit(fit.model, (*AUXILIARY, *self.local_names)),
            "aux": trees.select(fit.model, AUXILIARY),
        }
        return Update(upload, trees.select(fit.model, self.local_names), fit.model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own["mixture"], **own["aux"], **client}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return self._logits(model, data, rows.clamp(min=0))

    def _losses(self, data: ClientData) -> RowLosses:
        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            return self.task.row_loss(self._logits(model, data, rows, key), self.task.targets(data, rows))

        return losses

    def _logits(self, model: Params, data: ClientData, rows: Tensor, key: Tensor | None = None) -> Tensor:
        """Logits [B, C] of the nodes `rows` [B]; the kernel is between them and all nodes of the client."""
        plain, inputs = trees.omit(model, AUXILIARY), self.task.inputs(data)
        h = self.task.call(plain, inputs, "features", key=key)
        score = F.cosine_similarity(h, model[VECTOR][None], dim=-1)
        kernel = torch.exp(-(score[rows][:, None] - score).square() / self.sigma**2) * data.arrays["nodes"].to(h)
        z = kernel @ h / kernel.sum(1, keepdim=True)
        return classify(self.task, plain, h[rows]) + z @ model[MAP].T
