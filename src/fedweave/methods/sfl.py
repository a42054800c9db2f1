"""SFL and SFL*, structural federated learning (Chen et al., IJCAI 2022, arXiv:2203.00829).

Server keeps the last model Θ [N, P] of every client and a graph A with row sums 1 (the given one with self loops, else
I plus uniform). u = γ A^L Θ + (1 − γ) Θ; u_i and g = mean of the rows of u go down (2P), θ_i comes up (P). The client
starts from g and minimises F + λ_u ‖w − u_i‖ + λ_g ‖w − g‖, norms not squared; u_i is deployed. SFL* (`learned_graph`)
starts every round with new node vectors and an `AntisymmetricGraph` S on them, fits S to the pairwise distances of Θ by
a few SGD steps (rows of both scaled to length 1), keeps the largest entries per row, scales them to sum 1, and takes A
← (1 − β) A + β S.

Deviations from dawenzi098/SFL-Structural-Federated-Learning:
1. The penalties have gradients; `detached` leaves them out, as the code does. S is fitted to distances, as published.
2. A row of S without a positive entry leaves A's row as it is; the code would shrink the model.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD, value_and_grad
from fedweave.engine.protocol import ClientState, Server, Start, Update, init_parameters
from fedweave.engine.registry import method
from fedweave.families import ClientModels
from fedweave.families.hypernetworks import draw_vectors
from fedweave.families.networks import architecture
from fedweave.families.networks.antisymmetric import AntisymmetricGraph, keep_largest
from fedweave.families.penalties import add_norm_penalties
from fedweave.families.weaving import all_ids
from fedweave.graphs.weights import relation_graph, row_shares
from fedweave.settings import Count, Epochs, LogSpace, Rate, Share, Size, Weight
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree


@method("sfl")
@dataclass(frozen=True, kw_only=True)
class SFL(ClientModels):
    """Models propagated along a graph between clients."""

    lam_u: Annotated[Weight, LogSpace(0.003, 3), "λ_u, pull towards the propagated model"] = 0.3
    lam_g: Annotated[Weight, LogSpace(0.003, 3), "λ_g, pull towards the common model"] = 0.3
    layers: Annotated[Count, "L, multiplications with A"] = 3
    gamma: Annotated[Share, "γ, share of the propagated models"] = 1.0
    learned_graph: Annotated[bool, "learn the graph, which is SFL*"] = False
    beta: Annotated[Share, "β, share of the learned graph"] = 0.05
    node_size: Annotated[Size, "length of node vectors"] = 40
    saturation: Annotated[Weight, "steepness of S"] = 3.0
    neighbours: Annotated[Size, "entries of S that are kept per row"] = 30
    fit_steps: Annotated[Epochs, "steps of SGD on S"] = 10
    fit_lr: Annotated[Rate, "learning rate of SGD on S"] = 0.01
    fit_decay: Annotated[Rate, "weight decay of SGD on S"] = 1e-4
    detached: Annotated[bool, "leave the gradients of both pulls out"] = False

    label = "SFL"
    point = "pre"

    def begin(self, start: Start) -> Tree:
        n = start.clients
        edges = relation_graph(torch.zeros(2, 0) if start.relation is None else start.relation, n).cpu()
        linked = torch.zeros(n, n, dtype=torch.bool).index_put((edges[0], edges[1]), torch.tensor(True))
        has_relation = torch.tensor(start.relation is not None)
        return {"linked": linked, "given": has_relation, "ids": start.ids.clone(), "seed": torch.tensor(start.seed)}

    def weights(self, server: Server, ids: Tensor) -> Tensor:
        return self._propagation(server)[ids].expand(len(self.task.layers), -1, -1)

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        # The common model needs all rows, so that S is fitted once.
        rows = self.mixture(server, all_ids(server["seen"]))
        common = self.mix_models(rows.mean(1, keepdim=True), server["models"])
        mixture = self.mix_models(rows[:, ids], server["models"])
        return {"common": trees.at(common, 0)}, {"mixture": mixture, "active": server["seen"][ids]}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        anchors = [] if self.detached else [(own["mixture"], self.lam_u), (shared["common"], self.lam_g)]
        fit = self.descend(
            {**shared["common"], **client}, data, loss=add_norm_penalties(self.task.objective(data), anchors)
        )
        return self.split_update(fit)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own["mixture"], **client}

    def _propagation(self, server: Server) -> Tensor:
        """γ A^L + (1 − γ) I [N, N]."""
        fixed, thetas = server["fixed"], trees.to_matrix(server["models"])
        eye = torch.eye(len(thetas), dtype=thetas.dtype, device=thetas.device)
        a = row_shares(torch.where(fixed["given"], fixed["linked"].to(eye), 1.0 / len(eye)) + eye)
        if self.learned_graph:
            s = self._fit_graph(thetas, fixed, server["round"])
            a = torch.where(s.any(1, keepdim=True), (1 - self.beta) * a + self.beta * row_shares(s), a)
        return self.gamma * torch.linalg.matrix_power(a, self.layers) + (1 - self.gamma) * eye

    def _fit_graph(self, thetas: Tensor, fixed: Tree, round: Tensor) -> Tensor:
        """S [N, N], sparse."""
        target = F.normalize(torch.cdist(thetas, thetas))
        seeds = [int(dropout_keys.fold(fixed["seed"], round, i) & (2**62 - 1)) for i in range(3)]
        ids, like = fixed["ids"].cpu(), thetas.new_empty(0, device="cpu")
        first, second = (draw_vectors(seed, ids, self.node_size, like) for seed in seeds[:2])
        network = architecture(AntisymmetricGraph, len(ids), self.node_size, saturation=self.saturation)
        solver = SGD(lr=self.fit_lr, weight_decay=self.fit_decay)
        initial = {**init_parameters(network, seeds[2], thetas.dtype), "first": first, "second": second}
        params = trees.tree_map(lambda t: t.to(thetas), initial)
        for _ in range(self.fit_steps):
            grads = value_and_grad(lambda p: (F.mse_loss(F.normalize(network.run(p)), target), {}), params)[2]
            params, _ = solver.step(params, grads, {})
        return keep_largest(network.run(params), self.neighbours).detach()
