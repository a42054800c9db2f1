"""The rounds that count: those with the best validation score, the last ones, and those with both kinds of scores."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave.results import selection
from fedweave.results.runs import Run

ROUNDS = [2, 4, 6, 10]


def run(higher: bool, **parts: list[pd.DataFrame]) -> Run:
    """A run with the scores [round, client] of each split, as a list with a table for each seed."""
    rows = [
        table.rename_axis("round")
        .melt(ignore_index=False, var_name="client")
        .reset_index()
        .assign(seed=seed, split=split)
        for split, tables in parts.items()
        for seed, table in enumerate(tables)
    ]
    evaluations = pd.concat(rows).assign(point="post")
    info = {"point": "post", "select": "last", "higher_is_better": higher}
    return Run(Path(), info, evaluations, *[pd.DataFrame()] * 3)


@pytest.mark.parametrize("higher", [True, False])
def test_progress_is_that_of_validation(higher: bool) -> None:
    """For each seed the best mean over clients. A diverged seed does not count."""
    rng, sign = np.random.default_rng(0), 1.0 if higher else -1.0
    val, test = ([pd.DataFrame(rng.normal(size=(4, 3)), ROUNDS) for _ in range(6)] for _ in range(2))
    val[0].loc[10], val[1].loc[2], val[5].loc[:] = 9 * sign, 9 * sign, np.nan
    test[1].loc[10] = 99 * sign
    best = [int((sign * table.mean(axis=1)).idxmax()) for table in val[:5]]
    assert best[:2] == [10, 2]
    progress = selection.progress(run(higher, val=val, test=test))
    assert progress == {"best_round": np.mean(best), "at_last": best.count(10)}


def test_half_of_the_seeds_at_the_last_round_is_not_converged() -> None:
    board = pd.DataFrame({"at_last": [0, 1, 1, 2, 2, 1], "seeds": [1, 1, 2, 3, 5, 3]})
    assert selection.unconverged_rows(board).index.tolist() == [1, 2, 3]


def test_a_round_without_validation_scores_is_never_reported() -> None:
    tables = {"val": pd.DataFrame([[1.0], [2.0]], [1, 2]), "test": pd.DataFrame([[5.0], [6.0], [7.0]], [1, 2, 3])}
    chosen = selection.select_scores(run(True, **{split: [table] for split, table in tables.items()}))
    assert chosen[["round", "value"]].to_numpy().tolist() == [[2.0, 6.0]]
