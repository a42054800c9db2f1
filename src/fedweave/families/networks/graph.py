"""Graph encoders of client embeddings by convolution (GHN) and by attention.

Both map embeddings [N, f_in] and edges [2, E] (both directions, no self loops) to [N, f_out] and add self
loops themselves, so that they are interchangeable with `SheafDiffusion`.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.families.networks.attention import AttentionHeads
from fedweave.models.gcn import GraphConv, add_loops
from fedweave.tensors import dropout_keys


def _sizes(f_in: int, width: int, f_out: int, depth: int) -> list[int]:
    if depth < 1:
        raise BadInput(f"depth: {depth} is not a number of layers; try 2")
    return [f_in, *[width] * (depth - 1), f_out]


class GCNEncoder(nn.Module):
    """`depth` graph convolutions with ELU between them and no residual connection: the encoder of GHN.

    Only the self loops of A~ = A + I preserve a client's own embedding, so deep encoders over-smooth.
    """

    def __init__(self, f_in: int, f_out: int, *, width: int = 32, depth: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in pairwise(_sizes(f_in, width, f_out, depth)))
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor, *, key: Tensor | None = None) -> Tensor:
        """[N, f_in] -> [N, f_out]."""
        looped, weight = add_loops(edges, len(x), x.dtype)
        for depth, conv in enumerate(self.convs):
            x = x if depth == 0 else dropout_keys.dropout(F.elu(x), self.dropout, key, salt=depth)
            x = conv(x, looped, weight)
        return x


class GATLayer(nn.Module):
    """K attention heads over the neighbours and the node itself, concatenated or averaged, plus a bias."""

    def __init__(self, f_in: int, width: int, heads: int, concat: bool) -> None:
        super().__init__()
        self.attend = AttentionHeads(f_in, width=width, heads=heads)
        self.bias = nn.Parameter(torch.zeros(heads * width if concat else width))
        self.concat = concat

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[N, f_in] -> [N, heads * width] or [N, width]; `mask` [N, N] is true where row may read column."""
        mixed = torch.einsum("kij,jkd->ikd", self.attend(x, mask), self.attend.values(x))
        return (mixed.flatten(1) if self.concat else mixed.mean(1)) + self.bias


class GATEncoder(nn.Module):
    """`depth` graph attention layers (arXiv:1710.10903) with ELU between them, dense because N is small.

    Hidden layers concatenate `heads` heads to `width` channels in total; the last layer averages its heads.
    """

    def __init__(
        self, f_in: int, f_out: int, *, width: int = 128, heads: int = 8, depth: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadInput(f"width: {width} is not a multiple of heads = {heads}; try {heads * (width // heads + 1)}")
        *hidden, last = pairwise(_sizes(f_in, width, f_out, depth))
        layers = [GATLayer(a, b // heads, heads, concat=True) for a, b in hidden]
        self.layers = nn.ModuleList([*layers, GATLayer(*last, heads, concat=False)])
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor, *, key: Tensor | None = None) -> Tensor:
        """[N, f_in] -> [N, f_out]."""
        mask = torch.eye(len(x), dtype=torch.bool, device=x.device)
        mask[edges[1], edges[0]] = True
        for depth, layer in enumerate(self.layers):
            x = x if depth == 0 else dropout_keys.dropout(F.elu(x), self.dropout, key, salt=depth)
            x = layer(x, mask)
        return x
