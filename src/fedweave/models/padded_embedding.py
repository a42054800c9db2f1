"""Tables of vectors with one for padding, which training leaves as it is."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PaddedEmbedding(nn.Module):
    """nn.Embedding whose padding vector has no gradient; that of PyTorch has one where several clients run at once."""

    padding_idx: int
    weight: Tensor

    def forward(self, codes: Tensor) -> Tensor:
        vectors = F.embedding(codes, self.weight)
        return torch.where((codes == self.padding_idx)[..., None], vectors.detach(), vectors)


def keep_padding(module: nn.Module) -> None:
    """Change the class of every nn.Embedding of `module` that has a padding vector and no adapter."""
    for layer in module.modules():
        has_padding = isinstance(layer, nn.Embedding) and layer.padding_idx is not None and layer.max_norm is None
        if has_padding and type(layer).forward is nn.Embedding.forward:
            replacement: Any = type(type(layer).__name__, (PaddedEmbedding, type(layer)), {})
            layer.__class__ = replacement
