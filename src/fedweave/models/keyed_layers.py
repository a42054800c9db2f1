"""Layers of torch.nn whose randomness is a function of a key and whose statistics skip padded rows.

`make_keyed` changes the class of such layers in place, so that the names and the values of their parameters stay.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedweave.errors import BadInput
from fedweave.models.base import has_constant_moments, masked_moments
from fedweave.models.context import ForwardContext
from fedweave.models.keyed_functions import alpha_dropout, channel_dropout, element_dropout, row_dropout
from fedweave.models.padded_embedding import keep_padding
from fedweave.models.recurrent import RECURRENT


class KeyedLayer(nn.Module):
    """A layer that reads the `ForwardContext` of its model; each layer of a model has its own `salt`."""

    context: ForwardContext
    salt: int


class KeyedDropout(KeyedLayer):
    """A layer that drops elements or channels, by the function `draw` of (inputs, rate, key, salt)."""

    p: float
    draw: ClassVar[Any]

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.draw(x, self.p, self.context.key, self.salt)
        return outputs


def _dropout(draw: Callable[..., Tensor]) -> type[KeyedDropout]:
    return type("KeyedDropout", (KeyedDropout,), {"draw": staticmethod(draw)})


class KeyedStochasticDepth(KeyedLayer):
    """StochasticDepth of torchvision: drops rows of a batch, or the batch as a whole."""

    p: float
    mode: str

    def forward(self, x: Tensor) -> Tensor:
        key, salt = self.context.key, self.salt
        return row_dropout(x, self.p, key, salt) if self.mode == "row" else row_dropout(x[None], self.p, key, salt)[0]


class KeyedAttention(KeyedLayer):
    """nn.MultiheadAttention with dropout of its weights, which are returned as they are after dropout."""

    p: float  # its `dropout`, in whose place stands 0
    embed_dim: int
    num_heads: int
    batch_first: bool
    in_proj_weight: Tensor | None
    v_proj_weight: Tensor
    in_proj_bias: Tensor | None
    out_proj: nn.Module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        options = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}
        attention: Any = super().forward
        if self.context.key is None or not self.p:
            options |= {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
            return attention(query, key, value, **options)
        # PyTorch computes the weights [..., H, L, S] with all its masks; values are mixed by them after dropout.
        weights = attention(query, key, value, need_weights=True, average_attn_weights=False, **options)[1]
        weights = element_dropout(weights, self.p, self.context.key, self.salt)
        outputs = self.out_proj((weights @ self._project_values(value)).transpose(-2, -3).flatten(-2))
        outputs = outputs if self.batch_first or outputs.ndim == 2 else outputs.transpose(0, 1)
        return outputs, (weights.mean(-3) if average_attn_weights else weights) if need_weights else None

    def _project_values(self, value: Tensor) -> Tensor:
        """Values by head [..., H, S, E / H] of [B, S, E], [S, B, E] or [S, E]."""
        weight = self.v_proj_weight if self.in_proj_weight is None else self.in_proj_weight[2 * self.embed_dim :]
        bias = None if self.in_proj_bias is None else self.in_proj_bias[2 * self.embed_dim :]
        value = F.linear(value, weight, bias)
        value = value if self.batch_first or value.ndim == 2 else value.transpose(0, 1)
        return value.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)


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
    nn.Dropout: _dropout(element_dropout),
    **dict.fromkeys((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _dropout(channel_dropout)),
    nn.AlphaDropout: _dropout(alpha_dropout),
    nn.BatchNorm1d: KeyedBatchNorm,
    nn.BatchNorm2d: KeyedBatchNorm,
    nn.BatchNorm3d: KeyedBatchNorm,
    nn.SyncBatchNorm: KeyedBatchNorm,
    nn.MultiheadAttention: KeyedAttention,
    **RECURRENT,
}
# By name, because an import of torchvision takes seconds
NAMED: dict[str, type[nn.Module]] = {"torchvision.ops.stochastic_depth.StochasticDepth": KeyedStochasticDepth}


def _find_keyed(layer: nn.Module) -> tuple[type[nn.Module], type[nn.Module]] | None:
    """(the class of torch or torchvision that `layer` is one of, its keyed form); None if it needs no key."""
    for base in type(layer).__mro__:
        if keyed := KEYED.get(base, NAMED.get(f"{base.__module__}.{base.__qualname__}")):
            return base, keyed
    return None


def make_keyed(module: nn.Module, name: str) -> ForwardContext:
    """Change the class of every layer of `module` with randomness or batch statistics; returns their context.

    Raises:
        BadInput: a layer cannot be changed; `name` is the name of the model in the message.
    """
    context = ForwardContext()
    keep_padding(module)
    for salt, (layer_name, layer) in enumerate(module.named_modules(), 1):
        where = f"model: {name}: {layer_name or 'its top'}"
        found = _find_keyed(layer)
        if getattr(layer, "scale_grad_by_freq", False):
            raise BadInput(
                f"{where}: {type(layer).__name__} with scale_grad_by_freq=True counts codes of padded rows, too; "
                "leave that out"
            )
        if found is None:
            _refuse_unkeyed(layer, where)
            continue
        kind, keyed = found
        if type(layer).forward is not kind.forward:
            raise BadInput(
                f"{where}: {type(layer).__name__} changes how {kind.__name__} works; use {kind.__name__} itself"
            )
        if isinstance(layer, _BatchNorm):
            _check_batch_norm(layer, where)
            layer.register_buffer("num_batches_tracked", None)
        if isinstance(layer, nn.MultiheadAttention):
            _check_attention(layer, where)
            layer.p, layer.dropout = layer.dropout, 0.0
        replacement: Any = type(type(layer).__name__, (keyed, type(layer)), {})
        layer.__class__ = replacement
        layer.__dict__ |= {"context": context, "salt": salt}
    return context


def _refuse_unkeyed(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.FeatureAlphaDropout | nn.RReLU) or (isinstance(layer, _DropoutNd) and layer.p):
        kind = type(layer).__name__
        raise BadInput(
            f"{where}: {kind} draws random numbers that no key controls; use nn.Dropout, or another activation"
        )
    if getattr(layer, "track_running_stats", False):  # instance normalisation
        raise BadInput(
            f"{where}: {type(layer).__name__} with track_running_stats=True is not supported; leave that out"
        )


def _check_attention(layer: nn.MultiheadAttention, where: str) -> None:
    if layer.dropout and (layer.bias_k is not None or layer.add_zero_attn):
        raise BadInput(
            f"{where}: dropout with add_bias_kv or add_zero_attn is not supported; give it dropout=0, or leave them out"
        )


def _check_batch_norm(layer: _BatchNorm, where: str) -> None:
    if not layer.track_running_stats:
        raise BadInput(f"{where}: track_running_stats=False makes evaluation depend on the batch; leave that out")
    if layer.momentum is None:
        raise BadInput(f"{where}: momentum=None is not supported; give a number such as 0.1")
