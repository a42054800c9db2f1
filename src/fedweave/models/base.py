"""What client models share: the features/head split, named layers, and a batch norm that can be mapped."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedweave.errors import BadInput
from fedweave.tensors.trees import is_mapped

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of batch normalisation
BODY = "a trained layer below the head"  # a capability: what methods that train head and body by turns need
CONSTANTS = "_constants"  # the attribute of a module with the names of those of its buffers that are constants
Inputs = Any
"""A batch [B, ...], or for graph clients the tuple (x [V, F], edges [3, E], weight [E])."""


def is_below(name: str, modules: Iterable[str]) -> bool:
    """Whether the tensor `name` belongs to one of `modules`, or is named itself."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


class ClientModel(nn.Module, ABC):
    """A network that clients train: `forward` is the head applied to `features`.

    Subclasses take `(shape, outputs, *, ...options)`. A key means training (batch statistics, dropout), no
    key means evaluation; `self.training` is not used. `client.functional.invoke` runs it with other parameters, also
    under `vmap`. Inside `torch.func.grad` buffers must be arguments of the differentiated function, since they are
    updated in place.
    """

    head: ClassVar[tuple[str, ...]]
    """Names of the modules that map features to outputs, in order."""

    reads: ClassVar[Literal["rows", "graph", "series"]] = "rows"
    """What a client's data are: independent rows, one graph, or windows of a series."""

    embeds: ClassVar[bool] = False
    """Whether it takes a third argument `categories`: how many codes each value of a vector has, 0 for a number."""

    has_batch_norm: ClassVar[bool] = False
    """Whether there are BatchNorm layers; where `batch_norm` is an option, the option says so.

    Settings are checked by it, before a model is made. Training looks for the layers themselves (`find_norms`).
    """

    @property
    def splits(self) -> bool:
        """Whether the outputs are those of the head on the features."""
        return True

    @classmethod
    def check(cls, options: Mapping[str, Any], where: str) -> None:
        """Refuse `options` of the model that need no data to be seen to be wrong; their types have been checked.

        Args:
            where: place of the options in messages.

        Raises:
            BadInput: one line that names the option, its value and the way out.
        """

    @property
    def codes(self) -> tuple[int, int] | None:
        """Smallest and largest code, where rows hold codes that the model looks up; None: they hold numbers."""
        return None

    @abstractmethod
    def features(self, x: Inputs, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Penultimate representation [B, D]; `mask` [B] marks the real rows of a padded batch."""

    def classify(self, h: Tensor) -> Tensor:
        """Outputs [B, C] from features [B, D]: the head alone."""
        for name in self.head:
            h = getattr(self, name)(h)
        return h

    def forward(self, x: Inputs, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Outputs [B, C] of a batch of B inputs."""
        return self.classify(self.features(x, key=key, mask=mask))


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [B, C, h, w]: the key chooses the mode, and statistics can skip padded rows.

    Training on a padded batch equals native training on its real rows, running statistics included. The
    running buffers are updated in place; there is no counter of batches because the momentum is constant.
    """

    momentum: float
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("num_batches_tracked", None)

    def forward(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Normalise `x`; with a key by batch statistics over the rows where `mask` [B] is true."""
        key = None if has_constant_moments(self) else key
        x = x.to(self.weight.dtype)  # half precision is too coarse for statistics
        if key is not None and mask is not None:
            return self._normalise_masked(x, mask.to(x.dtype))
        if is_mapped() and len(x) == 1:  # in this order: `len` would fix the number of rows of an exported program
            x = x.contiguous()  # PyTorch's mapped gradient of one image is wrong where channels are last in memory
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(x, mean, var, self.weight, self.bias, key is not None, self.momentum, self.eps)

    def _normalise_masked(self, x: Tensor, mask: Tensor) -> Tensor:
        centred, var = masked_moments(x, mask, self)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return centred * scale[:, None, None] + self.bias[:, None, None]


class RunningMoments(Protocol):
    """A layer with running mean and variance [C]."""

    momentum: float
    running_mean: Tensor
    running_var: Tensor


def masked_moments(x: Tensor, mask: Tensor, layer: RunningMoments) -> tuple[Tensor, Tensor]:
    """(x [B, C, ...] without its mean, its variance [C]) over the rows where `mask` [B] is 1, not 0.

    The running mean and variance of `layer` take a step towards them.
    """
    weight, axes = mask.reshape(-1, *[1] * (x.ndim - 1)), [0, *range(2, x.ndim)]
    count = mask.sum() * x[0, 0].numel()
    divisor = count.clamp(min=1)
    mean = (x * weight).sum(axes) / divisor
    centred = x - mean.reshape(-1, *[1] * (x.ndim - 2))
    var = (centred.square() * weight).sum(axes) / divisor
    # A batch without real rows does not change the running moments.
    momentum = layer.momentum * (count > 0).to(x.dtype)
    unbiased = var.detach() * divisor / (divisor - 1).clamp(min=1)
    layer.running_mean.add_(momentum * (mean.detach() - layer.running_mean))
    layer.running_var.add_(momentum * (unbiased - layer.running_var))
    return centred, var


def layers(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Layer name -> its parameter names; a layer is one module that owns parameters (weight and bias)."""
    owned: dict[str, tuple[str, ...]] = {}
    for name, _ in model.named_parameters():
        layer = name.rpartition(".")[0]
        owned[layer] = (*owned.get(layer, ()), name)
    return owned


def parts(path: str) -> list[str]:
    """The modules around a tensor, from the outside, and the tensor itself."""
    return list(accumulate(path.split("."), lambda outer, inner: f"{outer}.{inner}"))


def is_named(path: str, target: str) -> bool:
    """Whether `target` names a tensor or a module around it, by the last words of its name; * is any text."""
    return any(fnmatchcase(part, pattern) for part in parts(path) for pattern in (target, f"*.{target}"))


def has_running_moments(layer: nn.Module) -> bool:
    """Whether `layer` is batch normalisation: a class of PyTorch, or one of its own with the same buffers."""
    return isinstance(layer, _BatchNorm) or {"running_mean", "running_var"} <= layer._buffers.keys()


def has_constant_moments(layer: nn.Module) -> bool:
    """Whether the running moments of `layer` are constants, so that it always runs as in evaluation."""
    return "running_mean" in layer.__dict__.get(CONSTANTS, ())


def find_norms(model: nn.Module) -> tuple[str, ...]:
    """Names of the normalisation layers of `model`."""
    kinds = (nn.LayerNorm, nn.GroupNorm)
    return tuple(n for n, layer in model.named_modules() if isinstance(layer, kinds) or has_running_moments(layer))


def find_shared_parameter(model: nn.Module) -> tuple[str, str] | None:
    """Two names of one parameter in two modules, of which only the first would be trained; None if there are none."""
    first_names: dict[int, str] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(value), name)
        owners = [model.get_submodule(path.rpartition(".")[0]) for path in (first, name)]
        if first != name and owners[0] is not owners[1]:
            return first, name
    return None


def make_constants(model: nn.Module) -> None:
    """Make constants of the parameters that are frozen (`requires_grad` is false).

    They are a part of the module, one for all clients: never trained, sent or stored by a client. In the module they
    are buffers, so that they follow its type and device.
    """
    for layer in model.modules():
        frozen = [name for name, value in layer._parameters.items() if value is not None and not value.requires_grad]
        for name in frozen:
            value = layer._parameters.pop(name)
            layer.register_buffer(name, None if value is None else value.detach())
        add_constants(layer, frozen)


def add_constants(layer: nn.Module, names: Iterable[str]) -> None:
    """Declare buffers of `layer` constants."""
    if added := frozenset(names):
        layer.__dict__[CONSTANTS] = layer.__dict__.get(CONSTANTS, frozenset()) | added


def find_constants(model: nn.Module) -> tuple[str, ...]:
    """Names of the constants of `model`, in its order."""
    return tuple(
        f"{path}.{name}" if path else name
        for path, layer in model.named_modules()
        for name, value in layer._buffers.items()
        if value is not None and name in layer.__dict__.get(CONSTANTS, ())
    )


def check_trainable(model: nn.Module, where: str) -> None:
    """Refuse a model without parameters to train."""
    if any(True for _ in model.parameters()):
        return
    if find_constants(model):
        raise BadInput(f"{where}: every parameter is frozen; call requires_grad_(True) on its head")
    raise BadInput(f"{where}: has no parameters to train; check that its layers are attributes, or in an nn.ModuleList")


def check_parameters(model: nn.Module, where: str) -> None:
    """Refuse a client model whose parameters would not be trained as it says.

    Raises:
        BadInput: there are none, or two layers share one.
    """
    check_trainable(model, where)
    if pair := find_shared_parameter(model):
        raise BadInput(
            f"{where}: {pair[0]} and {pair[1]} are one parameter, and only the first would be trained; use it by its "
            f"first name in both places, such as F.linear(x, self.{pair[0]})"
        )


def parameter_count(model: nn.Module) -> int:
    """Number of trainable scalars: batch normalisation's scale and shift count, buffers do not."""
    return sum(p.numel() for p in model.parameters())


def has_weights(layer: nn.Module) -> bool:
    """Whether `layer` itself has parameters or constants."""
    return any(value is not None for value in layer._parameters.values()) or CONSTANTS in layer.__dict__


def weight_count(model: nn.Module) -> int:
    """Number of scalars that a forward pass multiplies with: trainable ones and constants.

    A frozen table of vectors is none of them, as its rows are only looked up.
    """
    tensors = dict(model.named_buffers())
    tables = {f"{name}.weight".lstrip(".") for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)}
    return parameter_count(model) + sum(tensors[name].numel() for name in {*find_constants(model)} - tables)
