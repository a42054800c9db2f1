"""Runs that diverge with some seed, or for some client, have no score and come last. Other runs are unchanged."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import report, results
from fedweave.results import statistics
from tests.fake_results import write_study

BROKEN = "blobs-ditto"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of three methods; two of them stay complete."""
    return write_study(tmp_path / "results" / "toy", methods={"Ditto": 5.0, "FedAMP": 0.0, "Local": -5.0}, extras=False)


def remove_scores(folder: Path, run: str = BROKEN, seed: int = 0, by_turns: bool = False) -> None:
    """Remove the scores of a seed, or in each round those of another client."""
    file = folder / "runs" / run / "evaluations.parquet"
    table = pd.read_parquet(file)
    mine = table["seed"] == seed
    if by_turns:
        mine &= table["client"] == table["round"] % (table["client"].max() + 1)
    table.loc[mine, "value"] = np.nan
    table.to_parquet(file, index=False)


@pytest.mark.parametrize("by_turns", [False, True])
def test_a_diverged_seed_leaves_the_study_readable(folder: Path, by_turns: bool) -> None:
    remove_scores(folder, by_turns=by_turns)
    board = results.write(folder).board.set_index("run")
    assert np.isnan(board["mean"][BROKEN])
    assert board["mark"][BROKEN] == "diverged"
    assert np.isfinite(board["mean"].drop(BROKEN)).all()
    assert report.build(folder).is_file()


def test_no_number_is_a_mean_over_the_remaining_seeds(folder: Path) -> None:
    """One client of one seed has no finite score. Its score, the mean as received, and its gain are missing too."""
    file = folder / "runs" / BROKEN / "evaluations.parquet"
    table = pd.read_parquet(file)
    table.loc[(table["seed"] == 0) & (table["client"] == 2) & (table["split"] == "test"), "value"] = np.nan
    table.to_parquet(file, index=False)
    row = results.write(folder).board.set_index("run").loc[BROKEN]
    assert np.isnan(row[["mean", "pre", "post"]].to_numpy(dtype=float)).all()
    assert row["clients"] == 11
    broken = fw.load(folder)["ditto"]
    assert broken.scores.isna().to_numpy().nonzero()[0].tolist() == [2]
    assert "accuracy nan over 12 clients" in repr(broken)


@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.parametrize("run", [BROKEN, "blobs-fedamp", "blobs-local"])
def test_a_method_that_has_diverged_is_never_the_best(folder: Path, run: str, by_turns: bool) -> None:
    """This holds for any rank, and for any scores of its other seeds."""
    remove_scores(folder, run, by_turns=by_turns)
    best = fw.load(folder).best()
    assert best.name == ("fedamp" if run == BROKEN else "ditto")


def test_a_diverged_seed_leaves_no_means_and_no_graph(folder: Path) -> None:
    """Means that lack a seed are missing. Graphs are those of the remaining seeds."""
    file = folder / "runs" / "blobs-fedamp" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "cohorts": {"newcomers": [0, 1]}}))
    before = results.write(folder)
    remove_scores(folder, "blobs-fedamp", seed=1)
    after = results.write(folder)
    assert after.board.set_index("run").loc["blobs-fedamp", ["pre", "post"]].isna().all()
    assert before.cohorts["mean"].notna().all()
    assert len(after.cohorts) == len(before.cohorts)
    assert after.cohorts["mean"].isna().all()
    final = after.measures[(after.measures["run"] == "blobs-fedamp") & (after.measures["stage"] == "final")]
    assert {*final["seeds"]} == {2}
    loaded = results.load_study(folder)
    chosen = results.clients(loaded)
    run = next(run for run in loaded.runs if run.name == "blobs-fedamp")
    rows, stored = chosen[chosen["run"] == run.name], results.graphs_by_seed(run)
    assert [graph.seed for graph, _ in results.reported_graphs(run, rows, stored)] == [0, 2]


def test_methods_with_different_numbers_of_seeds_have_no_verdict() -> None:
    """There is not a pair for each seed. Others are compared."""
    draws = np.random.default_rng(0)
    values = {name: draws.normal(size=(seeds, 8)) for name, seeds in (("a", 3), ("b", 3), ("c", 2))}
    tests = {(c.method, c.other): (c.verdict, c.over) for c in statistics.compare_all_pairs(values, True)}
    assert tests["a", "b"] == ("open", "seeds and clients")
    assert tests["a", "c"] == tests["b", "c"] == ("", "no common scores")
