"""FED-PUB, personalized subgraph federated learning (Baek et al., ICML 2023, arXiv:2206.10206).

Server keeps the last model θ_j and functional embedding e_j of every client: the mean output of the last graph layer on
one random graph that the server made (blocks of nodes, features N(0, 1)). θ̄_i = Σ_j S_ij θ_j with S_ij ∝ exp(τ
cos(e_i, e_j)) goes down, θ_i and e_i come up (2P + D, and the random graph once). A mask m per weight matrix stays with
the client: W ⊙ m is used, entries |m| < λ1 count as 0 outside training. Loss: CE + λ1 ‖m‖₁ + λ2 Σ ‖w − θ̄_i‖, with one
norm per tensor. The last term is left out in round 0.

Deviations from JinheonBaek/FED-PUB:
1. Both regularisers have gradients, and the initial model is that of all methods; the code is `detached`, `xavier`.
2. Adam's moments start afresh every round, unless `train.client_optimizer` is kept, as in the code.
3. Similarities are to all latest embeddings, not to this round's. Masks do not decay: W ⊙ m would end at 0.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD, Adam, GroupedSolver, Loss, TwoGroups
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import ClientModels
from fedweave.families.embeddings import embed_blocks, random_blocks
from fedweave.families.heads import draw_xavier_head
from fedweave.families.weaving import usable_sources
from fedweave.graphs.weights import cosines
from fedweave.settings import AtLeast, LogSpace, Share, Size, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("fedpub")
@dataclass(frozen=True, kw_only=True)
class FedPub(ClientModels):
    """Mixtures by functional similarity, and personal sparse masks."""

    solver: SGD | Adam
    tau: Annotated[Weight, LogSpace(1, 30), "τ, sharpness of the similarity"] = 10.0
    lam1: Annotated[Weight, "λ1, sparsity of masks and their threshold"] = 1e-3
    lam2: Annotated[Weight, "λ2, pull of every tensor towards the received one"] = 1e-3
    blocks: Annotated[Size, "blocks of the random graph"] = 5
    block_size: Annotated[int, AtLeast(2), "nodes of a block"] = 100
    density: Annotated[Share, "share of a block's possible edges that the random graph has"] = 0.1
    detached: Annotated[bool, "leave the regularisers' gradients out"] = False
    xavier: Annotated[bool, "draw the classifier's first values by Xavier's law"] = False

    label = "FED-PUB"
    needs = frozenset({"subgraphs"})
    embeds = True

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the weight matrices, each of which has a mask."""
        return tuple(name for name, shape in self.task.shapes().items() if len(shape) == 2)

    def init(self, start: Start) -> Server:
        return super().init(draw_xavier_head(self.task, start) if self.xavier else start)

    def begin(self, start: Start) -> Tree:
        like = start.model[self.matrices[0]]
        proxy = random_blocks(start.seed, self.blocks, self.block_size, self.density, len(like), like.dtype)
        width = len(embed_blocks(self.task, start.model, trees.tree_map(lambda t: t.to(like.device), proxy)))
        return {"proxy": proxy, "embeddings": proxy["x"].new_zeros(start.clients, width)}

    def remember(self, fixed: Tree, ids: Tensor, uploads: Tree, weights: Tensor) -> Tree:
        return {**fixed, "embeddings": fixed["embeddings"].index_copy(0, ids, uploads["embedding"])}

    def extra_downloads(self, server: Server, weights: Tensor, ids: Tensor) -> tuple[Tree, Tree]:
        return {"proxy": server["fixed"]["proxy"]}, {}

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        # A client without an embedding is equally similar to all clients.
        similarity = self.tau * cosines(server["fixed"]["embeddings"])[ids]
        similarity = similarity.masked_fill(~usable_sources(server["seen"]), -torch.inf)
        return similarity.softmax(-1).expand(len(self.task.layers), -1, -1)

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        new_clients = participants - int(own["active"].sum())
        return trees.nbytes(own["mixture"]) + new_clients * trees.nbytes(shared["proxy"]), trees.nbytes(uploads)

    def join(self, model: Params) -> ClientState:
        masks = {f"mask/{name}": torch.ones_like(model[name]) for name in self.matrices}
        return {"buffers": trees.select(model, self.local_names), "masks": masks}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        names, loss = (*self.task.params, *client["masks"]), self._loss(own["mixture"], data)
        rules = {"": self.solver, "mask": replace(self.solver, weight_decay=0.0)}
        solver = GroupedSolver(solvers=rules, group=TwoGroups(tuple(client["masks"]), "mask", ""))
        start = {**own["mixture"], **client["buffers"], **client["masks"]}
        fit = self.descend(start, data, names, loss=loss, solver=solver)
        model, masks = trees.omit(fit.model, client["masks"]), trees.select(fit.model, client["masks"])
        deployed = self._prune(model, masks)
        embedding = embed_blocks(self.task, deployed, shared["proxy"])
        upload = {"model": trees.omit(model, self.local_names), "embedding": embedding}
        return Update(upload, {"buffers": trees.select(model, self.local_names), "masks": masks}, deployed, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self._prune({**own["mixture"], **client["buffers"]}, client["masks"])

    def _prune(self, model: Params, masks: Params) -> Params:
        pruned = {name.removeprefix("mask/"): m * (m.abs() >= self.lam1) for name, m in masks.items()}
        return {**model, **{name: model[name] * m for name, m in pruned.items()}}

    def _loss(self, anchor: Params, data: ClientData) -> Loss:
        objective, lam2 = self.task.objective(data), self.lam2 if data.round else 0.0

        def loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            masks = {name: model[f"mask/{name}"] for name in self.matrices}
            plain = trees.select(model, (*self.task.params, *self.local_names))
            value, buffers = objective({**plain, **{name: plain[name] * m for name, m in masks.items()}}, rows, key)
            if self.detached:
                return value, buffers
            sparsity = sum(m.abs().sum() for m in masks.values())
            distance = sum((plain[name] - a).norm() for name, a in anchor.items())
            return value + self.lam1 * sparsity + lam2 * distance, buffers

        return loss
