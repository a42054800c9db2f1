"""How many clients a method helps and how many it hurts, measured against training alone."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedweave.results.runs import Run
from fedweave.results.selection import score_matrix

ALONE = "Local"


def gains(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Run -> `gain`, `loss`, `clients`: how many clients score better than with Local, worse, and have both scores.

    A client's score is its mean over seeds; it has none where a seed has no finite one. Where every seed has a split of
    its own, nobody is counted: client 3 of one split is not client 3 of another, and has no mean.

    Args:
        runs: those of one task; nothing is returned for Local itself, or where it is missing.
        table: a table of `clients`.
    """
    alone = next((run for run in runs if run.label == ALONE), None)
    if alone is None or alone.has_splits:
        return {}
    base, sign = score_matrix(table, alone.name).mean(skipna=False), 1.0 if alone.higher_is_better else -1.0
    counts_of = {}
    for run in runs:
        difference = sign * (score_matrix(table, run.name).mean(skipna=False) - base).to_numpy()
        if run is alone or not np.isfinite(difference).any():
            continue
        counts = {
            "gain": (difference > 0).sum(),
            "loss": (difference < 0).sum(),
            "clients": np.isfinite(difference).sum(),
        }
        counts_of[run.name] = {name: float(count) for name, count in counts.items()}
    return counts_of
