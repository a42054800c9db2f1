"""Choice of a few sources per client, by score or at random."""

import torch
from torch import Tensor

from fedweave.tensors import trees
from fedweave.tensors.trees import Params


def best_sources(scores: Tensor, available: Tensor, draws: Tensor, explores: Tensor) -> tuple[Tensor, Tensor]:
    """Sources [P, M] of every client, best slots first, and whether each can be used, bool [P, M].

    Random choices and ties are decided by `draws`, which depend on identities.

    Args:
        scores: [P, N].
        available: bool [P, N], sources that a client may get.
        draws: non-negative int64 [P, N].
        explores: bool [P, M], slots that are filled at random.
    """
    chosen, usable = [torch.zeros_like(draws[:, :0])], [available[:, :0]]
    for explore in explores.T:
        best = scores.masked_fill(~available, -torch.inf)
        eligible = available & ((best == best.amax(1, keepdim=True)) | explore[:, None])
        choice = draws.masked_fill(~eligible, -1).argmax(1, keepdim=True)
        usable.append(available.gather(1, choice))
        chosen.append(choice)
        available = available.scatter(1, choice, False)
    return torch.cat(chosen, 1), torch.cat(usable, 1)


def gather_models(models: Params, picks: Tensor) -> Params:
    """Rows `picks` [P, M] of `models` [N, ...]. They have one index, so that tables in files read no other rows."""
    return trees.tree_map(lambda t: t[picks.flatten()].unflatten(0, picks.shape), models)
