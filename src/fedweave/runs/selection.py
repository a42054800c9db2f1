"""Statistics over clients and seeds, and the choice of the round that is reported."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedweave.errors import BadInput, choose

RULES = ("best_val_round", "per_client_best_val", "last", "best_test_round")
LEAKY = "best_test_round"


class Summary(NamedTuple):
    """A metric over clients: unweighted mean, standard deviation (ddof 0, as all clients are included), worst tenth."""

    mean: float
    client_std: float
    worst10: float


class RunSummary(NamedTuple):
    """A run in four numbers: mean and standard deviation over seeds (ddof 1; NaN for one seed) of the mean over
    clients, and the seeds' average spread over clients and worst tenth.
    """

    mean: float
    std: float
    client_std: float
    worst10: float


def summarise(values: np.ndarray, higher_is_better: bool = True) -> Summary:
    """Mean, spread and worst tenth (at least one client) of `values` [N]; a NaN client makes all three NaN."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise BadInput("values", f"shape {values.shape} is not one value per client; pass [N] with N >= 1")
    worst = np.sort(values if higher_is_better else -values)[: max(1, values.size // 10)]
    mean = worst.mean() if higher_is_better else -worst.mean()
    return Summary(float(values.mean()), float(values.std()), float(mean if np.isfinite(values).all() else np.nan))


def finite_mean(values: np.ndarray) -> float:
    """The mean of the finite entries of `values` [N]; NaN where there is none, such as without validation rows."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else np.nan


def summarise_run(values: np.ndarray, higher_is_better: bool = True) -> RunSummary:
    """`values` [S, N] of seeds and clients as the numbers that are reported."""
    means, spreads, worst = np.array([summarise(row, higher_is_better) for row in values]).T
    std = float(means.std(ddof=1)) if len(means) > 1 else np.nan
    return RunSummary(float(means.mean()), std, float(spreads.mean()), float(worst.mean()))


def select(
    val: np.ndarray,
    rounds: Sequence[int] | np.ndarray,
    rule: str,
    higher_is_better: bool,
    test: np.ndarray | None = None,
) -> np.ndarray | None:
    """Row of `val` [R, N] to report for each client: int64 [N], positions along R (use `rounds[...]` for the round).

    None if no row can be chosen: in every row, a client that has a finite value elsewhere has none. This happens if
    training fails for some clients, and is not an error of the input.

    `best_val_round` takes the row with the best unweighted mean over clients, `per_client_best_val` the best row of
    each client, `last` the highest round. Ties go to the earliest round. A row with a non-finite value is never chosen
    by a best-of rule. Clients without any finite value (no validation rows) have no vote and get the common row.
    `best_test_round` reads `test` [R, N] instead: leakage, for a column of its own, never for a headline.

    Raises:
        BadInput: unknown rule, or shapes that do not match.
    """
    choose(rule, RULES, "evaluate.select")
    scores = np.asarray(test if rule == LEAKY else val, dtype=np.float64)
    order = np.argsort(np.asarray(rounds), kind="stable")
    if scores.ndim != 2 or len(order) != len(scores) or scores.size == 0:
        key = "test" if rule == LEAKY else "val"
        raise BadInput(key, f"shape {scores.shape} does not match {len(order)} rounds; pass [rounds, clients]")
    if rule == "last":
        return np.full(scores.shape[1], order[-1])
    ordered = np.where(np.isfinite(scores), scores if higher_is_better else -scores, np.nan)[order]
    voters = np.isfinite(ordered).any(0)
    chosen = np.zeros(scores.shape[1], dtype=np.int64)
    if rule != "per_client_best_val" or not voters.all():
        common = _best_row(ordered[:, voters])
        if common is None:
            return None
        chosen[:] = common
    if rule == "per_client_best_val":
        chosen[voters] = np.nanargmax(ordered[:, voters], axis=0)
    return order[chosen]


def _best_row(scores: np.ndarray) -> int | None:
    """First row of `scores` [R, N] with the highest mean among rows without NaN; None if every row has some."""
    usable = np.isfinite(scores).all(1) if scores.shape[1] else np.zeros(len(scores), dtype=bool)
    if not usable.any():
        return None
    return int(np.where(usable, np.where(usable[:, None], scores, 0.0).mean(1), -np.inf).argmax())
