"""ResNet-18 (He et al., arXiv:1512.03385), ImageNet form, with torchvision's names and initialisation."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import BatchNorm, ClientModel
from fedweave.models.registry import model


def _conv(fan_in: int, fan_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(fan_in, fan_out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip, projected by `downsample` where the shape changes."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(fan_in, fan_out, 3, stride), BatchNorm(fan_out)
        self.conv2, self.bn2 = _conv(fan_out, fan_out, 3), BatchNorm(fan_out)
        same = stride == 1 and fan_in == fan_out
        project = [_conv(fan_in, fan_out, 1, stride), BatchNorm(fan_out)]
        self.downsample = None if same else nn.ModuleList(project)

    def forward(self, x: Tensor, *, key: Tensor | None, mask: Tensor | None) -> Tensor:
        """[B, fan_in, h, w] -> [B, fan_out, h / stride, w / stride]."""
        h = F.relu(self.bn1(self.conv1(x), key=key, mask=mask))
        h = self.bn2(self.conv2(h), key=key, mask=mask)
        if self.downsample is not None:
            project, norm = self.downsample
            x = norm(project(x), key=key, mask=mask)
        return F.relu(h + x)


@model("resnet18")
class ResNet18(ClientModel):
    """7x7 stride-2 stem and max pooling, four stages of two blocks, average pooling, fc; 41 layers.

    Images [B, c, h, w] from 32x32, where FedAGHN keeps the ImageNet stem too. 11,227,812 parameters with 100
    classes.
    """

    head = ("fc",)
    has_batch_norm = True

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 32:
            raise BadInput(f"model: resnet18 takes images from 32x32, not {tuple(shape)}; try small_cnn")
        self.conv1, self.bn1 = _conv(shape[0], 64, 7, 2), BatchNorm(64)
        self.stages = ("layer1", "layer2", "layer3", "layer4")
        fan_in = 64
        for name, fan_out, stride in zip(self.stages, (64, 128, 256, 512), (1, 2, 2, 2), strict=True):
            stage = nn.ModuleList([BasicBlock(fan_in, fan_out, stride), BasicBlock(fan_out, fan_out, 1)])
            self.add_module(name, stage)
            fan_in = fan_out
        self.fc = nn.Linear(512, outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Average of the last feature map [B, 512]."""
        h = F.relu(self.bn1(self.conv1(x), key=key, mask=mask))
        h = F.max_pool2d(h, 3, stride=2, padding=1)
        for name in self.stages:
            for block in getattr(self, name).children():
                h = block(h, key=key, mask=mask)
        return h.mean((2, 3))
