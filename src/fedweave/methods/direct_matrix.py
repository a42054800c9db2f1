"""Direct weight matrix: pFedGAT without its attention network (Zhou et al., arXiv:2503.05474, ablation).

Server keeps every client's last model and a free matrix R: θ̄_i = Σ_j R_ij θ_j goes down, the trained θ_i comes up with
the loss and its gradient g_i at θ̄_i on validation rows (3P + 1). R takes one step along ⟨g_i, θ_j⟩.

Deviation: the paper does not say how rows stay mixtures; here every row is projected onto the simplex, starting from
1/N, or (`rows="logits"`) is a softmax of free numbers, starting from 0.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.engine.protocol import Start
from fedweave.engine.registry import method
from fedweave.families.validated_mixtures import ValidatedMixtures
from fedweave.graphs.weights import simplex_projection
from fedweave.settings import LogSpace
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


@method("direct_matrix")
@dataclass(frozen=True, kw_only=True)
class DirectMatrix(ValidatedMixtures):
    """Mixtures from a free matrix."""

    server_lr: Annotated[float, LogSpace(0.0001, 0.1)] = 0.01
    rows: Annotated[Literal["simplex", "logits"], "projection onto the simplex, or softmax of logits"] = "simplex"

    label = "Direct matrix"

    def learnables(self, start: Start) -> Tree:
        matrix = next(iter(start.model.values())).new_zeros(start.clients, start.clients)
        return {"matrix": matrix if self.rows == "logits" else matrix + 1.0 / start.clients}

    def weights(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        rows = phi["matrix"][ids]
        return (torch.softmax(rows, -1) if self.rows == "logits" else rows)[None]

    def constrain(self, phi: Tree) -> Tree:
        return phi if self.rows == "logits" else {"matrix": simplex_projection(phi["matrix"])}

    def enlarge(self, phi: Tree, newcomers: int, start: Start) -> Tree:
        return self.constrain(trees.grow(phi, self.learnables(start)))
