"""Panacea (Graph-relational federated learning, openreview.net/forum?id=FMLyPgqos1).

Two stages (see `GraphHypernetwork`): a vector per client, then graph convolutions over the clients' graph refine the
vectors X, which stay trainable, to codes Z, and a hypernetwork turns codes into models. A graph generator ẑ = Linear(z)
has to reconstruct the graph: the loss of φ gains λ_g · BCE(σ(ẑ_u · ẑ_v), A_uv) over pairs of clients, edges weighted by
their rarity. Everything but the models stays on the server (traffic 2P).

Deviation: neither full text nor code is public; the sizes are those of GHN, and the generator is the smallest that fits
the abstract.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.engine.protocol import Start, init_parameters
from fedweave.engine.registry import method
from fedweave.families.hypernetworks import GraphHypernetwork
from fedweave.settings import Choices, NotSearched, Weight
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Tree


@method("panacea")
@dataclass(frozen=True, kw_only=True)
class Panacea(GraphHypernetwork):
    """Hypernetwork behind graph convolutions whose codes also tell who is connected to whom."""

    graph: Annotated[str, NotSearched()] = "auto"
    k: Annotated[int, NotSearched()] = 3
    tau: Annotated[float, NotSearched()] = 0.95
    train_x: bool = True
    depth: Annotated[int, NotSearched()] = 2
    channels: Annotated[int, NotSearched()] = 32
    generator_weight: Annotated[Weight, Choices((0.01, 0.1, 1.0)), "λ_g, weight of the reconstruction"] = 0.1

    label = "Panacea"
    point = "pre"

    def extra_parameters(self, size: int, start: Start) -> Tree:
        return {
            "generator": init_parameters(
                lambda: nn.Linear(size, size), start.seed + 3, next(iter(start.model.values())).dtype
            )
        }

    def regularise(self, phi: Tree, fixed: Tree) -> Tree:
        def loss(phi: Tree) -> Tree:
            return {"loss": self.generator_weight * self.reconstruction(phi, fixed)}

        phi_of_codes = trees.omit(phi, ["hyper"])  # the graph depends on the codes alone
        return pull_back(loss, phi_of_codes, lambda out: {"loss": torch.ones_like(out["loss"])})[0]

    def reconstruction(self, phi: Tree, fixed: Tree) -> Tensor:
        """Mean cross-entropy of the graph over ordered pairs of different clients."""
        z = F.linear(self.codes(phi, fixed), phi["generator"]["weight"], phi["generator"]["bias"])
        edges = fixed["edges"]
        adjacency = torch.zeros(len(z), len(z), dtype=z.dtype, device=z.device).index_put(
            (edges[0], edges[1]), z.new_ones(())
        )
        pairs = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        targets = adjacency[pairs]
        rarity = (len(targets) - targets.sum()) / targets.sum().clamp(min=1.0)
        losses = F.binary_cross_entropy_with_logits((z @ z.T)[pairs], targets, pos_weight=rarity, reduction="sum")
        return losses / max(1, len(targets))
