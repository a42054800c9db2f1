"""Modules with several inputs, which are stored as one vector: it is taken apart before the module is called."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fedweave.exported_model import has_inputs

Layout = tuple[tuple[str | int, tuple[int, ...]], ...]
"""Name or number, and shape, of each input; empty where a module has one input."""


class OneModule(nn.Sequential):
    """A single module under a name, with any inputs."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Outputs of the module."""
        return self[0](*inputs, **named)


def layout_of(columns: Sequence[Mapping[str, Any]] | None) -> Layout:
    """The layout of a data set with these `columns`."""
    return tuple((one["input"], tuple(one["shape"])) for one in (columns or ()) if has_inputs(columns))


def shapes(layout: Layout) -> Any:
    """What a callable that makes a module gets as the shape: {name: shape}, or a tuple of shapes in their order."""
    by_name = dict(layout)
    return tuple(by_name.values()) if 0 in by_name else by_name


def call(module: nn.Module, x: Tensor, layout: Layout) -> Any:
    """Outputs for rows [B, ...]; with a layout, `x` is vectors [B, F], and inputs go by name or in their order."""
    if not layout:
        return module(x)
    parts = x.flatten(1).split([math.prod(shape) for _, shape in layout], dim=1)
    inputs: dict[Any, Tensor] = {
        name: part.reshape(part.shape[0], *shape) for (name, shape), part in zip(layout, parts, strict=True)
    }
    return module(*inputs.values()) if 0 in inputs else module(**inputs)


def describe(layout: Layout) -> str:
    """The batches that a module gets, in words."""
    return " and ".join(f"{name}: [B, {', '.join(map(str, shape))}]" for name, shape in layout)
