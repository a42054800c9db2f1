"""How many clients score better, and how many worse, with a method than with local training."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedweave.results.formats import DIGITS
from fedweave.results.runs import Run
from fedweave.results.selection import score_matrix

LOCAL = "Local"


def client_differences(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Run -> its score minus that of Local, of every client [N], in the unit of the score; as in `gains`."""
    local = next((run for run in runs if run.label == LOCAL), None)
    if local is None or local.has_splits:
        return {}
    base = score_matrix(table, local.name).mean(skipna=False)
    means = {run.name: score_matrix(table, run.name).mean(skipna=False) for run in runs if run is not local}
    return {name: (mean - base).to_numpy() for name, mean in means.items()}


def gains(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Run -> `gain`, `loss`, `clients`: how many clients score better than with Local, worse, and have both scores.

    A client's score is its mean over seeds; it has none where a seed has no finite one. Where every seed has a split of
    its own, no client is counted: client 3 of one split is not client 3 of another, and has no mean.

    Args:
        runs: those of one task; nothing is returned for Local itself, or where it is missing.
        table: a table of `clients`.
    """
    local = next((run for run in runs if run.label == LOCAL), None)
    if local is None or local.has_splits:
        return {}
    base, sign = score_matrix(table, local.name).mean(skipna=False), 1.0 if local.higher_is_better else -1.0
    counts_by_run = {}
    for run in runs:
        mean = score_matrix(table, run.name).mean(skipna=False)
        difference = (sign * (mean - base) / (mean.abs().max() or 1.0)).round(DIGITS).to_numpy()
        if run is local or not np.isfinite(difference).any():
            continue
        counts = {
            "gain": (difference > 0).sum(),
            "loss": (difference < 0).sum(),
            "clients": np.isfinite(difference).sum(),
        }
        counts_by_run[run.name] = {name: float(count) for name, count in counts.items()}
    return counts_by_run
