"""Networks of the server: graph encoders of clients, hypernetworks, attention between clients.

They are plain modules; `Architecture` runs them with parameters of a state. A key turns dropout on.
Encoders share one call, `(x [N, f_in], edges [2, E], *, key) -> [N, f_out]`.
"""

from fedweave.families.networks.architecture import Architecture, architecture
from fedweave.families.networks.attention import ModelAttention, count_sketch, layer_norm
from fedweave.families.networks.graph import GCNEncoder
from fedweave.families.networks.mlp import LayerWeights, TargetHypernetwork
from fedweave.families.networks.sheaf import SheafDiffusion
