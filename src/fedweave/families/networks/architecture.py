"""A network of the server as a value: equal settings give equal architectures, which share one module."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from fedweave.client.functional import invoke
from fedweave.tensors.trees import Params


@dataclass(frozen=True)
class Architecture:
    """A class of modules with its settings; calling it makes a new module, with parameters of its own.

    Attributes:
        kind: the class.
        args, options: its arguments.
    """

    kind: Callable[..., nn.Module]
    args: tuple[Hashable, ...]
    options: tuple[tuple[str, Hashable], ...]

    def __call__(self) -> nn.Module:
        return self.kind(*self.args, **dict(self.options))

    @property
    def meta_module(self) -> nn.Module:
        """The module without memory for parameters.

        Its first use must be outside of mapped functions, in which no module may be initialised.
        """
        return _build_meta_module(self)

    def run(self, params: Params, *inputs: Any, method: str = "forward", **options: Any) -> Any:
        """Run `method` of the network with `params`."""
        return invoke(self.meta_module, params, method, *inputs, **options)


def architecture(kind: Callable[..., nn.Module], *args: Any, **options: Any) -> Architecture:
    """The architecture of `kind(*args, **options)`; mappings, such as shapes by name, become pairs."""
    return Architecture(kind, tuple(map(_to_hashable, args)), tuple((k, _to_hashable(v)) for k, v in options.items()))


def _to_hashable(value: Any) -> Hashable:
    return tuple(value.items()) if isinstance(value, Mapping) else value


@lru_cache(maxsize=64)
def _build_meta_module(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()
