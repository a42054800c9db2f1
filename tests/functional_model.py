"""A user's module whose forward pass is a function."""

import torch
from torch import nn
from torch.nn import functional as F

from fedweave.testing.federations import CLASSES


class Functional(nn.Module):
    """Two layers with functional dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(F.relu(self.first(x)), 0.4, self.training))
