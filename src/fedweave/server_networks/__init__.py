"""Networks that live on the server: graph encoders of clients, hypernetworks, attention between clients.

They are plain modules run through `torch.func.functional_call`; a key turns dropout on. Encoders share one
call, `(x [N, f_in], edges [2, E], *, key) -> [N, f_out]`, and are chosen by name.
"""

from torch import nn

from fedweave.server_networks.attention import (
    AttentionHeads,
    DotAttention,
    FreeAttention,
    ModelAttention,
    count_sketch,
    layer_norm,
    padded,
)
from fedweave.server_networks.graph import GATEncoder, GCNEncoder
from fedweave.server_networks.mlp import FlatHypernetwork, LayerWeights, TargetHypernetwork, through_heads
from fedweave.server_networks.sheaf import Sheaf, SheafDiffusion, build_sheaf

ENCODERS: dict[str, type[nn.Module]] = {"sheaf": SheafDiffusion, "gcn": GCNEncoder, "gat": GATEncoder}

__all__ = [
    "ENCODERS",
    "AttentionHeads",
    "DotAttention",
    "FlatHypernetwork",
    "FreeAttention",
    "GATEncoder",
    "GCNEncoder",
    "LayerWeights",
    "ModelAttention",
    "Sheaf",
    "SheafDiffusion",
    "TargetHypernetwork",
    "build_sheaf",
    "count_sketch",
    "layer_norm",
    "padded",
    "through_heads",
]
