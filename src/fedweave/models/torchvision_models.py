"""The architectures for classification of torchvision.models, by name."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedweave.errors import BadInput, choose, first_line
from fedweave.models.base import STATISTICS, add_constants
from fedweave.models.own_module import OwnModule, WrappedModule
from fedweave.models.pretrained import load_weights
from fedweave.models.registry import model
from fedweave.settings import AtLeast, AtMost
from fedweave.tensors.attention import plain_attention
from fedweave.tensors.torchvision import declare_operators

# Without their auxiliary outputs, which exist in training only; the layers of these in files of weights
AUXILIARY = {"googlenet": ("aux1", "aux2"), "inception_v3": ("AuxLogits",)}


@model("torchvision")
class TorchvisionModel(WrappedModule):
    """An architecture of torchvision, such as resnet18, vit_b_16, mobilenet_v3_small or swin_t.

    Its output layer, the last layer with parameters, has one output per class, and is the head. Images have 3 channels,
    or 1, which is given to the network three times.
    """

    sides: tuple[int, int]  # of the images that the network gets
    has_batch_norm = True  # many have; whether this one does is known where it is made

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        arch: Annotated[str, "architecture, by its name in torchvision.models"] = "resnet18",
        size: Annotated[int, AtLeast(0), AtMost(4096), "pixels to which images are resized; 0: as they are"] = 0,
        weights: Annotated[str, "file or folder of weights to start from; '': drawn at random"] = "",
    ) -> None:
        where = f"model: torchvision {arch}"
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
            raise BadInput(f"{where} takes images [1, h, w] or [3, h, w], not {[*shape]}; choose another model")
        sides = (size, size) if size else (shape[1], shape[2])
        make = partial(_make, arch, sides, outputs, weights)
        network = make()
        head = _find_head(network)
        # The classifier of SqueezeNet is a convolution, whose outputs are averaged.
        splits = isinstance(network.get_submodule(head), nn.Linear)
        super().__init__(network, OwnModule(make, f"torchvision {arch}", (3, *sides), False, head, False, splits, ""))
        self.__dict__["sides"] = sides
        self._try(where)

    @classmethod
    def check(cls, options: Mapping[str, Any], where: str) -> None:
        choose(options.get("arch", "resnet18"), _names(), f"{where}.arch")

    def forward(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Outputs [B, C] for images [B, 1 or 3, h, w]."""
        x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[2:]) != self.sides:
            x = F.interpolate(x, self.sides, mode="bilinear", antialias=True)
        return super().forward(x, key=key, mask=mask)

    def _try(self, where: str) -> None:
        """Refuse images that are too small for the architecture; only shapes are computed."""
        tensors: dict[str, Tensor] = {name: value.to("meta") for name, value in self.inner.state_dict().items()}
        try:
            with torch.no_grad(), plain_attention:
                functional_call(self.inner, tensors, torch.zeros(1, 3, *self.sides, device="meta"))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise BadInput(_refusal(where, self.sides, error)) from error


def _names() -> list[str]:
    """The architectures of this torchvision."""
    declare_operators()
    from torchvision import models  # takes seconds

    return list(models.list_models(module=models))


def _find_head(network: nn.Module) -> str:
    """The last layer with parameters."""
    return [name for name, layer in network.named_modules() if layer._parameters][-1]


def _make(arch: str, sides: tuple[int, int], outputs: int, weights: str) -> nn.Module:
    """A newly initialised network for images of `sides`, or one with `weights`."""
    where = f"model: torchvision {arch}"
    choose(arch, _names(), "model.arch")
    from torchvision import models

    options: dict[str, Any] = {"num_classes": outputs}
    if arch in AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if arch.startswith("vit_"):
        if sides[0] != sides[1]:
            raise BadInput(f"{where} takes square images, not {sides[0]} x {sides[1]}; set size, as in size: 224")
        options["image_size"] = sides[0]
    if arch.startswith("maxvit_"):
        options["input_size"] = sides
    try:
        network = models.get_model(arch, weights=None, **options)
    except (ValueError, AssertionError) as error:
        raise BadInput(_refusal(where, sides, error)) from error
    if weights:
        left_out, head = AUXILIARY.get(arch, ()), _find_head(network)
        load_weights(network, weights, without=left_out, head=head, architecture=arch, name=where)
    for layer in network.modules():  # such as the relative positions of a Swin transformer, which are integers
        add_constants(layer, layer._buffers.keys() - {*STATISTICS})
    # The class token of a ViT belongs to no layer, and methods know parameters by their layers.
    return nn.Sequential(OrderedDict(model=network)) if network._parameters else network


def _refusal(where: str, sides: tuple[int, int], error: Exception) -> str:
    return f"{where} does not take images of {sides[0]} x {sides[1]} ({first_line(error)}); set size, as in size: 224"
