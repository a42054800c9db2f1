"""Networks that live on the server: graph encoders of clients, hypernetworks, attention between clients.

They are plain modules run through `client.functional.invoke`; a key turns dropout on. Encoders share one call,
`(x [N, f_in], edges [2, E], *, key) -> [N, f_out]`.
"""

from fedweave.server_networks.attention import ModelAttention, count_sketch, layer_norm
from fedweave.server_networks.graph import GCNEncoder
from fedweave.server_networks.mlp import LayerWeights, TargetHypernetwork, through_heads
from fedweave.server_networks.sheaf import SheafDiffusion

__all__ = [
    "GCNEncoder",
    "LayerWeights",
    "ModelAttention",
    "SheafDiffusion",
    "TargetHypernetwork",
    "count_sketch",
    "layer_norm",
    "through_heads",
]
