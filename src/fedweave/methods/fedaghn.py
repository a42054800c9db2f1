"""FedAGHN (layer-wise attentive graph hypernetworks, Song et al., 2025, arXiv:2501.16379).

Server keeps the last model θ_j and the last update Δθ_j of every client, and per client i and layer two scalars p, q:
α_ii = p / (1 + p), α_ij = softmax_{j≠i}(q cos(Δθ_i, Δθ_j)) / (1 + p), θ̄_i = Σ_j α_ij θ_j, layer by layer (weight and
bias are one layer, every BatchNorm is its own). θ̄_i goes down, θ_i comes up (2P); p and q never leave the server.

Deviations:
1. "literal" is the default sign: paper and code (songjiarui00/FedAGHN) print p ← p − η ⟨∂θ̄/∂p, Δθ⟩ with Δθ = θ − θ̄,
   which raises the surrogate loss and lowers p, and the paper's weights fall as this rule makes them fall.
2. T rounds; the code's loop runs T + 1.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.solvers import SGD, GroupedSolver, Solver
from fedweave.engine.protocol import Server, Start
from fedweave.engine.registry import method
from fedweave.families import GeneratedModels, SplitClient
from fedweave.families.mixtures import available_sources, mask_newcomers, newcomer_mask, update_newcomer_mask
from fedweave.families.weaving import Weaving, all_ids, split_ids
from fedweave.graphs.weights import layer_cosine_rows, layer_cosines
from fedweave.settings import Choices, Rate, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

Role = Literal["trained", "frozen", "absent"]


@method("fedaghn")
@dataclass(frozen=True, kw_only=True)
class FedAGHN(Weaving, SplitClient, GeneratedModels):
    """Layer-wise attention over the clients' updates, with a learned self weight and a learned sharpness."""

    server_sign: Literal["descent", "literal"] = "literal"
    server_lr: Annotated[Rate, "η, step size of plain gradient descent on p and q"] = 0.005
    p0: Annotated[Weight, Choices((0.02, 0.03, 0.06)), "start value of p"] = 0.03
    q0: Annotated[Weight, Choices((0.1, 0.2, 0.5, 1.0, 3.0, 10.0)), "start value of q"] = 0.5
    p: Annotated[Role, "self weight; absent: the softmax runs over all clients"] = "trained"
    q: Annotated[Role, "sharpness; absent: 1 throughout"] = "trained"
    tied: Annotated[bool, "one p and one q per client instead of one per layer"] = False

    label = "FedAGHN"
    mixes = True
    rowwise = True

    @property
    def server_solver(self) -> Solver:
        roles = {"p": self.p, "q": self.q}
        return GroupedSolver(
            solvers={name: SGD(lr=self.server_lr if role == "trained" else 0.0) for name, role in roles.items()}
        )

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        model = trees.omit(start.model, self.local_names)
        table = next(iter(model.values())).new_ones(start.clients, 1 if self.tied else len(self.task.layers))
        phi = {"p": self.p0 * table, "q": table if self.q == "absent" else self.q0 * table}
        # One common update for all: every cosine is 1, so the first mixture is uniform over the others.
        updates = trees.build_table(trees.tree_map(torch.ones_like, model), start.clients)
        return phi, self._state(trees.build_table(model, start.clients), updates)

    def values_per_client(self, fixed: Tree) -> int:
        return len(self.task.layers) * len(next(iter(fixed["models"].values())))

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        return self.mix_models(self.alpha(phi, fixed, ids), fixed["models"])

    def alpha(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        """The weights [L, P, N] of the mixtures."""
        alpha = self.controlled(self.attention(phi, fixed, ids), ids, available_sources(fixed))
        return mask_newcomers(alpha, ids, fixed)

    def attention(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        """α [L, P, N] for clients `ids`."""
        layers = [*self.task.layers.values()]
        cosines = fixed["cosines"][:, ids] if "cosines" in fixed else layer_cosine_rows(fixed["updates"], layers, ids)
        p, q = (phi[name][ids].T[..., None] for name in ("p", "q"))
        if self.p == "absent":
            return (q * cosines).softmax(-1)
        if cosines.shape[-1] == 1:
            return torch.ones_like(cosines)  # nobody else to learn from
        itself = ids[:, None] == torch.arange(cosines.shape[-1], device=ids.device)
        return (p * itself + (q * cosines).masked_fill(itself, -torch.inf).softmax(-1)) / (1.0 + p)

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        updates = trees.put(fixed["updates"], ids, trees.sub(uploads["model"], start))
        models = trees.put(fixed["models"], ids, uploads["model"])
        return {**self._state(models, updates, fixed.get("cosines"), ids), **update_newcomer_mask(fixed, ids)}

    def constrain(self, phi: Tree) -> Tree:
        return {**phi, "p": phi["p"].clamp(min=0.0)}

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        new_phi, new_fixed = self.begin(start)
        tables = ("models", "updates")
        table, state = trees.grow((phi, trees.select(fixed, tables)), (new_phi, trees.select(new_fixed, tables)))
        return table, {**self._state(state["models"], state["updates"]), **newcomer_mask(newcomers, start)}

    def collaboration(self, server: Server) -> Tensor:
        phi, fixed = server["phi"], server["fixed"]
        return torch.cat([self.alpha(phi, fixed, part) for part in self._parts(fixed)], 1)

    def _parts(self, fixed: Tree) -> tuple[Tensor, ...]:
        """Ids of all clients in parts, for each of which the weights are made at once."""
        return split_ids(all_ids(next(iter(fixed["models"].values()))), self.values_per_client(fixed), self.rowwise)

    def _state(self, models: Params, updates: Params, before: Tensor | None = None, ids: Tensor | None = None) -> Tree:
        """Fixed state; cosines [L, N, N] of so many clients that several parts are needed are computed when needed."""
        state, layers = {"models": models, "updates": updates}, [*self.task.layers.values()]
        if len(self._parts(state)) > 1:
            return state
        return {**state, "cosines": layer_cosines(updates, layers, before, ids)}
