"""SHN (Sheaf HyperNetworks for personalized federated learning, Nguyen et al., arXiv:2405.20882).

Two stages (see `GraphHypernetwork`): pFedHN learns a vector per client; on their graph, L layers of neural sheaf
diffusion with orthogonal restriction maps turn them into the codes of a new hypernetwork. Adam on ½ ‖θ̄_i − θ_i‖², mean
over participants. Everything but the models stays on the server (traffic 2P).

Deviations:
1. There is no public code. The diffusion follows twitter-research/neural-sheaf-diffusion, with its learned ε per stalk
   row (`use_eps`), its ELU behind the lift (`lift_act`) and its normalisation by D + I (`augmented`); self loops are
   dropped, because a sheaf has nothing to say about them. Definition A.4 has D, and neither ELU nor ε.
2. The loss is summed over parameters; with a mean, weight decay would outweigh it.
3. With 16 layers or more every edge has a learned weight, as in that code: without, features grow by about 1.3 a layer
   (`weights_from`).
4. Stalks of one dimension take a scalar map, because the orthogonal ones would be fixed.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedweave.engine.protocol import Server
from fedweave.engine.registry import method
from fedweave.families.networks import Architecture, SheafDiffusion, architecture
from fedweave.families.networks.sheaf import Activation, Lift, Maps
from fedweave.families.staged_admission import StagedAdmission
from fedweave.settings import Count, IntegerSpace, Size


@method("shn")
@dataclass(frozen=True, kw_only=True)
class SHN(StagedAdmission):
    """Hypernetwork behind sheaf diffusion over the clients."""

    stalk: Annotated[Size, IntegerSpace(1, 5), "d, dimension of every client's stalk"] = 3
    maps: Annotated[Maps, "restriction maps; the first three are orthogonal"] = "householder"
    act: Annotated[Activation, "activation before the restriction maps"] = "tanh"
    lift_act: Annotated[Lift, "activation of the lift, in which x becomes stalks"] = "elu"
    use_eps: Annotated[bool, "learn the self weight of every stalk row"] = True
    edge_weights: Annotated[bool, "learn a weight per edge, whatever the depth"] = False
    weights_from: Annotated[Count, "depth from which edges always have weights; 0: never"] = 16
    augmented: Annotated[bool, "normalise by degree + 1; false: by the degree"] = True

    label = "SHN"
    point = "pre"

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        x = {**server["fixed"], **server["phi"]}["x"]
        encoder = self.encoder(x.shape[1])
        layers = encoder.run(server["phi"]["encoder"], x, server["fixed"]["edges"], method="energies")
        return {**super().diagnostics(server), "sheaf energy": layers[-1]}

    def encoder(self, size: int) -> Architecture:
        names = ("stalk", "channels", "depth", "maps", "act", "lift_act", "augmented", "use_eps", "dropout")
        options = {name: getattr(self, name) for name in names}
        deep = 0 < self.weights_from <= self.depth
        return architecture(SheafDiffusion, size, size, **options, edge_weights=self.edge_weights or deep)
