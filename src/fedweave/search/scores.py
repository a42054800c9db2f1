"""The validation scores that a search sees, and which of two settings they tell apart."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from fedweave.runs import archive
from fedweave.runs.build import PreparedRun
from fedweave.runs.history import History, pad_scores

T = TypeVar("T")
Scores = Sequence[Sequence[float]] | np.ndarray


def reported_scores(prepared: PreparedRun, rows: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """(mean, validation score of each client [N]) of a run that ends after the evaluations `rows` [R, N].

    The run's own rule chooses the round, as for the reported scores: a round in which a client has no finite score is
    not chosen.
    """
    lists = [list(row) for row in rows]
    history = History(rounds=[*range(len(lists))], scores={f"{prepared.point}/val": lists})
    clients, is_scored = archive.select_scores(prepared, history, "val"), np.isfinite(pad_scores(lists)).any(0)
    return float(clients[is_scored].mean()) if is_scored.any() else math.nan, clients.tolist()


def is_within_one_error(best: Scores, other: Scores, higher_is_better: bool) -> bool:
    """Whether scores [S, N] of seeds and clients are worse than the best ones by at most one standard error.

    The standard error is that of the differences between the two over clients, averaged over seeds (the
    one-standard-error rule of Breiman et al., 1984, on pairs). With fewer than two clients they must be as good.
    """
    pairs = (np.array(best) - np.array(other)) * (1.0 if higher_is_better else -1.0)
    differences = pairs[:, np.isfinite(pairs).all(axis=0)].mean(axis=0)
    if len(differences) < 2:
        return bool((differences <= 0).all())
    return bool(differences.mean() <= differences.std(ddof=1) / math.sqrt(len(differences)))


def choose_first(
    options: Sequence[T], mean: Callable[[T], float], scores: Callable[[T], Scores], higher_is_better: bool
) -> T:
    """The first of `options` that is not worse than the best one by more than noise, as `is_within_one_error` says."""
    best = (max if higher_is_better else min)(options, key=mean)
    return next(one for one in options if is_within_one_error(scores(best), scores(one), higher_is_better))
