"""Scores of one client, statistics over clients, and the choice of the round that is reported."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput, choose

RULES = ("best_val_round", "per_client_best_val", "last", "best_test_round")
LEAKY = "best_test_round"


class Summary(NamedTuple):
    """A metric over clients: unweighted mean, standard deviation (ddof 0: all clients are there), worst tenth."""

    mean: float
    client_std: float
    worst10: float


def masked_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of `values` [..., B] over rows, weighted by `mask` [..., B] (bool, or weights >= 0); NaN without any row."""
    if mask is None:
        return values.mean(-1)
    weight = mask.to(values.dtype)
    return (torch.where(weight > 0, values, 0.0) * weight).sum(-1) / weight.sum(-1)


def accuracy(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Percentage of rows [...] whose largest entry of `logits` [..., B, C] is `targets` [..., B]."""
    return 100.0 * masked_mean((logits.argmax(-1) == targets).to(logits.dtype), mask)


def mse(outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean squared error [...] over rows and steps of `outputs` and `targets` [..., B, T]."""
    return masked_mean((outputs - targets).square().mean(-1), mask)


def summarise(values: np.ndarray, higher_is_better: bool = True) -> Summary:
    """Mean, spread and worst tenth (at least one client) of `values` [N]; a NaN client makes all three NaN."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise BadInput(f"values: shape {values.shape} is not one value per client; pass [N] with N >= 1")
    worst = np.sort(values if higher_is_better else -values)[: max(1, values.size // 10)]
    mean = worst.mean() if higher_is_better else -worst.mean()
    return Summary(float(values.mean()), float(values.std()), float(mean if np.isfinite(values).all() else np.nan))


def select(
    val: np.ndarray, rounds: Sequence[int] | np.ndarray, rule: str, higher_is_better: bool, test: np.ndarray | None = None
) -> np.ndarray:
    """Row of `val` [R, N] to report for each client: int64 [N], positions along R (use `rounds[...]` for the round).

    `best_val_round` takes the row with the best unweighted mean over clients, `per_client_best_val` the best row of
    each client, `last` the highest round. Ties go to the earliest round. A row with a non-finite value is never chosen
    by a best-of rule; clients without any finite value (no validation rows) do not vote and follow the common row.
    `best_test_round` reads `test` [R, N] instead: leakage, for a column of its own, never for a headline.

    Raises:
        BadInput: unknown rule, shapes that do not match, or no row that can be chosen.
    """
    choose(rule, RULES, "evaluate.select")
    scores = np.asarray(test if rule == LEAKY else val, dtype=np.float64)
    order = np.argsort(np.asarray(rounds), kind="stable")
    if scores.ndim != 2 or len(order) != len(scores) or scores.size == 0:
        key = "test" if rule == LEAKY else "val"
        raise BadInput(f"{key}: shape {scores.shape} does not match {len(order)} rounds; pass [rounds, clients]")
    if rule == "last":
        return np.full(scores.shape[1], order[-1])
    ordered = np.where(np.isfinite(scores), scores if higher_is_better else -scores, np.nan)[order]
    voters = np.isfinite(ordered).any(0)
    if rule != "per_client_best_val" or not voters.all():
        chosen = np.full(scores.shape[1], _best_row(ordered[:, voters]))
    else:
        chosen = np.zeros(scores.shape[1], dtype=np.int64)
    if rule == "per_client_best_val":
        chosen[voters] = np.nanargmax(ordered[:, voters], axis=0)
    return order[chosen]


def _best_row(scores: np.ndarray) -> int:
    """First row of `scores` [R, N] with the highest mean among rows without NaN."""
    usable = np.isfinite(scores).all(1) if scores.shape[1] else np.zeros(len(scores), dtype=bool)
    if not usable.any():
        raise BadInput("val: no evaluated round has a finite value of every client; lower train.lr, or evaluate.select: last")
    return int(np.where(usable, np.where(usable[:, None], scores, 0.0).mean(1), -np.inf).argmax())
