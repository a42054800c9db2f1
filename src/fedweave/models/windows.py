"""Client models for windows of series that have a class or numbers: convolutions over time, and a recurrent unit.

A window [T, C] is stored as an image [C, 1, T], its channels first.
"""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import ClientModel
from fedweave.models.gru import GRUCell
from fedweave.models.registry import model
from fedweave.settings import Size

KERNEL = 5  # steps that a convolution sees


def sizes(shape: tuple[int, ...], name: str, least: int = 1) -> tuple[int, int]:
    """Channels and steps of windows of `shape`.

    Raises:
        BadInput: it is not a window, or one of fewer than `least` steps.
    """
    if len(shape) != 3 or shape[1] != 1 or shape[2] < least:
        raise BadInput(
            f"model: {name} takes windows of series, [rows, steps, channels], of {least} steps or more, not rows of "
            f"shape {tuple(shape)}; try mlp"
        )
    return shape[0], shape[2]


@model("cnn1d")
class CNN1d(ClientModel):
    """Two convolutions over time with ReLU, the first with max pooling, then the mean over time and a linear head."""

    head = ("fc",)

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, hidden: Annotated[Size, "channels of a convolution"] = 32
    ) -> None:
        super().__init__()
        channels, _ = sizes(shape, "cnn1d", least=2)
        self.conv1 = nn.Conv1d(channels, hidden, KERNEL, padding=KERNEL // 2)
        self.conv2 = nn.Conv1d(hidden, hidden, KERNEL, padding=KERNEL // 2)
        self.fc = nn.Linear(hidden, outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Means over time [B, D] of windows [B, C, 1, T]."""
        del key, mask
        h = F.relu(F.max_pool1d(self.conv1(x.squeeze(-2)), 2))
        return F.relu(self.conv2(h)).mean(-1)


@model("gru_window")
class WindowGRU(ClientModel):
    """A gated recurrent unit over the steps of a window; the head reads its last state."""

    head = ("fc",)

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, hidden: Annotated[Size, "width of the state"] = 32
    ) -> None:
        super().__init__()
        channels, _ = sizes(shape, "gru_window")
        self.encoder = GRUCell(channels, hidden)
        self.fc = nn.Linear(hidden, outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Last states [B, H] of windows [B, C, 1, T]."""
        del key, mask
        return self.encoder.last_state(x.squeeze(-2).transpose(-1, -2))
