"""Choice of a few sources per client, by score or at random."""

import torch
from torch import Tensor

from fedweave.tensors import trees
from fedweave.tensors.trees import Params


def best_sources(scores: Tensor, free: Tensor, draws: Tensor, explores: Tensor) -> tuple[Tensor, Tensor]:
    """Sources [P, M] of every client, best slots first, and which of them can be used [P, M].

    Random choices and ties are decided by `draws`, which depend on identities.

    Args:
        scores: [P, N].
        free: bool [P, N], sources that a client may have.
        draws: non-negative int64 [P, N].
        explores: bool [P, M], slots that are filled at random.
    """
    chosen, live = [torch.zeros_like(draws[:, :0])], [free[:, :0]]
    for explore in explores.T:
        best = scores.masked_fill(~free, -torch.inf)
        eligible = free & ((best == best.amax(1, keepdim=True)) | explore[:, None])
        pick = draws.masked_fill(~eligible, -1).argmax(1, keepdim=True)
        live.append(free.gather(1, pick))
        chosen.append(pick)
        free = free.scatter(1, pick, False)
    return torch.cat(chosen, 1), torch.cat(live, 1)


def gather_models(models: Params, picks: Tensor) -> Params:
    """Rows `picks` [P, M] of `models` [N, ...], with one index: tables in files then read no other rows."""
    return trees.tree_map(lambda t: t[picks.flatten()].unflatten(0, picks.shape), models)
