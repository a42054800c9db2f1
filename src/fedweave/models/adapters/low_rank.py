"""Low-rank adapters of weights: W + (alpha / rank) B A, with W frozen (LoRA, arXiv:2106.09685).

A layer keeps the names and the values of its weights. They are read as adapted weights, by whoever reads them: the
layer itself, or a function such as `F.multi_head_attention_forward`.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.models.base import make_constants


class LowRank(nn.Module):
    """A change of low rank of a weight [out, ...], which is read as a matrix [out, in]: scale · B A.

    A [rank, in] is drawn as a linear layer is, and B [out, rank] is 0, so that training begins with the frozen weight.

    Attributes:
        mix: what servers mix of several clients, "factors" or "product".
        ranks: of the clients, if they differ.
    """

    def __init__(
        self,
        weight: Tensor,
        rank: int,
        scale: float,
        trains_a: bool = True,
        mix: str = "factors",
        ranks: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        rows, columns = matrix_shape(weight)
        self.A = nn.Parameter(weight.new_empty(rank, columns), requires_grad=trains_a)
        self.B = nn.Parameter(weight.new_zeros(rows, rank))
        self.scale, self.mix, self.ranks = scale, mix, ranks
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw A anew; B is 0."""
        nn.init.kaiming_uniform_(self.A, a=5**0.5)
        nn.init.zeros_(self.B)

    def forward(self) -> Tensor:
        """The change [out, in]."""
        return self.scale * (self.B @ self.A)


class LowRankLayer(nn.Module):
    """A layer with adapters, one for each of some of its weights.

    Attributes:
        adapted: its class without them.
    """

    adapted: type[nn.Module]


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """(out, in) of a weight [out, ...]."""
    return len(weight), weight[0].numel()


def adapter_name(weight: str) -> str:
    """Name of the adapter of a weight in its layer: "lora" for "weight", "in_proj_lora" for "in_proj_weight"."""
    return weight.replace("weight", "lora")


def add_low_rank(layer: nn.Module, names: Iterable[str], rank: int, scale: float, **options: Any) -> None:
    """Freeze the weights `names` of `layer`, and give each a `LowRank` with `options` as a part of the layer."""
    kind, names = type(layer), tuple(names)
    for name in names:
        weight = layer.get_parameter(name) if name in layer._parameters else layer.get_buffer(name)
        weight.requires_grad_(False)
        layer.add_module(adapter_name(name), LowRank(weight, rank, scale, **options))
    make_constants(layer)
    attributes: dict[str, Any] = {name: property(partial(_adapted_weight, name)) for name in names}
    if kind.forward in FACTORED and getattr(layer, "max_norm", None) is None:
        attributes["forward"] = FACTORED[kind.forward]
    layer.__class__ = type(kind.__name__, (LowRankLayer, kind), {**attributes, "adapted": kind})


def _adapted_weight(name: str, layer: nn.Module) -> Tensor:
    weight: Any = layer._buffers[name]
    return weight + layer.get_submodule(adapter_name(name))().reshape(weight.shape)


# With the factors one after the other, no client needs a whole weight of its own where many are computed at once.
def _linear(layer: Any, x: Tensor) -> Tensor:
    change = F.linear(F.linear(x, layer.lora.A), layer.lora.B)
    return F.linear(x, layer._buffers["weight"], layer.bias) + layer.lora.scale * change


def _embedding(layer: Any, codes: Tensor) -> Tensor:
    change = layer.lora.scale * (F.embedding(codes, layer.lora.B) @ layer.lora.A)
    if layer.padding_idx is not None:  # which has no gradient; `F.embedding` itself gives it one under vmap
        change = torch.where((codes == layer.padding_idx)[..., None], change.detach(), change)
    return F.embedding(codes, layer._buffers["weight"]) + change


FACTORED: dict[Any, Any] = {nn.Linear.forward: _linear, nn.Embedding.forward: _embedding}


def low_ranks(model: nn.Module) -> dict[str, LowRank]:
    """Name of the layer -> each adapter of `model`, in its order."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRank)}


def merge(model: nn.Module) -> None:
    """Add every adapter of `model` to its weight, in place; the layers have their own classes again."""
    with torch.no_grad():
        layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LowRankLayer)]
        for layer in layers:
            names = [name for name in layer._buffers if adapter_name(name) in layer._modules]
            for name in names:
                layer._buffers[name] = _adapted_weight(name, layer).detach()
                del layer._modules[adapter_name(name)]
            layer.__class__ = layer.adapted
