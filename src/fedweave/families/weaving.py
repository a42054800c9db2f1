"""The base class of methods with a collaboration graph, which a study may replace by a control."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedweave.engine.guards import returned
from fedweave.engine.protocol import Method
from fedweave.graphs.setting import PLAIN, STORED
from fedweave.graphs.weights import mix_models
from fedweave.settings import Words
from fedweave.tensors.trees import Params

CELLS = 2**22  # most weights of a graph that are made at once; a method has about twenty arrays of this size


def graph_values(*own: str) -> Words:
    """Values of `graph`: graphs of a method's `own`, and the controls."""
    return Words((*own, *PLAIN), {name: source.upper() for name, source in STORED.items()})


@dataclass(frozen=True, kw_only=True)
class Weaving(Method):
    """A method whose server has weights between clients.

    Every weight passes through `controlled` (or `controlled_row`, `controlled_edges`) after it is learned and before it
    is used, in `download`, `aggregate` and `collaboration` alike.
    """

    graph: Annotated[str, graph_values("learned"), "the learned graph, or a control that replaces it"] = "learned"

    # Values of `graph` that are not controls.
    own_graphs: ClassVar[tuple[str, ...]] = ("learned",)

    def controlled(self, weights: Tensor, ids: Tensor, available: Tensor | None = None) -> Tensor:
        """The weights [L, P, N] of clients `ids`: those that were learned, or those of the control.

        Args:
            available: [N] sources that have a model; by default all.
        """
        if self.control is None:
            return weights
        return self.control.weights(weights, ids, available).expand(len(self.task.layers), -1, -1)

    def mix_models(self, weights: Tensor, models: Params) -> Params:
        """Mixtures [P, ...] of `models` [N, ...] by weights [L, P, N] or [1, P, N], layer by layer."""
        if not models:
            return {}
        layers, model = len(self.task.layers), next(iter(models.values()))
        shape, sources = [*weights.shape], len(model)
        fits = len(shape) == 3 and shape[0] in (1, layers) and shape[2] == sources and weights.dtype == model.dtype
        right = f"[{layers} or 1, P, {sources}] of {model.dtype}: layers, learners (ids), sources, as the models"
        returned.check_tensor(f"{type(self).__name__}.mix_models: weights", weights, fits, right)
        return mix_models(weights, models, [*self.task.layers.values()])

    def controlled_row(self, weights: Tensor, ids: Tensor, available: Tensor | None = None, ahead: int = 0) -> Tensor:
        """`controlled` for one matrix [P, N] of the whole model.

        Args:
            ahead: 1 for weights that are made and used at the end of a round, because their graph is recorded after it.
        """
        if self.control is None:
            return weights
        return self.control.at(self.control.seed, self.control.round + ahead).matrix(weights, ids, available)

    def controlled_edges(self, edges: Tensor, clients: int, seed: int) -> Tensor:
        """The undirected edges [2, E] between `clients` clients: the method's own, or those of the control."""
        return edges if self.control is None else self.control.edges(edges, clients, seed)


def usable_sources(seen: Tensor) -> Tensor:
    """Sources, bool [N]: clients that have uploaded (`seen` [N]), or all clients before the first upload."""
    return seen | ~seen.any()


def all_ids(like: Tensor) -> Tensor:
    """Ids [N] of all clients of a table `like` [N, ...]."""
    return torch.arange(len(like), device=like.device)


def split_ids(ids: Tensor, width: int, rowwise: bool) -> tuple[Tensor, ...]:
    """`ids` [P] in parts of at most `CELLS` weights, with `width` weights per client; one part if not `rowwise`.

    Args:
        rowwise: whether the result of a client does not depend on the other clients of its part.
    """
    return ids.split(max(1, CELLS // width)) if rowwise else (ids,)
