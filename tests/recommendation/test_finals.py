"""Numbers of the last comparison: slopes, learning curves and graphs; the clients of one unit count as one."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import results
from fedweave.recommendation import finals
from fedweave.results import load_run
from fedweave.results.repetitions import interval
from tests.fake_results import write_run, write_single_run, write_study

SHARING = [client // 2 for client in range(8)]


def test_the_intervals_of_a_learning_curve_are_over_units() -> None:
    draws = np.random.default_rng(0)
    scores = {share: pd.DataFrame(draws.normal(50 * share, 1, size=(3, 8))) for share in (0.25, 0.5, 1.0)}
    rows = finals._curve(scores, SHARING, "mae").set_index("share")
    units = {share: frame.to_numpy().reshape(3, 4, 2).mean(2) for share, frame in scores.items()}
    for share, values in units.items():
        np.testing.assert_allclose(rows.loc[share, ["low", "high"]].astype(float), interval(values))
        np.testing.assert_allclose(rows["mean"][share], scores[share].to_numpy().mean())
    gained = units[1.0] - units[0.25]
    expected = (gained.mean(), *interval(gained))
    np.testing.assert_allclose(rows.loc[0.25, ["gain", "gain_low", "gain_high"]].astype(float), expected)
    alone = finals._curve(scores, None, "mae").set_index("share")
    np.testing.assert_allclose(alone.loc[1.0, ["low", "high"]].astype(float), interval(scores[1.0]))


def test_the_slope_of_validation_scores_is_over_units(tmp_path) -> None:
    ways = []
    for name, block in {"apart": {}, "paired": {"sharing": SHARING}}.items():
        folder = write_run(tmp_path / name, "t", "FedAvg", 0.0, block, (0, 1), 8, 12, np.random.default_rng(0))
        ways.append(finals.slope(load_run(folder)))
    assert ways[0][0] == ways[1][0]
    assert ways[0][1:] != ways[1][1:]


@pytest.mark.parametrize("rounds", [6, 9])
def test_the_slope_is_that_of_the_last_third_of_the_rounds(rounds: int, tmp_path: Path) -> None:
    """Validation scores fall until then, and rise by another step for every client after it."""
    folder = write_single_run(tmp_path, rounds=rounds)
    frame = pd.read_parquet(folder / "evaluations.parquet")
    line = (0.2 + 0.1 * frame["client"] + 0.05 * frame["seed"]) * frame["round"]
    frame["value"] = np.where(frame["round"] > 6, line, 50 - 7 * frame["round"])
    frame.to_parquet(folder / "evaluations.parquet", index=False)
    found = finals.slope(load_run(folder))
    if rounds == 6:  # the last third has two rounds
        assert np.isnan(found).all()
        return
    slopes = 10 * (0.2 + 0.1 * np.arange(8) + 0.05 * np.arange(2)[:, None])
    np.testing.assert_allclose(found, (slopes.mean(), *interval(slopes)))


def test_graphs_are_those_of_the_rounds_that_the_run_reports(tmp_path: Path) -> None:
    """Of two methods with graphs, each has the last graph before its own scores, averaged over layers."""
    folder = write_study(tmp_path / "results" / "s", methods={"FedAMP": 0.0, "FedAGHN": 0.0}, extras=False)
    study = results.load_study(folder)
    first, second = study.runs
    scores = results.clients(study)
    for run, other in ((first, second), (second, first)):
        mine = scores["run"] == run.name
        assert mine.sum() == (scores["run"] == other.name).sum() > 0
        scores.loc[mine, "round"] = 6 if run is first else 20
    for run, position in ((first, 1), (second, 4)):  # the graphs of rounds 4 and 16
        found = finals.seed_graphs(run, scores)
        assert len(found) == 3
        for seed, graph in enumerate(found):
            stored = np.load(run.folder / f"collaboration-{seed}.npz")
            np.testing.assert_allclose(graph, stored["weights"][position].mean(0))
