"""Whether single clients gain: paired differences between two methods on each client's own test rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.metrics import METRICS, Metric, row_values
from fedweave.results import Run, holm, statistics
from fedweave.results.paired_model import moderate
from fedweave.results.rescoring import predictions
from fedweave.runs.predictions import PredictionTable
from fedweave.tensors.random_streams import stream

DRAWS = 300  # bootstrap samples of a client's rows
QUANTILE = 0.975
COLUMNS = ["client", "method", "score", "local", "difference", "low", "high", "p", "verdict"]
GAINS, LOSES, OPEN = "gains", "loses", "open"


class PairedDifference(NamedTuple):
    """The difference of one client, its 95 % interval [low, high], the p-value of no difference, the standard error.

    The interval and the error are NaN where the spread over the client's rows is not known; p is 1 then.
    """

    difference: float
    low: float
    high: float
    p: float
    error: float


# None or a seed -> client -> its difference, by all seeds or by all but this one.
ValidationDifferences = Mapping[int | None, Mapping[int, PairedDifference]]


def table(runs: Mapping[str, Run], local: Run, client_scores: pd.DataFrame) -> pd.DataFrame:
    """One row per client and method: its score, that of `local`, their difference, and a verdict on it.

    `verdict` is "gains" or "loses" if the interval leaves out zero and the p-value of the client, corrected over the
    clients of the method (Holm), is below 0.05; else "open": neither is shown. So it is with one seed or two: another
    one may have the opposite sign.

    Args:
        runs: name of a method -> its run; all of one task.
        client_scores: the table of `results.clients`.
    """
    rows: list[dict[str, object]] = []
    local_scores = results.score_matrix(client_scores, local.name)
    for name, run in runs.items():
        if run is local:
            continue
        scores = results.score_matrix(client_scores, run.name)
        pairs = dict(_paired_differences(run, local, scores, local_scores))
        corrected = holm.adjust([pair.p for pair in pairs.values()])
        for (client, pair), p in zip(pairs.items(), corrected, strict=True):
            score, alone = scores[client].mean(), local_scores[client].mean()
            verdict = _verdict(pair, float(p), run.higher_is_better) if len(scores) >= statistics.LEAST_SEEDS else OPEN
            numbers = (pair.difference, pair.low, pair.high, float(p))
            rows.append(
                dict(zip(COLUMNS, (run.client_names[client], name, score, alone, *numbers, verdict), strict=True))
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _verdict(pair: PairedDifference, p: float, higher_is_better: bool) -> str:
    if not pair.low * pair.high > 0 or not p < statistics.ALPHA:
        return OPEN
    return GAINS if (pair.difference > 0) == higher_is_better else LOSES


def validation_differences(run: Run, other: Run) -> ValidationDifferences:
    """The differences between two methods on the validation rows of each client; from three seeds on also by all seeds
    but one.

    Test rows are not used, so that they can still test fairly what is chosen by these differences. A seed does to test
    rows what it does to validation rows, so a choice is tested fairly on a seed that has no part in it.
    """
    scores, other_scores = (results.validation_scores(one) for one in (run, other))
    differences, seeds = _subtract_scores(scores, other_scores)
    errors = _row_errors(run, other, seeds, differences.columns, test=False)
    left_out: list[int | None] = [None, *(seeds if len(seeds) >= statistics.LEAST_SEEDS else ())]
    return {
        seed: dict(_test_clients(differences if seed is None else differences.drop(index=seed), errors))
        for seed in left_out
    }


def losing_clients(pairs: Mapping[int, PairedDifference], higher_is_better: bool) -> list[int]:
    """Clients that do worse, by a test without a correction for their number; `pairs` are their differences."""
    return [
        client
        for client, pair in pairs.items()
        if (pair.high < 0 if higher_is_better else pair.low > 0) and pair.p < statistics.ALPHA
    ]


def _paired_differences(
    run: Run, local: Run, scores: pd.DataFrame, local_scores: pd.DataFrame
) -> Iterator[tuple[int, PairedDifference]]:
    """(client, its difference) on test rows, for the clients that both runs have."""
    differences, seeds = _subtract_scores(scores, local_scores)
    yield from _test_clients(differences, _row_errors(run, local, seeds, differences.columns, test=True))


def _subtract_scores(scores: pd.DataFrame, local_scores: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
    """(differences of the scores of the clients [S, N], without those that have none in a seed; seeds of both)."""
    seeds = sorted({*scores.index} & {*local_scores.index})
    return (scores.loc[seeds] - local_scores.loc[seeds]).dropna(axis="columns"), seeds


def _row_errors(
    run: Run, local: Run, seeds: Sequence[int], clients: Iterable[int], test: bool
) -> dict[int, tuple[float, int]]:
    """Client -> what `_bootstrap_error` gives, of test rows or of validation rows; (NaN, 0) without predictions."""
    metric, kind = METRICS.get(run.info["metric"]), str(run.info.get("targets", "classes"))
    tables = [(predictions(run, seed), predictions(local, seed)) for seed in seeds]
    if metric is None or any(None in pair for pair in tables):
        return dict.fromkeys(clients, (np.nan, 0))
    return {client: _bootstrap_error(int(client), tables, metric, kind, test) for client in clients}


def _test_clients(
    differences: pd.DataFrame, errors: Mapping[int, tuple[float, int]]
) -> Iterator[tuple[int, PairedDifference]]:
    """(client, its difference) from `differences` [S, N] and from the errors of rows of each.

    A few seeds say little about the spread of a single client, and small clients vary more than others. So its variance
    is moderated by those of all clients. The p-value is never below `least_p`, as a few rows of which all differ alike
    show no spread.
    """
    seed_variances, freedom = _moderate(differences.to_numpy())
    for client, seed_variance in zip(differences.columns, seed_variances / len(differences), strict=True):
        row_error, rows = errors[client]
        parts = np.array([seed_variance, row_error**2])
        pair = t_test(float(differences[client].mean()), parts, np.array([freedom, max(1, rows - 1)]))
        yield int(client), pair._replace(p=float(np.fmax(pair.p, least_p(rows))))


def least_p(rows: int) -> float:
    """The smallest p-value that a paired test of the signs of `rows` differences can have: all signs are alike.

    >>> least_p(1), least_p(5)
    (1.0, 0.0625)
    """
    return min(1.0, 2.0 ** (1 - rows))


def _moderate(differences: np.ndarray) -> tuple[np.ndarray, float]:
    """(variance between seeds of each client [N], its degrees of freedom) from `differences` [S, N]: a weighted mean of
    its own variance and that of all clients, as in `paired_model`.
    """
    seeds, clients = differences.shape
    if seeds < 2:
        return np.zeros(clients), 1.0
    own = differences.var(axis=0, ddof=1)
    variances, common_freedom, _ = moderate(own, own, seeds - 1)
    return variances, common_freedom + seeds - 1


def t_test(mean: float, variances: np.ndarray, freedoms: np.ndarray) -> PairedDifference:
    """The 95 % interval and the p-value of a mean difference whose variance is the sum of independent `variances` [P],
    known with `freedoms` [P], by Satterthwaite's rule.

    >>> tuple(round(number, 2) for number in t_test(2.0, np.array([0.25]), np.array([10]))[:3])
    (2.0, 0.89, 3.11)
    """
    from scipy.special import stdtr, stdtrit

    variance = float(variances.sum())
    if not variance:
        return PairedDifference(mean, mean, mean, 1.0 if not mean else 0.0, 0.0)
    freedom, error = variance**2 / float((variances**2 / freedoms).sum()), float(np.sqrt(variance))
    margin = float(stdtrit(freedom, QUANTILE)) * error
    return PairedDifference(mean, mean - margin, mean + margin, float(2 * stdtr(freedom, -abs(mean) / error)), error)


def _bootstrap_error(client: int, tables: list[tuple], metric: Metric, kind: str, test: bool) -> tuple[float, int]:
    """(standard error of a client's difference, averaged over seeds, by a bootstrap of its test or validation rows;
    number of these rows). The error of fewer than two rows is NaN.

    Every bootstrap sample has the same rows for both methods and all seeds.
    """
    differences: list[np.ndarray] = []
    count = 0
    for first, second in tables:
        rows_of_methods = [_client_rows(table, client, test) for table in (first, second)]
        count = len(rows_of_methods[0][0])
        if count < 2 or len(rows_of_methods[1][0]) != count:
            return np.nan, count
        draws = stream(client, count).integers(count, size=(DRAWS, count))
        values = [_bootstrap_values(metric, kind, *rows, draws) for rows in rows_of_methods]
        differences.append((values[0] - values[1]) * np.sqrt(count / (count - 1)))
    return float(np.nanstd(np.mean(differences, axis=0))), count


def _client_rows(table: PredictionTable, client: int, test: bool) -> tuple[np.ndarray, np.ndarray]:
    """(targets, outputs) of a client's test or validation rows, in the order of the rows."""
    positions = np.flatnonzero((table.client == client) & (table.test == test))
    positions = positions[np.argsort(table.row[positions], kind="stable")]
    return table.targets[positions], table.outputs[positions]


def _bootstrap_values(
    metric: Metric, kind: str, targets: np.ndarray, outputs: np.ndarray, draws: np.ndarray
) -> np.ndarray:
    """The metric of each bootstrap sample; `draws` [B, M] are the positions of its rows."""
    values = row_values(metric.name, targets, outputs)
    if values is not None:
        return np.asarray(values[draws].mean(1))
    return np.array([metric.value(kind, targets[rows], outputs[rows]) for rows in draws])
