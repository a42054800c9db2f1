"""pFedHN (Shamsian et al., ICML 2021, arXiv:2103.04628).

Server keeps a vector v_i per client and one hypernetwork h with a linear head per weight and bias tensor of the client
model. θ̄_i = h(v_i) goes down, the trained θ_i comes up (2P); v and h take one step on ½ ‖θ̄_i − θ_i‖². Where the
server is frozen, the vectors of newcomers alone take it, also of those that joined in earlier rounds.

Deviations from the public code (AvivSham/pFedHN):
1. A round may have several clients: their losses are averaged and make one step; the code trains one client a step.
2. BatchNorm scales and shifts are generated too; BatchNorm statistics stay with the client.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.solvers import clone
from fedweave.engine.protocol import Server, Start
from fedweave.engine.registry import method
from fedweave.families.hypernetworks import TableHypernetwork
from fedweave.settings import LogSpace
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Params, Tree


@method("pfedhn")
@dataclass(frozen=True, kw_only=True)
class PFedHN(TableHypernetwork):
    """Every client's model from one hypernetwork and the client's own vector; the defaults are the public code's."""

    server_optimizer: Literal["sgd", "adam"] = "sgd"
    server_lr: Annotated[float, LogSpace(0.001, 0.1)] = 0.01
    server_momentum: float = 0.9
    server_decay: float = 1e-3

    label = "pFedHN"
    point = "pre"

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        phi, fixed = super().add_rows(phi, fixed, enrolled, newcomers, start)
        earlier = fixed.get("joined", {"first": torch.tensor(start.clients - newcomers)})
        optimizer = self.server_solver.init({"embedding": phi["embedding"][int(earlier["first"]) :]})
        if "optimizer" in earlier:  # those that joined in an earlier round go on
            optimizer = trees.grow(earlier["optimizer"], optimizer)
        return phi, {**fixed, "joined": {**earlier, "optimizer": optimizer}}

    def settle(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        if "joined" not in server["fixed"]:
            return server
        rows = (ids >= server["fixed"]["joined"]["first"].item()).nonzero()[:, 0]
        if not len(rows):
            return server
        changes = trees.take(trees.sub(self.sent_models(server, ids), uploads["model"]), rows)
        positions = torch.arange(len(rows), device=ids.device)
        for part in positions.split(1 if self.sequential else len(rows)):
            server = self._step_of_vectors(server, ids[rows[part]], trees.take(changes, part))
        return server

    def _step_of_vectors(self, server: Server, ids: Tensor, changes: Params) -> Server:
        """The server after a step of all newcomers' vectors on the mean loss of newcomers `ids`, with h fixed.

        Args:
            changes: θ̄ − θ [P, ...] of these, by which their loss depends on θ̄.
        """
        phi, fixed, joined = server["phi"], server["fixed"], server["fixed"]["joined"]
        old, new = phi["embedding"].tensor_split([int(joined["first"])])
        sign = -1 if self.server_sign == "literal" else 1
        gradient, _ = pull_back(
            lambda vectors: self.generate({**phi, "embedding": torch.cat([old, vectors["embedding"]])}, fixed, ids),
            {"embedding": new},
            lambda _: trees.tree_map(lambda change: change * (sign / len(ids)), changes),
        )
        vectors, optimizer = self.server_solver.step_(clone({"embedding": new}), gradient, clone(joined["optimizer"]))
        phi = {**phi, "embedding": torch.cat([old, vectors["embedding"]])}
        return {**server, "phi": phi, "fixed": {**fixed, "joined": {**joined, "optimizer": optimizer}}}
