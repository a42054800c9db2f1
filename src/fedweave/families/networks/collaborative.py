"""The server's network of FedSheafHN: it mixes the embeddings of clients and generates models from them."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from fedweave.families.networks.attention import Control, DotAttention, FreeAttention, no_control
from fedweave.families.networks.graph import GATEncoder, GCNEncoder
from fedweave.families.networks.mlp import FlatHypernetwork, Shapes
from fedweave.families.networks.sheaf import SheafDiffusion
from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import Params

Encoder = Literal["sheaf", "gcn", "gat", "none"]
Mixer = Literal["free", "dot", "none"]


class CollaborativeHypernetwork(nn.Module):
    """Encoder on the graph of clients, attention between clients, then a hypernetwork with one wide head.

    The sheaf has diagonal maps on stalks of `stalk` dimensions, learned once from the lifted features; "gcn" and "gat"
    have two layers of `width`. "none" omits a part.
    """

    def __init__(
        self,
        clients: int,
        size: int,
        shapes: Shapes,
        *,
        gnn: Encoder = "sheaf",
        attention: Mixer = "free",
        stalk: int = 1,
        depth: int = 4,
        channels: int = 20,
        width: int = 128,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        encoders: dict[str, Callable[[], nn.Module | None]] = {
            "sheaf": lambda: SheafDiffusion(
                size,
                size,
                stalk=stalk,
                channels=channels,
                depth=depth,
                maps="diagonal",
                shared_maps=True,
                dropout=dropout,
            ),
            "gcn": lambda: GCNEncoder(size, size, width=width, depth=2, dropout=dropout),
            "gat": lambda: GATEncoder(size, size, width=width, depth=2, dropout=dropout),
            "none": lambda: None,
        }
        mixers: dict[str, Callable[[], FreeAttention | DotAttention | None]] = {
            "free": lambda: FreeAttention(clients, dropout=dropout),
            "dot": lambda: DotAttention(size, dropout=dropout),
            "none": lambda: None,
        }
        self.encoder = encoders[gnn]()
        self.attention = mixers[attention]()
        self.hyper = FlatHypernetwork(size, shapes, width=width, dropout=dropout)

    def encode(self, x: Tensor, edges: Tensor, key: Tensor | None = None) -> Tensor:
        """Embeddings [N, size] after diffusion, before attention."""
        return x if self.encoder is None else self.encoder(x, edges, key=_fold(key, 0))

    def mixing_matrix(self, x: Tensor, edges: Tensor) -> Tensor:
        """Weights of the attention between clients [N, N], without dropout; the identity without attention."""
        encoded = self.encode(x, edges)
        return torch.eye(len(x)).to(x) if self.attention is None else self.attention.weights(encoded)

    def forward(
        self, x: Tensor, edges: Tensor, ids: Tensor, *, key: Tensor | None = None, control: Control = no_control
    ) -> Params:
        """Embeddings x [N, size] on edges [2, E] -> models [P, ...] of the clients `ids` [P]; dropout with a key.

        `control` replaces the weights of the attention, and those of the identity where there is no attention.
        """
        return self.hyper(self._mix_embeddings(x, edges, key, control), ids, key=_fold(key, 2))

    def hidden_features(
        self, x: Tensor, edges: Tensor, ids: Tensor, *, key: Tensor | None = None, control: Control = no_control
    ) -> Tensor:
        """Inputs of the wide head in `forward`, [P, width]."""
        return self.hyper.hidden_features(self._mix_embeddings(x, edges, key, control), ids, key=_fold(key, 2))

    def _mix_embeddings(self, x: Tensor, edges: Tensor, key: Tensor | None, control: Control) -> Tensor:
        x = self.encode(x, edges, key)
        if self.attention is not None:
            return self.attention(x, key=_fold(key, 1), control=control)
        return x if control is no_control else control(torch.eye(len(x)).to(x)) @ x


def _fold(key: Tensor | None, part: int) -> Tensor | None:
    return None if key is None else dropout_keys.fold(key, part)
