"""Does one client gain? Paired differences to another method on the client's own test rows."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.metrics import METRICS, Metric
from fedweave.results import Run, statistics
from fedweave.results.rescoring import predictions
from fedweave.tensors.random_streams import stream

DRAWS = 300  # of test rows, with replacement
NORMAL = 1.959964  # 0.975 quantile
COLUMNS = ["client", "method", "score", "local", "difference", "low", "high", "p", "verdict"]
GAINS, LOSES, UNDECIDED, SAME = "gains", "loses", "undecided", "no difference"


class Paired(NamedTuple):
    """A difference of one client, [low, high] its 95 % interval, and p of no difference."""

    difference: float
    low: float
    high: float
    p: float


def table(runs: Mapping[str, Run], local: Run, chosen: pd.DataFrame) -> pd.DataFrame:
    """One row per client and method: score, that of `local`, their difference and what can be said of it.

    `verdict` is "gains" or "loses" where the p of the client, corrected over the clients of the method (Holm), is below
    0.05 and the interval leaves out zero; "undecided" where only the interval does; else "no difference".

    Args:
        runs: name of a method -> its run; all of one task.
        chosen: the table of `results.clients`.
    """
    rows: list[dict[str, object]] = []
    base = results.matrix(chosen, local.name)
    for name, run in runs.items():
        if run is local:
            continue
        mine = results.matrix(chosen, run.name)
        pairs = dict(_pairs(run, local, mine, base))
        corrected = statistics.holm([pair.p for pair in pairs.values()])
        for (client, pair), p in zip(pairs.items(), corrected, strict=True):
            score, alone = mine[client].mean(), base[client].mean()
            verdict = _verdict(pair, float(p), run.higher_is_better)
            numbers = (pair.difference, pair.low, pair.high, float(p))
            rows.append(
                dict(zip(COLUMNS, (run.client_names[client], name, score, alone, *numbers, verdict), strict=True))
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _verdict(pair: Paired, p: float, higher: bool) -> str:
    if not pair.low * pair.high > 0:
        return SAME
    if not p < statistics.ALPHA:
        return UNDECIDED
    return GAINS if (pair.difference > 0) == higher else LOSES


def _pairs(run: Run, local: Run, mine: pd.DataFrame, base: pd.DataFrame) -> Iterator[tuple[int, Paired]]:
    """(client, its difference) for the clients that both runs have."""
    metric, kind = METRICS.get(run.info["metric"]), str(run.info.get("targets", "classes"))
    seeds = sorted({*mine.index} & {*base.index})
    stored = {seed: (predictions(run, seed), predictions(local, seed)) for seed in seeds}
    answered = metric is not None and all(None not in pair for pair in stored.values())
    for client in sorted({*mine.columns} & {*base.columns}):
        differences = (mine.loc[seeds, client] - base.loc[seeds, client]).to_numpy(dtype=np.float64)
        if not np.isfinite(differences).all():
            continue
        spread = 0.0
        if answered and metric is not None:
            spread = _over_rows(client, [*stored.values()], metric, kind)
        yield client, paired(differences, spread)


def paired(differences: np.ndarray, spread: float) -> Paired:
    """The mean of `differences` [S] over seeds, with an interval from their own spread and from that over test rows.

    Args:
        spread: standard error of the mean difference over test rows.

    >>> paired(np.array([2.0, 2.0]), 0.5)[:3]
    (2.0, 1.020018, 2.979982)
    """
    from scipy.special import ndtr

    mean, count = float(differences.mean()), len(differences)
    over_seeds = float(differences.std(ddof=1)) / np.sqrt(count) if count > 1 else 0.0
    error = float(np.hypot(over_seeds, spread))
    if not error:
        return Paired(mean, mean, mean, 1.0 if not mean else 0.0)
    low, high = mean - NORMAL * error, mean + NORMAL * error
    return Paired(mean, low, high, float(2 * ndtr(-abs(mean) / error)))


def _over_rows(client: int, stored: list[tuple], metric: Metric, kind: str) -> float:
    """Standard error of a client's difference over its test rows, averaged over seeds: a bootstrap of the rows.

    Every draw takes the same rows for both methods and all seeds.
    """
    draws: list[np.ndarray] = []
    for first, second in stored:
        sides = [_rows_of(table, client) for table in (first, second)]
        count = len(sides[0][0])
        if count < 2 or len(sides[1][0]) != count:
            return 0.0
        places = stream(client, count).integers(count, size=(DRAWS, count))
        values = [_drawn(metric, kind, *side, places) for side in sides]
        draws.append((values[0] - values[1]) * np.sqrt(count / (count - 1)))
    return float(np.nanstd(np.mean(draws, axis=0)))


def _rows_of(table: "results.rescoring.Stored", client: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[name-defined]
    """(targets, outputs) of a client's test rows, in the order of the rows."""
    mine = np.flatnonzero((table.client == client) & table.test)
    mine = mine[np.argsort(table.row[mine], kind="stable")]
    return table.targets[mine], table.outputs[mine]


def _drawn(metric: Metric, kind: str, targets: np.ndarray, outputs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The metric of rows drawn at `places` [B, M], one value a draw."""
    if metric.name == "accuracy":
        return np.asarray(100.0 * (outputs.argmax(-1) == targets)[places].mean(1))
    if metric.name == "mse":
        return np.asarray(((outputs - targets) ** 2).reshape(len(targets), -1).mean(1)[places].mean(1))
    return np.array([metric.value(kind, targets[rows], outputs[rows]) for rows in places])
