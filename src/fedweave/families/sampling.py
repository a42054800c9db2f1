"""Choice of a few sources per client, by score or at random, and the scores of their models (FedFomo)."""

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.task import Task
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


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


def append_model(models: Params, model: Params) -> Params:
    """`models` [M, ...] and the same parameters of `model` as the last one [M + 1, ...]."""
    return {name: torch.cat([rows, model[name][None]]) for name, rows in models.items()}


def first_order_gains(task: Task, client: Tree, models: Params, data: ClientData) -> Tensor:
    """(L(θ⁰) − L(θ_j)) / ‖θ_j − θ⁰‖ [M] of `models` [M, ...] on the validation rows, where θ⁰ is the client's "base".

    What the models lack, such as BatchNorm statistics, is that of the client's "model" (Zhang et al., equation 4).
    """
    base, count = client["base"], len(next(iter(models.values())))
    rated = (base, *(trees.at(models, j) for j in range(count)))
    outputs = (task.predict({**client["model"], **model}, data, data.val) for model in rated)
    losses = torch.stack([task.mean_loss(out, data, data.val) for out in outputs])
    gaps = sum((models[name] - base[name]).flatten(1).square().sum(1) for name in task.params)
    return (losses[0] - losses[1:]) / gaps.sqrt().clamp(min=1e-12)
