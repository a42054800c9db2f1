"""How many clients score better, and how many worse, with a method than with local training."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from fedweave.results.paired_model import ROUNDING
from fedweave.results.runs import Run
from fedweave.results.selection import score_matrix

LOCAL = "Local"


def client_differences(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Run -> its score minus that of Local, of every client [N], in the unit of the score; as in `gains`."""
    return {name: _subtract(mean, base) for name, mean, base in _beside_local(runs, table)}


def gains(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Run -> `gain`, `loss`, `clients`: how many clients score better than with Local, worse, and have both scores.

    A client's score is its mean over seeds; it has none where a seed has no finite one. Where every seed has a split of
    its own, no client is counted: client 3 of one split is not client 3 of another, and has no mean.

    Args:
        runs: those of one task; nothing is returned for Local itself, or where it is missing.
        table: a table of `clients`.
    """
    sign, counts_by_run = 1.0 if runs[0].higher_is_better else -1.0, {}
    for name, mean, base in _beside_local(runs, table):
        difference = sign * _subtract(mean, base)
        if not np.isfinite(difference).any():
            continue
        counted = {"gain": difference > 0, "loss": difference < 0, "clients": np.isfinite(difference)}
        counts_by_run[name] = {key: float(clients.sum()) for key, clients in counted.items()}
    return counts_by_run


def _subtract(mean: pd.Series, base: pd.Series) -> np.ndarray:
    """The difference of each client [N]; 0 where it is a rounding error."""
    difference = (mean - base).to_numpy()
    largest = np.fmax(mean.abs(), base.abs()).to_numpy()
    return np.where(np.isfinite(largest) & (np.abs(difference) <= ROUNDING * largest), 0.0, difference)


def _beside_local(runs: Sequence[Run], table: pd.DataFrame) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """(run, its score of every client, that of Local) of all but Local, means over seeds; none where it is missing."""
    local = next((run for run in runs if run.label == LOCAL), None)
    if local is None or local.has_splits:
        return
    base = score_matrix(table, local.name).mean(skipna=False)
    for run in runs:
        if run is not local:
            yield run.name, score_matrix(table, run.name).mean(skipna=False), base
