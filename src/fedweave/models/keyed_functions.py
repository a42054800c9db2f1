"""Functions of torch whose randomness is a function of a key."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


def row_dropout(x: Tensor, p: float, key: Tensor | None, salt: int) -> Tensor:
    """Dropout of whole rows of `x` [B, ...]: stochastic depth (Huang et al., arXiv:1603.09382)."""
    return channel_dropout(x[None], p, key, salt)[0]


def alpha_dropout(x: Tensor, p: float, key: Tensor | None, salt: int) -> Tensor:
    """Alpha dropout (Klambauer et al., arXiv:1706.02515): keeps mean 0 and variance 1 of its inputs."""
    if key is None or p == 0.0:
        return x
    mask = (element_dropout(torch.ones_like(x), p, key, salt) > 0).to(x.dtype)
    scale = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5 if p < 1 else 0.0
    return scale * (x * mask + ALPHA * (1 - mask)) - scale * ALPHA * p


def attend(
    query: Tensor, key: Tensor, value: Tensor, p: float, draws: Tensor, salt: int, gqa: bool = False, **options: Any
) -> Tensor:
    """F.scaled_dot_product_attention with dropout of its weights.

    Args:
        query, key, value: [..., L, E], [..., S, E] and [..., S, V].
        draws: 0-d key of the randomness.
        gqa: whether several heads of `query` share one of the others, as `enable_gqa`.
        options: masks and scale.
    """
    # What attends to the rows of the identity receives the weights, with masks and scale as PyTorch has them.
    identity = torch.eye(key.shape[-2], dtype=query.dtype, device=query.device).expand(*key.shape[:-1], -1)
    weights = F.scaled_dot_product_attention(query, key, identity, enable_gqa=gqa, **options)
    value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3) if gqa else value
    return element_dropout(weights, p, draws, salt) @ value


class KeyedFunctions(TorchFunctionMode):
    """Inside this block, calls such as F.dropout(x, p, training=True) draw from `key`; each call has its own salt."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keyed = FUNCTIONS.get(func)
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if keyed is None else self._draw(keyed, *args, **(kwargs or {}))

    def _draw(self, keyed: Any, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        del inplace
        return keyed(x, p, self.key if training else None, self._next_salt())

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        options: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale}
        if not dropout_p:
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=enable_gqa, **options)
        return attend(query, key, value, dropout_p, self.key, self._next_salt(), enable_gqa, **options)

    def _next_salt(self) -> int:
        self.calls += 1
        return FUNCTIONAL + self.calls


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


def may_draw(function: Any) -> bool:
    """Whether `function` is one of torch's that `KeyedFunctions` gives a key."""
    return function in FUNCTIONS or function is F.scaled_dot_product_attention
