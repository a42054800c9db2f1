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
from typing import ClassVar

from torch import Tensor, nn

from fedweave.families.hypernetworks import GraphHypernetwork, applied
from fedweave.hyper import SheafDiffusion
from fedweave.hyper.sheaf import Activation, Maps
from fedweave.protocol import Server


@dataclass(frozen=True, kw_only=True)
class SHN(GraphHypernetwork):
    """Hypernetwork behind sheaf diffusion over the clients.

    Attributes:
        stalk: dimension of every client's stalk.
        maps: restriction maps: orthogonal ones in three parametrisations, "diagonal", or "general".
        act: activation on what parametrises a map.
        use_eps: learn how much of itself a stalk row keeps.
        edge_weights: learn a weight per edge.
        augmented: normalise by degree + 1.
    """

    stalk: int = 3
    maps: Maps = "householder"
    act: Activation = "tanh"
    use_eps: bool = True
    edge_weights: bool = False
    augmented: bool = True

    label = "SHN"
    point = "pre"
    bounds: ClassVar[dict] = {**GraphHypernetwork.bounds, "stalk": (1, None)}

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        x = {**server["fixed"], **server["phi"]}["x"]
        layers = applied(lambda: self.encoder(x.shape[1]), server["phi"]["encoder"], x, server["fixed"]["edges"], method="energies")
        return {**super().diagnostics(server), "sheaf energy": layers[-1]}

    def encoder(self, size: int) -> nn.Module:
        names = ("stalk", "channels", "depth", "maps", "act", "augmented", "use_eps", "edge_weights", "dropout")
        return SheafDiffusion(size, size, **{name: getattr(self, name) for name in names})
