"""Layers of torch.nn whose randomness is a function of a key and whose statistics skip padded rows.

`make_keyed` changes the class of such layers in place, so that the names and the values of their parameters stay.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from fedweave.errors import BadInput
from fedweave.models.base import has_constant_moments, masked_moments
from fedweave.models.context import ForwardContext
from fedweave.models.recurrent import RECURRENT
from fedweave.tensors import dropout_keys

# SELU's negative saturation value, which alpha dropout puts in place of a dropped element
ALPHA = -1.7580993408473766
FUNCTIONAL = 1_000_000  # salts of functional dropout start here; layers have smaller ones


def element_dropout(x: Tensor, p: float, key: Tensor | None, salt: int) -> Tensor:
    """Dropout of single elements; a rate of 1 gives zeros."""
    return x * 0.0 if p >= 1.0 and key is not None else dropout_keys.dropout(x, p, key, salt)


def channel_dropout(x: Tensor, p: float, key: Tensor | None, salt: int) -> Tensor:
    """Dropout of whole channels of `x` [B, C, ...]."""
    if key is None:
        return x
    mask = element_dropout(torch.ones_like(x.flatten(2)[..., 0]), p, key, salt)
    return x * mask.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def alpha_dropout(x: Tensor, p: float, key: Tensor | None, salt: int) -> Tensor:
    """Alpha dropout (Klambauer et al., arXiv:1706.02515): keeps mean 0 and variance 1 of its inputs."""
    if key is None or p == 0.0:
        return x
    mask = (element_dropout(torch.ones_like(x), p, key, salt) > 0).to(x.dtype)
    scale = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5 if p < 1 else 0.0
    return scale * (x * mask + ALPHA * (1 - mask)) - scale * ALPHA * p


class KeyedLayer(nn.Module):
    """A layer that reads the `ForwardContext` of its model; each layer of a model has its own `salt`."""

    context: ForwardContext
    salt: int


class KeyedDropout(KeyedLayer):
    """nn.Dropout."""

    p: float

    def forward(self, x: Tensor) -> Tensor:
        return element_dropout(x, self.p, self.context.key, self.salt)


class KeyedChannelDropout(KeyedLayer):
    """nn.Dropout1d, 2d and 3d, on batches."""

    p: float

    def forward(self, x: Tensor) -> Tensor:
        return channel_dropout(x, self.p, self.context.key, self.salt)


class KeyedAlphaDropout(KeyedLayer):
    """nn.AlphaDropout."""

    p: float

    def forward(self, x: Tensor) -> Tensor:
        return alpha_dropout(x, self.p, self.context.key, self.salt)


class KeyedBatchNorm(KeyedLayer):
    """nn.BatchNorm1d, 2d and 3d: batch statistics of the real rows in training, running statistics in evaluation.

    A batch of one vector is normalised to its shift, where torch raises an error.
    """

    momentum: float
    eps: float
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor

    def forward(self, x: Tensor) -> Tensor:
        context, mean, var = self.context, self.running_mean, self.running_var
        x = x.to(mean.dtype)
        if context.key is None or has_constant_moments(self):
            return F.batch_norm(x, mean, var, self.weight, self.bias, False, self.momentum, self.eps)
        if context.mask is None and x.numel() > x.shape[1]:
            return F.batch_norm(x, mean, var, self.weight, self.bias, True, self.momentum, self.eps)
        return self._normalise_masked(x, x.new_ones(len(x)) if context.mask is None else context.mask.to(x.dtype))

    def _normalise_masked(self, x: Tensor, mask: Tensor) -> Tensor:
        shape = [1, -1, *[1] * (x.ndim - 2)]
        centred, var = masked_moments(x, mask, self)
        x = centred * torch.rsqrt(var + self.eps).reshape(shape)
        x = x if self.weight is None else x * self.weight.reshape(shape)
        return x if self.bias is None else x + self.bias.reshape(shape)


KEYED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: KeyedDropout,
    nn.Dropout1d: KeyedChannelDropout,
    nn.Dropout2d: KeyedChannelDropout,
    nn.Dropout3d: KeyedChannelDropout,
    nn.AlphaDropout: KeyedAlphaDropout,
    nn.BatchNorm1d: KeyedBatchNorm,
    nn.BatchNorm2d: KeyedBatchNorm,
    nn.BatchNorm3d: KeyedBatchNorm,
    nn.SyncBatchNorm: KeyedBatchNorm,
    **RECURRENT,
}


def make_keyed(module: nn.Module, name: str) -> ForwardContext:
    """Change the class of every layer of `module` with randomness or batch statistics; returns their context.

    Raises:
        BadInput: a layer cannot be changed; `name` is the name of the model in the message.
    """
    context = ForwardContext()
    for salt, (layer_name, layer) in enumerate(module.named_modules(), 1):
        where = f"model: {name}: {layer_name or 'its top'}"
        kind = next((base for base in type(layer).__mro__ if base in KEYED), None)
        if kind is None:
            _refuse_unkeyed(layer, where)
            continue
        if type(layer).forward is not kind.forward:
            raise BadInput(
                f"{where}: {type(layer).__name__} changes how {kind.__name__} works; use {kind.__name__} itself"
            )
        if isinstance(layer, _BatchNorm):
            _check_batch_norm(layer, where)
            layer.register_buffer("num_batches_tracked", None)
        replacement: Any = type(type(layer).__name__, (KEYED[kind], type(layer)), {})
        layer.__class__ = replacement
        layer.__dict__ |= {"context": context, "salt": salt}
    return context


def _refuse_unkeyed(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout:
        raise BadInput(
            f"{where}: dropout inside MultiheadAttention is not supported; give it dropout=0 and nn.Dropout behind it"
        )
    if isinstance(layer, nn.FeatureAlphaDropout | nn.RReLU) or (isinstance(layer, _DropoutNd) and layer.p):
        kind = type(layer).__name__
        raise BadInput(
            f"{where}: {kind} draws random numbers that no key controls; use nn.Dropout, or another activation"
        )
    if getattr(layer, "track_running_stats", False):  # instance normalisation
        raise BadInput(
            f"{where}: {type(layer).__name__} with track_running_stats=True is not supported; leave that out"
        )


def _check_batch_norm(layer: _BatchNorm, where: str) -> None:
    if not layer.track_running_stats:
        raise BadInput(f"{where}: track_running_stats=False makes evaluation depend on the batch; leave that out")
    if layer.momentum is None:
        raise BadInput(f"{where}: momentum=None is not supported; give a number such as 0.1")


class KeyedFunctions(TorchFunctionMode):
    """Inside this block, calls such as F.dropout(x, p, training=True) draw from `key`; each call has its own salt."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keyed = FUNCTIONS.get(func)
        return func(*args, **(kwargs or {})) if keyed is None else self._draw(keyed, *args, **(kwargs or {}))

    def _draw(self, keyed: Any, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        del inplace
        self.calls += 1
        return keyed(x, p, self.key if training else None, FUNCTIONAL + self.calls)


FUNCTIONS: dict[Any, Any] = {
    F.dropout: element_dropout,
    torch.dropout: element_dropout,
    F.dropout1d: channel_dropout,
    F.dropout2d: channel_dropout,
    F.dropout3d: channel_dropout,
    torch.feature_dropout: channel_dropout,
    F.alpha_dropout: alpha_dropout,
    torch.alpha_dropout: alpha_dropout,
}
