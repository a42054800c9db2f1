"""Low-rank adapters of different ranks: a client uses the first rows of A and columns of B that it gets.

The others are 0 at the client, and as both factors are 0 there, no gradient changes them. So its upload is padded with
zeros up to the common rank (HetLoRA, arXiv:2401.06432), and neither direction sends them.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from fedweave.client.data import ClientData
from fedweave.client.task import Task
from fedweave.engine.protocol import ClientState
from fedweave.models.adapters import low_ranks
from fedweave.tensors.trees import Tree, flatten_paths

RANKS = "adapter_rank"  # name of the array with the rank of every client, int64 [N]


def cut(
    task: Task, shared: Tree, own: Tree, client: ClientState, data: ClientData
) -> tuple[Tree, Tree, ClientState, ClientData]:
    """The arguments of a client's hooks, with adapters of its rank."""
    if RANKS not in data.arrays:
        return shared, own, client, data
    rank, axes = data.arrays[RANKS], _axes(task.template)
    return _cut(shared, rank, axes), _cut(own, rank, axes), _cut(client, rank, axes), data


def unsent_bytes(task: Task, ranks: Tensor | None, common: Tree, own: Tree) -> int:
    """Bytes of zeros in a tree that all participants get, and in a tree [P, ...] of each of them.

    Args:
        ranks: [P] of the participants, or None if all have the common rank.
    """
    if ranks is None:
        return 0
    total, axes = 0, _axes(task.template)
    for tree, rows in ((common, 1), (own, len(ranks))):
        for path, value in flatten_paths(tree).items():
            axis = axes.get(path.rpartition("/")[2])
            if axis is not None and isinstance(value, Tensor):
                column = value.numel() // rows // value.shape[axis]
                total += 4 * column * int((value.shape[axis] - ranks).sum())
    return total


@lru_cache(maxsize=64)
def _axes(network: nn.Module) -> dict[str, int]:
    """Name of each factor -> its axis of ranks."""
    return {f"{path}.{factor}": axis for path in low_ranks(network) for factor, axis in (("A", -2), ("B", -1))}


def _cut(tree: Tree, rank: Tensor, axes: dict[str, int]) -> Tree:
    if not isinstance(tree, dict):
        return tree
    return {
        name: _cut_factor(value, rank, axes[name])
        if name in axes and isinstance(value, Tensor)
        else _cut(value, rank, axes)
        for name, value in tree.items()
    }


def _cut_factor(value: Tensor, rank: Tensor, axis: int) -> Tensor:
    kept = torch.arange(value.shape[axis], device=value.device) < rank
    return torch.where(kept[:, None] if axis == -2 else kept, value, 0.0)
