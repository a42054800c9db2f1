"""Printed quantities other than scores, runs that leak, separate groups of clients, and their place on the page, with
generated results.
"""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedweave import report, results
from fedweave.pipelines.stages import leaderboard
from fedweave.report import method_views
from fedweave.results import published
from tests.weaving_results import CLIENTS, GROUP, ROUNDS, keep, selected, study, write

TABLE4 = {
    "paper": "fedaghn",
    "table": "table4",
    "dataset": "cifar100",
    "setting": "grouped-s0.8/final",
    "budget": "full",
}


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
    for stage, at in {
        "first": lambda f: 1,
        "prior": lambda f: max(1, f // 6),
        "middle": lambda f: max(1, f // 2),
        "final": lambda f: f,
    }.items():
        rounds = [at(f) for f in final.values()]
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
    expected = {
        "first": 1,
        "final": max(r for r in (1, 5, 11) if r <= final),
        "middle": max([r for r in (1, 5, 11) if r <= final // 2], default=1),
    }
    for stage, when in expected.items():
        assert table[table["stage"] == stage]["round"].unique().tolist() == [when]


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
    printed = (
        results.compute_tables(results.load_study(folder))
        .measures.dropna(subset="printed")
        .set_index(["method", "quantity"])
    )
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


class Ids(HTMLParser):
    """Collects the ids of a page, which must be unique."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for key, value in attrs if key == "id"]


def test_page_and_terminal_show_weights_diagnostics_and_map(tmp_path: Path) -> None:
    """The printed table of a run, its weights over rounds, its diagnostics and its map. No id occurs twice."""
    folder = study(tmp_path)
    path = write(
        folder, rounds=200, seeds=(0,), published=TABLE4, cohorts={"newcomers": [19], "from the start": [*range(19)]}
    )
    keep(path, 0, [1, 30, 100, 190])
    rows = [
        f"0,{r},{name},{value}" for r in (1, 100, 200) for name, value in (("row entropy", 2.5), ("sheaf energy", 1.0))
    ]
    (path / "diagnostics.csv").write_text("\n".join(["seed,round,name,value", *rows]) + "\n")
    np.savez(
        path / "portrait-0.npz",
        round=np.array(200),
        vectors=np.random.default_rng(0).normal(size=(CLIENTS, 6)),
        group=GROUP,
    )
    tables = results.write(folder)
    page = report.build(folder).read_text(encoding="utf-8")
    inside_it = (
        "Weights of oneself",
        "0.0300 (0.0291)",
        "Weights over rounds",
        "row entropy",
        "sheaf energy",
        "FedAGHN: 1 newcomers",
    )
    for text in (*inside_it, "Clients as the server knows them", "t-SNE, round 200"):
        assert text in page, text
    parser = Ids()
    parser.feed(page)
    assert len(parser.ids) == len(set(parser.ids))
    console = Console(record=True, width=120)
    for grid in leaderboard.extra_grids(tables):
        console.print(leaderboard.grid_table(grid))
    printed = console.export_text()
    assert "0.0300 (0.0291)" in printed
    assert "from the start" in printed


def test_columns_of_a_table() -> None:
    """All rows with this printed source, for any quantity."""
    reference = published.reference(TABLE4, "cifar100", "grouped-s0.8/final")
    assert len(published.column(reference)) == 9
