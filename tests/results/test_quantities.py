"""Traffic, sizes, separate groups of clients, runs that leak, curves over a setting, maps of clients."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedweave import plots, report, results
from fedweave.engine.schedule import participants
from fedweave.errors import BadInput
from fedweave.report import graphs
from fedweave.report.sweeps import sweeps
from tests.weaving_results import CLIENTS, ROUNDS, selected, study, write

COLUMN = {"paper": "pfedla", "table": "table3", "dataset": "emnist", "setting": "noniid_1/clients10/k1"}
TRAFFIC = {**COLUMN, "budget": "reduced"}


def test_traffic_is_that_of_750_updates(tmp_path: Path) -> None:
    """pFedLA's Table 3, for any number of rounds: 10 clients, or a tenth of 100."""
    folder = study(tmp_path)
    for task, share in (("a", 1.0), ("b", 0.5), ("c", 4)):
        write(folder, task, "HeurpFedLA", published=TRAFFIC, spec={"train": {"participation": share}})
    table = results.compute_tables(results.load_study(folder)).measures.set_index("task")
    sent = CLIENTS * 1234 * 4 * 2  # the entries of the generated ledger for a round
    for task, updates in {"a": CLIENTS, "b": CLIENTS / 2, "c": 4}.items():
        assert table.loc[task, "value"] == pytest.approx(750 * sent / updates / 2**20)
        assert table.loc[task, "printed"] == 488.65


@pytest.mark.parametrize(
    ("clients", "train", "updates"),
    [
        (25, {"participation": 0.28}, [7] * ROUNDS),  # 0.28 * 25 is above 7 in floating point
        (20, {"participation": 0.01}, [1] * ROUNDS),
        (20, {"participation": 0.5, "newcomers": 4, "join_round": 3}, [8] * 3 + [10] * (ROUNDS - 3)),
        (20, {"participation": 18, "newcomers": 4, "join_round": 3}, [16] * 3 + [18] * (ROUNDS - 3)),
        (20, {"participation": 1.0, "newcomers": 4, "join_round": 3, "rounds": ROUNDS - 2}, [16] * 5 + [20] * 7),
    ],
)
def test_traffic_counts_the_clients_that_took_part(
    tmp_path: Path, clients: int, train: dict, updates: list[int]
) -> None:
    """Rounds of a warm-up are added. Newcomers count from the round in which they join."""
    folder = study(tmp_path)
    path = write(folder, label="HeurpFedLA", published=TRAFFIC, spec={"train": train})
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"clients": clients}))
    measures = results.compute_tables(results.load_study(folder)).measures.set_index("quantity")
    sent = ROUNDS * CLIENTS * 1234 * 4 * 2
    assert measures.loc["comm_cost_MB", "value"] == pytest.approx(750 * sent / sum(updates) / 2**20)
    late, share = train.get("newcomers", 0), train["participation"]
    counts = [clients - late] * (updates.count(updates[0]) if late else 0)
    counts += [clients] * (ROUNDS - len(counts))
    assert [len(participants(0, i, torch.arange(n), share)) for i, n in enumerate(counts)] == updates


def test_sizes_come_from_the_summary_and_the_model(tmp_path: Path) -> None:
    """Statistics of a partition next to the printed ones, and parameters in the row that the task names."""
    folder, partitions = study(tmp_path), tmp_path / "partitions"
    for task, column in {
        "cora": {"paper": "fedsheafhn", "table": "table4", "dataset": "cora", "setting": "disjoint/clients10"},
        "tpt": {"paper": "shn", "table": "table5", "dataset": "tpt-48", "setting": "dataset-statistics"},
        "model": {"paper": "shn", "table": "table6", "dataset": "", "setting": "client-model", "row": "GRU"},
    }.items():
        write(folder, task, "Local", published=column)
    counts = {"clients": 10, "nodes": {"mean": 248.5}, "edges": {"mean": 891.6}}
    cora = {**counts, "clustering": 0.25, "heterogeneity": 0.6, "labels": [[1] * 7]}
    for task, summary in {"cora": cora, "tpt": {"clients": 48, "relation": 210}}.items():
        (partitions / task).mkdir(parents=True)
        (partitions / task / "summary.json").write_text(json.dumps(summary))
    measures = results.compute_tables(results.load_study(folder), partitions).measures.set_index(["task", "quantity"])
    assert measures.loc[("cora", "num_nodes"), ["value", "printed"]].tolist() == [248.5, 249]
    assert measures.loc[("cora", "num_edges"), ["value", "printed"]].tolist() == [891.6, 891]
    assert measures.loc[("tpt", "num_edges"), ["value", "printed"]].tolist() == [258, 258]
    assert measures.loc[("tpt", "num_clients"), ["value", "printed"]].tolist() == [48, 48]
    assert measures.loc[("model", "num_parameters"), ["value", "printed"]].tolist() == [1234, 26177]
    named = ["clustering_coefficient", "heterogeneity_js_median", "num_nodes", "num_edges"]
    assert measures.loc["cora"].index.tolist() == named
    assert len(measures) == 4 + 2 + 1


def test_cohorts_are_averaged_at_the_selected_round(tmp_path: Path) -> None:
    """The cohorts are newcomers and the others, at both points, in the selected round."""
    folder = study(tmp_path)
    path = write(folder, cohorts={"newcomers": [18, 19], "from the start": [*range(18)]})
    cohorts = results.compute_tables(results.load_study(folder)).cohorts.set_index(["cohort", "point"])
    table = pd.read_parquet(path / "evaluations.parquet").query("split == 'test'")
    for cohort, members in {"newcomers": [18, 19], "from the start": [*range(18)]}.items():
        for point in ("pre", "post"):
            mine = table[table["client"].isin(members) & (table["point"] == point)].set_index(["seed", "round"])
            per_seed = [mine.loc[(seed, when), "value"].mean() for seed, when in selected(folder).items()]
            assert cohorts.loc[(cohort, point), "mean"] == pytest.approx(np.mean(per_seed))
            assert cohorts.loc[(cohort, point), "reported"] == (point == "post")


def test_newcomers_are_tested_against_local_on_their_own_rows(tmp_path: Path) -> None:
    """A method that helps newcomers and harms all others is better for newcomers alone. It has a warm-up of a round."""
    folder, members = study(tmp_path), [*range(8, CLIENTS)]
    train = {"join_round": 2, "rounds": ROUNDS - 1}
    extra = {"cohorts": {"newcomers": members, "from the start": [*range(8)]}, "spec": {"train": train}}
    for label in ("Local", "FedAGHN"):
        path = write(folder, "t", label, seeds=(0, 1, 2), **extra)
        if label == "FedAGHN":
            table = pd.read_parquet(path / "evaluations.parquet")
            table["value"] += np.where(table["client"].isin(members), 20.0, -20.0)
            table.to_parquet(path / "evaluations.parquet")
    tables = results.compute_tables(results.load_study(folder))
    words = tables.cohorts[tables.cohorts["cohort"] == "newcomers"].set_index(["method", "point"])["vs_local"]
    assert words["FedAGHN", "post"] == "better"
    assert tables.board.set_index("method")["vs_local"]["FedAGHN"] != "better"
    joined = table.query("split == 'test' and point == 'pre' and round == 4 and client >= 8")["value"].mean()
    scores = tables.cohorts.set_index(["method", "cohort", "point"])["mean"]
    assert scores["FedAGHN", "newcomers", "joined"] == pytest.approx(joined)
    assert ("FedAGHN", "from the start", "joined") not in scores


@pytest.mark.usefixtures("undrawn")
def test_runs_that_leak_are_in_no_comparison(tmp_path: Path) -> None:
    """They are not in the board, curves, significance, clients or metrics. They are in the file of leaky runs, and a
    note names them.
    """
    folder = study(tmp_path)
    for label, leaks in (("Local", False), ("FedAvg-FT", False), ("pFedGAT [pfedgat-leaky]", True)):
        write(folder, label=label, leaks=leaks)
    loaded = results.load_study(folder)
    assert [run.leaks for run in (*loaded.runs, *loaded.leaky)] == [False, False, True]
    tables = results.write(folder)
    fair = {"FedAvg-FT", "Local"}
    for frame in (tables.board, tables.clients, tables.curves):
        assert set(frame["method"]) == fair
    assert set(tables.significance["method"]) | set(tables.significance["other"]) == fair
    assert not list((folder / "metrics").glob("*leaky*"))
    seen = pd.read_csv(folder / "best_test_round.csv").set_index("method")["leak"]
    assert seen.to_dict() == {"FedAvg-FT": "selection", "Local": "selection", "pFedGAT [pfedgat-leaky]": "training"}
    page = report.build(folder).read_text(encoding="utf-8")
    assert page.count("pFedGAT [pfedgat-leaky]") == 1
    assert "pFedGAT [pfedgat-leaky] trained on test rows and is compared with nothing" in page


def test_a_study_of_leaky_runs_only_is_refused(tmp_path: Path) -> None:
    """There is nothing to rank."""
    folder = study(tmp_path)
    write(folder, leaks=True)
    with pytest.raises(BadInput, match="test rows"):
        results.load_study(folder)


def test_settings_that_differ_in_a_number_give_a_curve(tmp_path: Path) -> None:
    """There is one figure per data set and factor with at least three values, and no other figure."""
    folder = study(tmp_path)
    for depth in (2, 4, 16):
        write(folder, f"l{depth}", "SHN", setting=f"superclass/layers{depth}", cohorts={"newcomers": [19]})
    write(folder, "k2", "SHN", setting="superclass/knn2")
    write(folder, "k4", "SHN", setting="superclass/knn4")
    write(folder, "iid", "SHN", setting="iid")
    tables = results.compute_tables(results.load_study(folder))
    drawn = sweeps(tables.board, tables.cohorts, plots.assign_styles(["SHN"]))
    assert [figure.title for figure in drawn] == ["blobs superclass: layers", "blobs superclass: layers, newcomers"]
    for text in (">2<", ">4<", ">16<", "layers"):
        assert text in drawn[0].svg


def test_vectors_are_projected_to_the_plane() -> None:
    """Few clients by principal components, which keep the distances of vectors in a plane. Many clients by t-SNE."""
    g = np.random.default_rng(0)
    flat = g.normal(size=(9, 2)) @ g.normal(size=(2, 7))
    places, how = graphs.project_to_plane(flat)
    assert how.startswith("First two")
    gaps = [np.linalg.norm(a[:, None] - a[None], axis=-1) for a in (flat, places)]
    np.testing.assert_allclose(*gaps, atol=1e-9)
    clusters = np.repeat(np.eye(5) * 20, 6, axis=0) + g.normal(size=(30, 5))
    places, how = graphs.project_to_plane(clusters)
    assert how == "t-SNE"
    group = np.repeat(np.arange(5), 6)
    nearest = np.argsort(np.linalg.norm(places[:, None] - places[None], axis=-1), axis=1)[:, 1]
    assert (group[nearest] == group).all()


def test_a_map_has_edges_for_sparse_graphs_only() -> None:
    """Directions are ignored."""
    weights = np.zeros((2, 8, 8))
    weights[0, 1, 0] = weights[1, 2, 5] = -0.3
    assert graphs.edges(weights, 8).T.tolist() == [[0, 1], [2, 5]]
    assert graphs.edges(np.ones((1, 8, 8)), 8).size == 0


def test_small_traffic_is_not_none() -> None:
    """Adapters send hundredths of a MiB, which one decimal would show as 0.0."""
    for mib, shown in {0.0: "0.0", 0.0123: "0.012", 0.1: "0.1", 12.34: "12.3", 1234.5: "1,234.5"}.items():
        assert results.format_mib(mib) == shown
