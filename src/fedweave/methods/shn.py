"""SHN (Sheaf HyperNetworks for personalized federated learning, Nguyen et al., arXiv:2405.20882).

Two stages (see `GraphHypernetwork`): pFedHN learns a vector per client; on their graph, L layers of neural sheaf diffusion with
orthogonal restriction maps turn them into the codes of a new hypernetwork. Adam on ½ ‖θ̄_i − θ_i‖², mean over participants.
Everything but the models stays on the server (2P on the wire).

Deviations:
1. There is no public code. The diffusion follows twitter-research/neural-sheaf-diffusion, with its learned ε per stalk row
   (`use_eps`) and its augmented normalisation; self loops are dropped, because a sheaf has nothing to say about them.
2. The loss is summed over parameters; with a mean, weight decay would outweigh it.
3. Stalks of one dimension take a scalar map, because the orthogonal ones would be fixed.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedweave.families.hypernetworks import GraphHypernetwork
from fedweave.hyper import SheafDiffusion


@dataclass(frozen=True, kw_only=True)
class SHN(GraphHypernetwork):
    """Hypernetwork behind sheaf diffusion over the clients.

    Attributes:
        stalk: dimension of every client's stalk.
        maps: how orthogonal maps are parametrised.
        act: activation on what parametrises a map.
        use_eps: learn how much of itself a stalk row keeps.
        edge_weights: learn a weight per edge.
        augmented: normalise by degree + 1.
    """

    stalk: int = 3
    maps: Literal["householder", "cayley", "exp"] = "householder"
    act: Literal["tanh", "elu"] = "tanh"
    use_eps: bool = True
    edge_weights: bool = False
    augmented: bool = True

    label = "SHN"
    point = "pre"
    bounds: ClassVar[dict] = {**GraphHypernetwork.bounds, "stalk": (1, None)}

    def encoder(self, size: int) -> nn.Module:
        return SheafDiffusion(
            size,
            size,
            stalk=self.stalk,
            channels=self.channels,
            depth=self.depth,
            maps=self.maps,
            act=self.act,
            augmented=self.augmented,
            use_eps=self.use_eps,
            edge_weights=self.edge_weights,
            dropout=self.dropout,
        )
