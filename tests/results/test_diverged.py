"""Runs that diverge with some seed, or for some client: they have no score, come last, and spoil nothing else."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import report, results
from tests.fake_results import write_study

BROKEN = "blobs-ditto"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of three methods, two of which are not broken."""
    return write_study(tmp_path / "results" / "toy", methods={"Ditto": 5.0, "FedAMP": 0.0, "Local": -5.0}, extras=False)


def spoil(folder: Path, run: str = BROKEN, seed: int = 0, by_turns: bool = False) -> None:
    """Take away the scores of a seed, or those of one client or another in every round."""
    file = folder / "runs" / run / "evaluations.parquet"
    table = pd.read_parquet(file)
    mine = table["seed"] == seed
    if by_turns:
        mine &= table["client"] == table["round"] % (table["client"].max() + 1)
    table.loc[mine, "value"] = np.nan
    table.to_parquet(file, index=False)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_diverged_seed_leaves_the_study_readable(folder: Path, by_turns: bool) -> None:
    spoil(folder, by_turns=by_turns)
    board = results.write(folder).board.set_index("run")
    assert np.isnan(board["mean"][BROKEN])
    assert board["mark"][BROKEN] == "diverged"
    assert np.isfinite(board["mean"].drop(BROKEN)).all()
    assert report.build(folder).is_file()


@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.parametrize("run", [BROKEN, "blobs-fedamp", "blobs-local"])
def test_a_method_that_has_diverged_is_never_the_best(folder: Path, run: str, by_turns: bool) -> None:
    """Wherever it stands, and however good its other seeds are."""
    spoil(folder, run, by_turns=by_turns)
    best = fw.load(folder).best()
    assert best.name == ("fedamp" if run == BROKEN else "ditto")
