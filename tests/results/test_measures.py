"""What papers print besides scores, runs that leak, clients looked at apart, and how the page shows them; made-up
results.
"""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedweave import plots, report, results
from fedweave.errors import BadInput
from fedweave.pipelines.stages import leaderboard
from fedweave.report import graphs, method_views
from fedweave.report.sweeps import sweeps
from fedweave.results import published
from tests.fake_results import write_run

CLIENTS, ROUNDS, LAYERS = 20, 12, ("conv1", "bn1", "conv2", "bn2", "fc1", "fc")
GROUP = np.arange(CLIENTS) // 4
TABLE4 = {
    "paper": "fedaghn",
    "table": "table4",
    "dataset": "cifar100",
    "setting": "grouped-s0.8/final",
    "budget": "full",
}


def study(tmp_path: Path, name: str = "s") -> Path:
    """An empty study folder."""
    return tmp_path / "results" / name


def write(
    folder: Path,
    task: str = "t",
    label: str = "FedAGHN",
    rounds: int = ROUNDS,
    seeds: tuple[int, ...] = (0, 1),
    **block: object,
) -> Path:
    """A made-up run whose name is its label's."""
    extra = {key: block.pop(key) for key in ("leaks", "cohorts", "spec") if key in block}
    path = write_run(folder, task, label, 0.0, block, seeds, CLIENTS, rounds, np.random.default_rng(0))
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | extra))
    return path


def keep(path: Path, seed: int, rounds: list[int], offset: float = 0.0, group: np.ndarray | None = GROUP) -> np.ndarray:
    """Graphs [R, L, N, N] with known weights: own, similar and other differ by round and layer."""
    weights = np.zeros((len(rounds), len(LAYERS), CLIENTS, CLIENTS), dtype=np.float32)
    same = GROUP[:, None] == GROUP
    for r, when in enumerate(rounds):
        for layer in range(len(LAYERS)):
            weights[r, layer] = np.where(same, 0.05 + 0.001 * when + 0.002 * layer + offset, 0.01)
            np.fill_diagonal(weights[r, layer], 0.03 / when)
    arrays = {"rounds": np.array(rounds), "weights": weights, "layers": np.array(LAYERS)}
    np.savez(path / f"collaboration-{seed}.npz", **arrays, **({} if group is None else {"group": group}))
    return weights


def selected(folder: Path) -> dict[int, int]:
    """Seed -> round that validation selects, of a study with one run."""
    table = results.clients(results.load_study(folder))
    return {int(seed): int(part["round"].iloc[0]) for seed, part in table.groupby("seed")}


def test_weights_at_four_stages(tmp_path: Path) -> None:
    """First, a sixth, a half and the graph behind the reported models; all, shallow and deep layers; the mean over
    seeds.
    """
    folder = study(tmp_path)
    path = write(folder)
    for seed in (0, 1):
        keep(path, seed, list(range(1, ROUNDS + 1)), offset=0.01 * seed)
    table = results.tables(results.load_study(folder)).measures
    final = {
        seed: chosen - 1 for seed, chosen in selected(folder).items()
    }  # the round is trained from the graph before it
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


def test_missing_rounds_fall_back_to_the_graph_before(tmp_path: Path) -> None:
    """Sparse graphs: the last one kept that is not later."""
    folder = study(tmp_path)
    path = write(folder, seeds=(0,))
    keep(path, 0, [1, 5, 11])
    table = results.tables(results.load_study(folder)).measures
    final = selected(folder)[0] - 1
    expected = {
        "first": 1,
        "final": max(r for r in (1, 5, 11) if r <= final),
        "middle": max([r for r in (1, 5, 11) if r <= final // 2], default=1),
    }
    for stage, when in expected.items():
        assert table[table["stage"] == stage]["round"].unique().tolist() == [when]


def test_received_models_come_from_the_graph_after_the_round(tmp_path: Path) -> None:
    """At the point "pre" the reported model is woven from the graph that the round left."""
    folder = study(tmp_path)
    path = write(folder, seeds=(0,), points={"FedAGHN": "pre"})
    keep(path, 0, list(range(1, ROUNDS + 1)))
    table = results.tables(results.load_study(folder)).measures
    assert table[table["stage"] == "final"]["round"].unique().tolist() == [selected(folder)[0]]


def test_printed_weights_stand_beside_full_budgets(tmp_path: Path) -> None:
    """All 36 numbers of the table, and none beside a shorter run, a variant or another method."""
    for rounds, label, beside in ((200, "FedAGHN", 36), (100, "FedAGHN", 0), (200, "FedAGHN [fedaghn-descent]", 0)):
        folder = study(tmp_path, f"s{rounds}{len(label)}")
        path = write(folder, label=label, rounds=rounds, seeds=(0,), published=TABLE4)
        keep(path, 0, [1, 100, 190])
        table = results.tables(results.load_study(folder)).measures
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
        results.tables(results.load_study(folder)).measures.dropna(subset="printed").set_index(["method", "quantity"])
    )
    assert set(printed["stage"]) == {"final"}
    assert printed.loc[("CFL", "collab_weight_self"), "printed"] == 0.25
    assert printed.loc[("HeurFedAMP", "collab_weight_similar"), "printed"] == 0.0506


def test_without_groups_or_graphs_there_is_no_table(tmp_path: Path) -> None:
    """Similar means: of one planted group."""
    folder = study(tmp_path)
    keep(write(folder, seeds=(0,)), 0, [1, 2], group=None)
    write(folder, label="Local", seeds=(0,))
    made = results.tables(results.load_study(folder)).measures
    assert made["quantity"].unique().tolist() == ["row_variation"]  # which needs no groups
    assert list(method_views.shares(made)) == []


def test_traffic_is_that_of_750_updates(tmp_path: Path) -> None:
    """pFedLA's Table 3: whatever the number of rounds, 10 clients or a tenth of 100."""
    column = {
        "paper": "pfedla",
        "table": "table3",
        "dataset": "emnist",
        "setting": "noniid_1/clients10/k1",
        "budget": "reduced",
    }
    folder = study(tmp_path)
    for task, share in (("a", 1.0), ("b", 0.5), ("c", 4)):
        write(folder, task, "HeurpFedLA", published=column, spec={"train": {"participation": share}})
    table = results.tables(results.load_study(folder)).measures.set_index("task")
    sent = CLIENTS * 1234 * 4 * 2  # what the made-up ledger says of a round
    for task, updates in {"a": CLIENTS, "b": CLIENTS / 2, "c": 4}.items():
        assert table.loc[task, "value"] == pytest.approx(750 * sent / updates / 2**20)
        assert table.loc[task, "printed"] == 488.65


def test_sizes_come_from_the_summary_and_the_model(tmp_path: Path) -> None:
    """Statistics of a partition beside the printed ones, and parameters in the row that the task names."""
    folder, dealt = study(tmp_path), tmp_path / "dealt"
    write(
        folder,
        "cora",
        "Local",
        published={"paper": "fedsheafhn", "table": "table4", "dataset": "cora", "setting": "disjoint/clients10"},
    )
    write(
        folder,
        "tpt",
        "Local",
        published={"paper": "shn", "table": "table5", "dataset": "tpt-48", "setting": "dataset-statistics"},
    )
    write(
        folder,
        "model",
        "Local",
        published={"paper": "shn", "table": "table6", "dataset": "", "setting": "client-model", "row": "GRU"},
    )
    summaries = {
        "cora": {
            "clients": 10,
            "nodes": {"mean": 248.5},
            "edges": {"mean": 891.6},
            "clustering": 0.25,
            "heterogeneity": 0.6,
            "labels": [[1] * 7],
        },
        "tpt": {"clients": 48, "relation": 210},
    }
    for task, summary in summaries.items():
        (dealt / task).mkdir(parents=True)
        (dealt / task / "summary.json").write_text(json.dumps(summary))
    made = results.tables(results.load_study(folder), dealt).measures.set_index(["task", "quantity"])
    assert made.loc[("cora", "num_nodes"), ["value", "printed"]].tolist() == [248.5, 249]
    assert made.loc[("cora", "num_edges"), ["value", "printed"]].tolist() == [891.6, 891]
    assert made.loc[("tpt", "num_edges"), ["value", "printed"]].tolist() == [258, 258]
    assert made.loc[("tpt", "num_clients"), ["value", "printed"]].tolist() == [48, 48]
    assert made.loc[("model", "num_parameters"), ["value", "printed"]].tolist() == [1234, 26177]
    assert made.loc["cora"].index.tolist() == [
        "clustering_coefficient",
        "heterogeneity_js_median",
        "num_nodes",
        "num_edges",
    ]
    assert len(made) == 4 + 2 + 1


def test_clients_apart_are_averaged_at_the_selected_round(tmp_path: Path) -> None:
    """Newcomers and the others, at both points, at the round that selection chose."""
    folder = study(tmp_path)
    path = write(folder, cohorts={"newcomers": [18, 19], "from the start": [*range(18)]})
    made = results.tables(results.load_study(folder)).cohorts.set_index(["cohort", "point"])
    table = pd.read_parquet(path / "evaluations.parquet").query("split == 'test'")
    for cohort, members in {"newcomers": [18, 19], "from the start": [*range(18)]}.items():
        for point in ("pre", "post"):
            mine = table[table["client"].isin(members) & (table["point"] == point)].set_index(["seed", "round"])[
                "value"
            ]
            per_seed = [mine.loc[(seed, when)].mean() for seed, when in selected(folder).items()]
            assert made.loc[(cohort, point), "mean"] == pytest.approx(np.mean(per_seed))
            assert made.loc[(cohort, point), "reported"] == (point == "post")


def test_what_leaks_enters_no_comparison(tmp_path: Path) -> None:
    """Not the board, curves, significance, clients or metrics; it stands in the file of what has seen test data, and in
    a note.
    """
    folder = study(tmp_path)
    for label, leaks in (("Local", False), ("FedAvg-FT", False), ("pFedGAT [pfedgat-leaky]", True)):
        write(folder, label=label, leaks=leaks)
    loaded = results.load_study(folder)
    assert [run.leaks for run in (*loaded.runs, *loaded.leaky)] == [False, False, True]
    made = results.write(folder)
    fair = {"FedAvg-FT", "Local"}
    for frame in (made.board, made.clients, made.curves):
        assert set(frame["method"]) == fair
    assert set(made.significance["method"]) | set(made.significance["other"]) == fair
    assert not list((folder / "metrics").glob("*leaky*"))
    seen = pd.read_csv(folder / "best_test_round.csv").set_index("method")["leak"]
    assert seen.to_dict() == {"FedAvg-FT": "selection", "Local": "selection", "pFedGAT [pfedgat-leaky]": "training"}
    page = report.build(folder).read_text(encoding="utf-8")
    assert page.count("pFedGAT [pfedgat-leaky]") == 1
    assert "pFedGAT [pfedgat-leaky] trained on test rows and is compared with nothing" in page


def test_leaks_alone_are_no_study(tmp_path: Path) -> None:
    """There is nothing to rank."""
    folder = study(tmp_path)
    write(folder, leaks=True)
    with pytest.raises(BadInput, match="test rows"):
        results.load_study(folder)


def test_settings_that_differ_in_a_number_are_a_curve(tmp_path: Path) -> None:
    """One figure per data set and factor with three values or more; anything else is none."""
    folder = study(tmp_path)
    for depth in (2, 4, 16):
        write(folder, f"l{depth}", "SHN", setting=f"superclass/layers{depth}", cohorts={"newcomers": [19]})
    write(folder, "k2", "SHN", setting="superclass/knn2")
    write(folder, "k4", "SHN", setting="superclass/knn4")
    write(folder, "iid", "SHN", setting="iid")
    made = results.tables(results.load_study(folder))
    drawn = sweeps(made.board, made.cohorts, plots.looks(["SHN"]))
    assert [figure.title for figure in drawn] == ["blobs superclass: layers", "blobs superclass: layers, newcomers"]
    for text in (">2<", ">4<", ">16<", "layers"):
        assert text in drawn[0].svg


def test_vectors_in_the_plane() -> None:
    """Few clients in the plane of their principal components, which keeps distances of what is flat; many by t-SNE."""
    g = np.random.default_rng(0)
    flat = g.normal(size=(9, 2)) @ g.normal(size=(2, 7))
    places, how = graphs.in_the_plane(flat)
    assert how.startswith("First two")
    gaps = [np.linalg.norm(a[:, None] - a[None], axis=-1) for a in (flat, places)]
    np.testing.assert_allclose(*gaps, atol=1e-9)
    lumps = np.repeat(np.eye(5) * 20, 6, axis=0) + g.normal(size=(30, 5))
    places, how = graphs.in_the_plane(lumps)
    assert how == "t-SNE"
    group = np.repeat(np.arange(5), 6)
    nearest = np.argsort(np.linalg.norm(places[:, None] - places[None], axis=-1), axis=1)[:, 1]
    assert (group[nearest] == group).all()


def test_edges_of_a_map_only_where_they_tell_something() -> None:
    """Sparse graphs are drawn, dense ones are not; direction is dropped."""
    weights = np.zeros((2, 8, 8))
    weights[0, 1, 0] = weights[1, 2, 5] = -0.3
    assert graphs.edges(weights, 8).T.tolist() == [[0, 1], [2, 5]]
    assert graphs.edges(np.ones((1, 8, 8)), 8).size == 0


class Ids(HTMLParser):
    """Collects what must be unique on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for key, value in attrs if key == "id"]


def test_page_and_terminal_show_what_went_on_inside(tmp_path: Path) -> None:
    """The printed table of a run, its weights over rounds, its diagnostics and its map; no id twice."""
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
    made = results.write(folder)
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
    for grid in leaderboard.extra_grids(made):
        console.print(leaderboard.plain(grid))
    printed = console.export_text()
    assert "0.0300 (0.0291)" in printed
    assert "from the start" in printed


def test_columns_of_a_table() -> None:
    """All rows printed in a place, whatever they measure."""
    reference = published.reference(TABLE4, "cifar100", "grouped-s0.8/final")
    assert len(published.column(reference)) == 9
