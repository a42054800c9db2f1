"""Small convolutional networks: one family, each member a table of its blocks and dense widths.

Layers are called conv1, bn1, conv2, ..., fc1, ..., so that methods can keep, share or weight them by name.
"""

from typing import Annotated, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import BatchNorm, ClientModel
from fedweave.models.registry import model

BatchNorms = Annotated[bool, "batch normalisation after every convolution"]


class Block(NamedTuple):
    """Convolution (stride 1), optional batch normalisation, ReLU, and 2x2 max pooling unless `pool` is 1."""

    channels: int
    kernel: int
    padding: int = 0
    pool: int = 2

    def size(self, side: int) -> int:
        """Side of the output of an input of `side` pixels."""
        return (side + 2 * self.padding - self.kernel + 1) // self.pool


def to_channels_last(x: Tensor) -> Tensor:
    """`x` [..., c, h, w] with its channels next to each other in memory; all kernels of a CPU are faster so."""
    if x.device.type != "cpu":
        return x
    if x.shape[-3] == 1:  # both layouts are the same memory, and the strides choose the kernel
        return x.squeeze(-3).unsqueeze(-1).movedim(-1, -3)
    return x.movedim(-3, -1).contiguous().movedim(-1, -3)


class ConvNet(ClientModel):
    """Blocks, then dense layers of `widths` with ReLU, then a linear head; images [B, c, h, w]."""

    blocks: ClassVar[tuple[Block, ...]]
    widths: ClassVar[tuple[int, ...]]
    batch_norm: bool = False

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, *sides = self._check_shape(shape)
        for i, block in enumerate(self.blocks, start=1):
            conv = nn.Conv2d(channels, block.channels, block.kernel, padding=block.padding)
            self.add_module(f"conv{i}", conv)
            if self.batch_norm:
                self.add_module(f"bn{i}", BatchNorm(block.channels))
            channels, sides = block.channels, [block.size(side) for side in sides]
        fan_in = channels * sides[0] * sides[1]
        for i, width in enumerate(self.widths, start=1):
            self.add_module(f"fc{i}", nn.Linear(fan_in, width))
            fan_in = width
        self.add_module(self.head[0], nn.Linear(fan_in, outputs))

    def _check_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        sides = list(shape[1:])
        for block in self.blocks:
            sides = [block.size(side) for side in sides]
        if len(shape) != 3 or min(sides) < 1:
            name = type(self).__name__
            raise BadInput(f"model: {name} takes larger images [c, h, w], not {tuple(shape)}; try mlp")
        return shape

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Input of the head [B, D]."""
        x = to_channels_last(x)  # outputs of a convolution then have this layout, if one kernel computes them
        for i, block in enumerate(self.blocks, start=1):
            x = to_channels_last(getattr(self, f"conv{i}")(x))
            if self.batch_norm:
                x = getattr(self, f"bn{i}")(x, key=key, mask=mask)
            # ReLU after pooling gives the same values and gradients, and has fewer values to compute.
            x = F.relu(F.max_pool2d(x, block.pool) if block.pool > 1 else x)
        x = x.flatten(1)
        for i in range(1, len(self.widths) + 1):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return x


@model("aghn_cnn")
class AghnCNN(ConvNet):
    """The CNN with batch normalisation of FedAGHN; six layers, 878,730 parameters on 3x32x32 with 10 classes.

    Source: github.com/songjiarui00/FedAGHN.
    """

    head = ("fc",)
    blocks = (Block(32, 5), Block(64, 5))
    widths = (512,)

    batch_norm = has_batch_norm = True


@model("lenet16")
class LeNet16(ConvNet):
    """LeNet with 16 and 32 filters: pFedHN, pFedLA (with `batch_norm` on CIFAR) and SHN.

    85,822 parameters on 1x28x28 with 10 classes; 121,278 on 3x32x32 with 10 classes and batch normalisation.
    """

    head = ("fc3",)
    blocks = (Block(16, 5), Block(32, 5))
    widths = (120, 84)

    def __init__(self, shape: tuple[int, ...], outputs: int, *, batch_norm: BatchNorms = False) -> None:
        self.batch_norm = batch_norm
        super().__init__(shape, outputs)


@model("moon")
class Moon(ConvNet):
    """The simple CNN of MOON (github.com/QinbinLi/MOON); 62,006 parameters on 3x32x32 with 10 classes."""

    head = ("fc3",)
    blocks = (Block(6, 5), Block(16, 5))
    widths = (120, 84)


@model("moon3")
class Moon3(ConvNet):
    """Moon with a third convolution, the "3 conv + 3 FC" of pFedGAT; 64,326 parameters to Moon's 62,006."""

    head = ("fc3",)
    blocks = (Block(6, 5), Block(16, 5), Block(16, 3, padding=1, pool=1))
    widths = (120, 84)


@model("small_cnn")
class SmallCNN(ConvNet):
    """A fast CNN with batch normalisation for small images such as the 8x8 digits (13,802 parameters)."""

    head = ("fc",)
    blocks = (Block(16, 3, padding=1), Block(32, 3, padding=1))
    widths = (64,)

    batch_norm = has_batch_norm = True
