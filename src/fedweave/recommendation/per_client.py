"""Does one client gain? Paired differences to another method on the client's own test rows."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.metrics import METRICS, Metric
from fedweave.results import Run, statistics
from fedweave.results.rescoring import predictions
from fedweave.runs.predictions import PredictionTable
from fedweave.tensors.random_streams import stream

DRAWS = 300  # of test rows, with replacement
NORMAL = 1.959964  # 0.975 quantile
COLUMNS = ["client", "method", "score", "local", "difference", "low", "high", "p", "verdict"]
GAINS, LOSES, UNDECIDED, SAME = "gains", "loses", "undecided", "no difference"


class PairedDifference(NamedTuple):
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
    base = results.score_matrix(chosen, local.name)
    for name, run in runs.items():
        if run is local:
            continue
        mine = results.score_matrix(chosen, run.name)
        pairs = dict(_paired_differences(run, local, mine, base))
        corrected = statistics.holm([pair.p for pair in pairs.values()])
        for (client, pair), p in zip(pairs.items(), corrected, strict=True):
            score, alone = mine[client].mean(), base[client].mean()
            verdict = _verdict(pair, float(p), run.higher_is_better)
            numbers = (pair.difference, pair.low, pair.high, float(p))
            rows.append(
                dict(zip(COLUMNS, (run.client_names[client], name, score, alone, *numbers, verdict), strict=True))
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _verdict(pair: PairedDifference, p: float, higher: bool) -> str:
    if not pair.low * pair.high > 0:
        return SAME
    if not p < statistics.ALPHA:
        return UNDECIDED
    return GAINS if (pair.difference > 0) == higher else LOSES


def losing_clients(run: Run, local: Run) -> list[int]:
    """Clients that do worse than with `local` on validation rows, beyond the 95 % interval of the difference.

    No test row takes part, so a test of what these clients deploy instead is a fair one.
    """
    base, mine = (results.validation_scores(one) for one in (local, run))
    sign = 1.0 if run.higher_is_better else -1.0
    pairs = _paired_differences(run, local, mine, base, test=False)
    return [client for client, pair in pairs if sign * (pair.high if sign > 0 else pair.low) < 0]


def _paired_differences(
    run: Run, local: Run, mine: pd.DataFrame, base: pd.DataFrame, test: bool = True
) -> Iterator[tuple[int, PairedDifference]]:
    """(client, its difference) for the clients that both runs have, on test rows or on validation rows.

    The spread over seeds is that of all clients together: a few seeds say little about a single client's.
    """
    metric, kind = METRICS.get(run.info["metric"]), str(run.info.get("targets", "classes"))
    seeds = sorted({*mine.index} & {*base.index})
    stored = {seed: (predictions(run, seed), predictions(local, seed)) for seed in seeds}
    answered = metric is not None and all(None not in pair for pair in stored.values())
    differences = (mine.loc[seeds] - base.loc[seeds]).dropna(axis="columns")
    over_seeds = float(differences.var(ddof=1).mean()) if len(seeds) > 1 else 0.0
    for client in differences.columns:
        over_rows = 0.0
        if answered and metric is not None:
            over_rows = _bootstrap_error(int(client), [*stored.values()], metric, kind, test)
        error = float(np.hypot(np.sqrt(over_seeds / len(seeds)), over_rows))
        yield int(client), z_test(float(differences[client].mean()), error)


def z_test(mean: float, error: float) -> PairedDifference:
    """A mean difference with its standard error as an interval and a p.

    >>> tuple(round(number, 2) for number in paired(2.0, 0.5)[:3])
    (2.0, 1.02, 2.98)
    """
    from scipy.special import ndtr

    if not error:
        return PairedDifference(mean, mean, mean, 1.0 if not mean else 0.0)
    low, high = mean - NORMAL * error, mean + NORMAL * error
    return PairedDifference(mean, low, high, float(2 * ndtr(-abs(mean) / error)))


def _bootstrap_error(client: int, stored: list[tuple], metric: Metric, kind: str, test: bool) -> float:
    """Standard error of a client's difference over its test or validation rows, averaged over seeds, by a bootstrap.

    Every draw takes the same rows for both methods and all seeds.
    """
    draws: list[np.ndarray] = []
    for first, second in stored:
        sides = [_client_rows(table, client, test) for table in (first, second)]
        count = len(sides[0][0])
        if count < 2 or len(sides[1][0]) != count:
            return 0.0
        places = stream(client, count).integers(count, size=(DRAWS, count))
        values = [_bootstrap_values(metric, kind, *side, places) for side in sides]
        draws.append((values[0] - values[1]) * np.sqrt(count / (count - 1)))
    return float(np.nanstd(np.mean(draws, axis=0)))


def _client_rows(table: PredictionTable, client: int, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """(targets, outputs) of a client's test or validation rows, in the order of the rows."""
    mine = np.flatnonzero((table.client == client) & (table.test == test))
    mine = mine[np.argsort(table.row[mine], kind="stable")]
    return table.targets[mine], table.outputs[mine]


def _bootstrap_values(
    metric: Metric, kind: str, targets: np.ndarray, outputs: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """The metric of rows drawn at `places` [B, M], one value a draw."""
    if metric.name == "accuracy":
        return np.asarray(100.0 * (outputs.argmax(-1) == targets)[places].mean(1))
    if metric.name == "mse":
        return np.asarray(((outputs - targets) ** 2).reshape(len(targets), -1).mean(1)[places].mean(1))
    return np.array([metric.value(kind, targets[rows], outputs[rows]) for rows in places])
