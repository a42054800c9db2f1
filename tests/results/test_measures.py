"""Printed quantities other than scores, runs that leak, separate groups of clients, and their place on the page, with
generated results.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedweave import report, results
from fedweave.pipelines.stages import leaderboard
from fedweave.report import method_views
from tests.weaving_results import CLIENTS, GROUP, ROUNDS, keep, selected, study, write

COLUMN = {"paper": "fedaghn", "table": "table4", "dataset": "cifar100", "setting": "grouped-s0.8/final"}
TABLE4 = {**COLUMN, "budget": "full"}


def test_weights_at_four_stages(tmp_path: Path) -> None:
    """After the first round, a sixth and a half of the rounds, and at the reported models; for all, shallow and deep
    layers; the mean over seeds.
    """
    folder = study(tmp_path)
    path = write(folder)
    for seed in (0, 1):
        keep(path, seed, list(range(1, ROUNDS + 1)), offset=0.01 * seed)
    table = results.compute_tables(results.load_study(folder)).measures
    # The round is trained from the graph before it
    final = {seed: chosen - 1 for seed, chosen in selected(folder).items()}
    for stage, parts in {"first": np.inf, "prior": 6, "middle": 2, "final": 1}.items():
        rounds = [max(1, int(f // parts)) for f in final.values()]
        mine = table[table["stage"] == stage].set_index(["part", "quantity"])
        assert mine["round"].unique().tolist() == [np.mean(rounds)]
        for part, layers in {"all": range(6), "shallow": range(3), "deep": range(3, 6)}.items():
            similar = [0.05 + 0.001 * r + 0.002 * np.mean(layers) + 0.01 * seed for seed, r in enumerate(rounds)]
            own = [0.03 / r for r in rounds]
            for quantity, values in {"self": own, "similar": similar, "other": [0.01, 0.01]}.items():
                row = mine.loc[(part, f"collab_weight_{quantity}")]
                assert row["value"] == pytest.approx(np.mean(values), rel=1e-5)
                assert row["std"] == pytest.approx(np.std(values, ddof=1), rel=1e-3, abs=1e-8)
    assert table["table"].unique().tolist() == [""]


def test_missing_rounds_use_the_graph_before(tmp_path: Path) -> None:
    """Graphs are stored for few rounds: the last stored one that is not later counts."""
    folder = study(tmp_path)
    path = write(folder, seeds=(0,))
    keep(path, 0, [1, 5, 11])
    table = results.compute_tables(results.load_study(folder)).measures
    final = selected(folder)[0] - 1
    for stage, wanted in {"first": 1, "middle": final // 2, "final": final}.items():
        stored = max([r for r in (1, 5, 11) if r <= wanted], default=1)
        assert table[table["stage"] == stage]["round"].unique().tolist() == [stored]


def test_received_models_come_from_the_graph_after_the_round(tmp_path: Path) -> None:
    """At the point "pre" the reported model is mixed by the graph after the round."""
    folder = study(tmp_path)
    path = write(folder, seeds=(0,), points={"FedAGHN": "pre"})
    keep(path, 0, list(range(1, ROUNDS + 1)))
    table = results.compute_tables(results.load_study(folder)).measures
    assert table[table["stage"] == "final"]["round"].unique().tolist() == [selected(folder)[0]]


def test_printed_weights_are_shown_for_full_budgets_only(tmp_path: Path) -> None:
    """All 36 numbers of the table. A shorter run, a variant and another method have none."""
    for rounds, label, beside in ((200, "FedAGHN", 36), (100, "FedAGHN", 0), (200, "FedAGHN [fedaghn-descent]", 0)):
        folder = study(tmp_path, f"s{rounds}{len(label)}")
        path = write(folder, label=label, rounds=rounds, seeds=(0,), published=TABLE4)
        keep(path, 0, [1, 100, 190])
        table = results.compute_tables(results.load_study(folder)).measures
        table = table[table["quantity"].isin([*method_views.KINDS])]
        assert len(table) == 36
        assert table["printed"].notna().sum() == beside
        assert set(table["table"]) == {"FedAGHN, table4"}
        if beside:
            printed = table.set_index(["stage", "part", "quantity"])["printed"]
            assert printed[("first", "all", "collab_weight_self")] == 0.0291
            assert printed[("final", "deep", "collab_weight_similar")] == 0.088
            assert printed[("prior", "shallow", "collab_weight_other")] == 0.0479


def test_other_weavers_have_a_printed_row_at_the_end(tmp_path: Path) -> None:
    """Appendix Table 2: final weights of three methods, over all layers."""
    folder = study(tmp_path)
    for label in ("CFL", "HeurFedAMP"):
        path = write(folder, label=label, rounds=200, seeds=(0,), published=TABLE4 | {"table": "appendix_table2"})
        keep(path, 0, [1, 100, 190])
    measures = results.compute_tables(results.load_study(folder)).measures
    printed = measures.dropna(subset="printed").set_index(["method", "quantity"])
    assert set(printed["stage"]) == {"final"}
    assert printed.loc[("CFL", "collab_weight_self"), "printed"] == 0.25
    assert printed.loc[("HeurFedAMP", "collab_weight_similar"), "printed"] == 0.0506


def test_without_groups_or_graphs_there_is_no_table(tmp_path: Path) -> None:
    """Similar means: of one planted group."""
    folder = study(tmp_path)
    keep(write(folder, seeds=(0,)), 0, [1, 2], group=None)
    write(folder, label="Local", seeds=(0,))
    measures = results.compute_tables(results.load_study(folder)).measures
    without_groups = ["row_variation", "effective_sources", "distance_to_uniform", "distance_to_self"]
    assert measures["quantity"].unique().tolist() == without_groups
    assert list(method_views.shares(measures)) == []


def test_page_and_terminal_show_weights_diagnostics_and_map(tmp_path: Path) -> None:
    """The printed table of a run, its weights over rounds, its diagnostics and its map. No id occurs twice."""
    folder = study(tmp_path)
    cohorts = {"newcomers": [19], "from the start": [*range(19)]}
    path = write(folder, rounds=200, seeds=(0,), published=TABLE4, cohorts=cohorts)
    keep(path, 0, [1, 30, 100, 190])
    rows = [f"0,{r},{value}" for r in (1, 100, 200) for value in ("row entropy,2.5", "sheaf energy,1.0")]
    (path / "diagnostics.csv").write_text("\n".join(["seed,round,name,value", *rows]) + "\n")
    vectors = np.random.default_rng(0).normal(size=(CLIENTS, 6))
    np.savez(path / "portrait-0.npz", round=np.array(200), vectors=vectors, group=GROUP)
    tables = results.write(folder)
    page = report.build(folder).read_text(encoding="utf-8")
    weights = ("Weights of oneself", "0.0300 (0.0291)", "Weights over rounds", "row entropy", "sheaf energy")
    for text in (*weights, "FedAGHN: 1 newcomers", "Clients as the server knows them", "t-SNE, round 200"):
        assert text in page, text
    ids = re.findall(r'<[^>]* id="([^"]*)"', page)
    assert ids
    assert len(ids) == len(set(ids))
    console = Console(record=True, width=120)
    for grid in leaderboard.extra_grids(tables):
        console.print(leaderboard.grid_table(grid))
    printed = console.export_text()
    assert "0.0300 (0.0291)" in printed
    assert "from the start" in printed
