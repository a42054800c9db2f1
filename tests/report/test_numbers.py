"""Numbers of the page compared with a second computation: differences, costs per round, graphs over seeds, words for an
AUC.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedweave import plots, results
from fedweave.report import baselines, board, graph_summary, graphs, optional_files, rounds
from tests.fake_results import write_study


@pytest.mark.parametrize(("metric", "pooled", "best", "gap"), [("accuracy", 90.0, 80.0, 10.0), ("mse", 2.0, 3.0, 1.0)])
def test_a_better_pooled_model_has_a_gap_above_zero(metric: str, pooled: float, best: float, gap: float) -> None:
    """The same for an error, where smaller is better."""
    methods = pd.DataFrame({"task": ["t", "t"], "method": ["Ditto", "Local"], "mean": [best, 1e3]})
    row = {"task": "t", "metric": metric, "mean": pooled}
    assert baselines._gap(row, methods) == ("Ditto", gap)


def test_costs_over_rounds_are_those_of_one_seed() -> None:
    log = pd.DataFrame(
        {
            "seed": [0, 0, 1, 1],
            "round": [1, 2, 1, 2],
            "bytes_up": [2**20, 2**20, 3 * 2**20, 3 * 2**20],
            "bytes_down": [0, 2**20, 0, 2**20],
            "seconds": [1.0, 2.0, 3.0, 4.0],
        }
    )
    run: Any = SimpleNamespace(name="r", rounds=log)
    table = rounds._cumulative_cost(run)
    assert table[[*rounds.COSTS.values()]].to_numpy().tolist() == [[2.0, 2.0], [5.0, 5.0]]


def test_differences_on_the_leaderboard_are_those_of_its_means(tmp_path: Path) -> None:
    """Differences from the leader and from the printed number are negative for a lower score."""
    study = results.load_study(write_study(tmp_path / "results" / "s", clients=6, rounds=3, extras=False))
    tables = results.compute_tables(study, None)
    table = tables.board.assign(published_mean=90.0, published_std=np.nan)
    by_name = {run.name: run for run in study.runs}
    runs = [by_name[name] for name in table["run"]]
    styles = plots.assign_styles([run.label for run in runs])
    rows = list(board.rows_of(table, runs, tables.significance, styles))
    for row, mean in zip(rows, table["mean"], strict=True):
        assert row.cells["gap"].key == pytest.approx(mean - table["mean"].max())
        assert row.cells["off"].key == pytest.approx(mean - 90)
        assert row.cells["off"].text.endswith(" points lower")
    assert rows[0].cells["gap"].text == results.EMPTY


def test_the_graph_is_the_mean_over_seeds_at_their_reported_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model after local training starts from the graph of the round before."""
    study = results.load_study(write_study(tmp_path / "results" / "s", clients=6, rounds=6, extras=False))
    tables = results.compute_tables(study, None)
    shown: list[np.ndarray] = []
    monkeypatch.setattr(plots, "graph", lambda weights, *_: shown.append(weights) or "")
    monkeypatch.setattr(plots, "collaboration", lambda *_: "")
    runs = [run for run in study.runs if run.label == "FedAGHN"]
    stored_graphs = {run.name: results.graphs_by_seed(run) for run in runs}
    figures = graphs.graph_figures(runs, stored_graphs, tables.measures, tables.clients)
    assert [figure["title"] for figure in figures] == ["FedAGHN"]
    expected = []
    for seed in runs[0].seeds:
        scores = tables.clients[(tables.clients["run"] == runs[0].name) & (tables.clients["seed"] == seed)]
        stored = np.load(runs[0].folder / f"collaboration-{seed}.npz")
        position = np.flatnonzero(stored["rounds"] < scores["round"].iloc[0])[-1]
        expected.append(stored["weights"][position].mean(0))
    np.testing.assert_allclose(shown[0], np.mean(expected, axis=0), rtol=1e-6)


def test_words_for_graphs_that_show_the_groups() -> None:
    """Chance is 0.5. A graph that has collapsed shows no groups, for any AUC."""
    auc = {"A": 0.95, "B": 0.75, "C": 0.55, "D": 0.95, "E": 0.7}
    rows = pd.DataFrame({"run": [*auc], "method": [*auc], "value": [*auc.values()]})
    collapsed = pd.Series({"A": "", "B": "", "C": "", "D": "consensus", "E": "self"})
    study: Any = SimpleNamespace(runs=[SimpleNamespace(task="t", group=None)])
    text = graph_summary._group_recovery("t", rows, collapsed, study)
    assert text == (
        "t, the groups: found by A 0.95; partly by B 0.75; not by C 0.55; no graph, rows nearly identical: D 0.95; "
        "no graph, each client learns from itself: E 0.70 (AUC; 0.5 is chance)."
    )


def test_the_trial_that_training_uses_is_found_by_its_values(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "results" / "s", seeds=(0,), clients=4, rounds=2)
    searches = optional_files.tuning(folder)
    assert searches
    for search in searches:
        assert search.value == search.trials["value"].max() == search.trials["value"].iloc[search.best_row]
