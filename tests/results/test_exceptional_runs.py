"""Unusual results: equal scores, units of many sizes, missing scores and seeds. Every table and sentence agrees with
the computation.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from fedweave import plots, report, results
from fedweave.report import optional_files
from fedweave.report.summary import summary
from fedweave.results import quantities, references, verdicts
from fedweave.results.gains import client_differences
from tests.fake_results import write_study

METHODS = {"Local": -6.0, "FedAvg-FT": -3.0, "FedAGHN": 0.0}
SEVENTHS = 100 * np.array([1.0, 2.0, 3.0]) / 7  # accuracies on seven rows; their mean depends on their order


def write(folder: Path, methods: dict[str, float] = METHODS, clients: int = 8, **block: Any) -> Path:
    """A study of one task, "t", on eight clients."""
    return write_study(folder / "results" / "s", {"t": block}, methods, clients=clients, rounds=2, extras=False)


def edit(folder: Path, run: str, change: Callable[[pd.DataFrame], pd.DataFrame] | None = None, **info: Any) -> None:
    """Change the scores of a run, or its record."""
    path = folder / "runs" / run
    if change:
        change(pd.read_parquet(path / "evaluations.parquet")).to_parquet(path / "evaluations.parquet", index=False)
    stored = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(stored | info))


def remove_cells(**cells: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A change that removes the scores of some cells, for example those of client=1."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        mine = np.logical_and.reduce([table[name] == value for name, value in cells.items()])
        return table.assign(value=table["value"].where(~mine))

    return change


def compute(folder: Path) -> tuple[results.Study, results.Tables, dict[str, str]]:
    """The study, its tables, and the texts of its summary by topic."""
    study = results.load_study(folder)
    tables = results.compute_tables(study)
    return study, tables, {line.topic: line.text for line in summary(study, tables)}


def test_of_equal_means_the_first_row_leads(tmp_path: Path) -> None:
    """The order of the runs' names is not that of their labels."""
    folder = write(tmp_path, {"A": 0.0, "B": 0.0, "C": -20.0})
    scores = pd.read_parquet(folder / "runs" / "t-b" / "evaluations.parquet")
    edit(folder, "t-a", lambda _: scores, label="Z")
    _, tables, lines = compute(folder)
    assert tables.board["method"].tolist() == ["B", "Z", "C"]
    assert tables.board["mark"].tolist() == ["lead", "equivalent", "behind"]
    assert "t: B leads with " in lines["Who leads"]
    leads = tables.significance[tables.significance["family"] == "leader"]
    assert {*leads["method"]} == {"B"}


def test_the_leader_is_the_first_row_even_if_units_differ_in_size(tmp_path: Path) -> None:
    """A is better by the mean over clients, B by the mean over units. The tests are those of A, which leads."""
    unit = [0] * 11 + [*range(1, 10)]
    folder = write(tmp_path, {"A": 0.0, "B": 0.0}, clients=20, units=unit, sharing=unit)
    for run, scores in (("t-a", [90.0, 40.0]), ("t-b", [80.0, 48.0])):
        value = np.repeat(scores, [11, 9]) + np.arange(20) % 3
        edit(folder, run, lambda table, value=value: table.assign(value=value[table["client"]]))
    _, tables, lines = compute(folder)
    assert tables.board["method"].tolist() == ["A", "B"]
    assert tables.board["mark"].tolist() == ["lead", "open"]
    (test,) = tables.significance.query("family == 'leader'").to_dict("records")
    assert (test["method"], test["other"]) == ("A", "B")
    assert test["difference"] < 0 < tables.board["mean"].iloc[0] - tables.board["mean"].iloc[1]
    assert "t: A leads with " in lines["Who leads"]
    assert ": worse than B where clients of one part count as one." in lines["Who leads"]


@pytest.mark.parametrize("metric", ["accuracy", "mse"])
def test_the_best_method_is_the_first_row_in_either_direction(tmp_path: Path, metric: str) -> None:
    _, tables, lines = compute(write(tmp_path, {"C": -20.0, "A": 0.0, "B": -9.0}, metric=metric))
    assert tables.board["method"].tolist() == ["A", "B", "C"]
    assert tables.board["mean"].is_monotonic_increasing == (metric == "mse")
    assert tables.ranks["method"].tolist() == ["A", "B", "C"]
    assert "t: A leads with " in lines["Who leads"]


def test_a_rounding_error_gives_no_gain_and_no_better_rank(tmp_path: Path) -> None:
    """Both methods have the same three accuracies, in another order of seeds."""
    orders = {"Local": [0, 1, 2], "FedAMP": [2, 0, 1], "FedAvg-FT": [1, 2, 0]}
    assert len({SEVENTHS[order].mean() for order in orders.values()}) > 1
    folder = write(tmp_path, dict.fromkeys(orders, 0.0))
    for label, order in orders.items():
        values = SEVENTHS[order]
        edit(folder, f"t-{label.lower()}", lambda t, v=values: t.assign(value=v[t["seed"]]))
    _, tables, lines = compute(folder)
    board = tables.board[tables.board["method"] != "Local"]
    assert board[["gain", "loss", "clients"]].to_numpy().tolist() == [[0.0, 0.0, 8.0]] * 2
    assert tables.ranks["rank"].tolist() == [2.0] * 3
    assert "better scores for 0 of 8 clients, worse for 0" in lines["Against Local"]


def test_equal_means_of_stored_scores_are_no_gain_and_no_loss(tmp_path: Path) -> None:
    """10, 10 and 10 of 12 rows, and 10, 11 and 9: scores are computed in float32, so their means are not the same."""
    hits = {"Local": [10, 10, 10], "FedAMP": [10, 11, 9]}
    folder = write(tmp_path, dict.fromkeys(hits, 0.0))
    for label, rows in hits.items():
        values = (np.array(rows) / 12 * 100).astype(np.float32).astype(float)
        edit(folder, f"t-{label.lower()}", lambda t, v=values: t.assign(value=v[t["seed"]]))
    study, tables, _ = compute(folder)
    board = tables.board[tables.board["method"] != "Local"]
    scores = tables.clients.groupby("method")["value"].mean()
    assert 0 < abs(scores["FedAMP"] - scores["Local"]) < 1e-4
    assert board[["gain", "loss", "clients"]].to_numpy().tolist() == [[0.0, 0.0, 8.0]]
    (differences,) = client_differences(study.runs, tables.clients).values()  # what the figure draws
    assert not differences.any()


def test_methods_with_different_numbers_of_splits_have_no_rank(tmp_path: Path) -> None:
    """No test pairs them. The other methods keep their ranks and tests."""
    folder = write(tmp_path, METHODS | {"FedAMP": -5.0, "Ditto": -2.0}, splits=[1, 2, 3])
    edit(folder, "t-local", lambda table: table[table["seed"] < 2])
    _, tables, lines = compute(folder)
    assert {*tables.ranks["method"]} == {"FedAGHN", "FedAvg-FT", "FedAMP", "Ditto"}
    assert {*tables.ranks["blocks"]} == {3}
    assert (tables.board["vs_local"] == "").all()
    assert lines["Against Local"].startswith("No score could be compared with that of Local, so nothing shows")


def test_a_client_without_a_score_in_one_split_is_left_out_of_all(tmp_path: Path) -> None:
    """Its test rows there are of one class, which is not a divergence. A method that diverges there is marked."""
    folder = write(tmp_path, METHODS, splits=[1, 2, 3], metric="roc_auc")
    for run in ("t-local", "t-fedavg-ft", "t-fedaghn"):
        edit(folder, run, remove_cells(client=3, seed=1), higher_is_better=True)
    edit(folder, "t-fedavg-ft", remove_cells(client=5, seed=0))
    study, tables, lines = compute(folder)
    assert {*tables.clients["client"]} == {*range(8)} - {3}
    marks = tables.board.set_index("method")["mark"]
    assert marks["FedAvg-FT"] == "diverged"
    assert "diverged" not in marks.drop("FedAvg-FT").to_numpy()
    assert "t: 1 of 8 clients has no roc_auc in some split, which needs rows of" in lines["Who leads"]
    assert "two classes: client 3. No mean or test includes them." in lines["Who leads"]
    curves = tables.curves[(tables.curves["method"] != "FedAvg-FT") & (tables.curves["split"] == "test")]
    assert {*curves["seeds"]} == {3}
    pooled = references._pooled_row(study.runs[0])
    assert np.isfinite(pooled["mean"])
    assert pooled["clients"] == 7


@pytest.mark.parametrize("removed", ["client", "seed"])
def test_without_splits_a_missing_seed_is_a_divergence(tmp_path: Path, removed: str) -> None:
    """All seeds have the same test rows, so the rows are not the reason for a score that is missing with one seed."""
    folder = write(tmp_path, {"FedAGHN": 0.0})
    edit(folder, "t-fedaghn", remove_cells(**{"client": {"client": 3, "seed": 1}, "seed": {"seed": 1}}[removed]))
    _, tables, _ = compute(folder)
    assert {*tables.clients["client"]} == {*range(8)}
    assert tables.board["mark"].tolist() == ["diverged"]


def test_only_clients_without_a_score_by_any_method_are_named(tmp_path: Path) -> None:
    """The clients of a diverged run have scores by the other methods."""
    folder = write(tmp_path, {"Ditto": 0.0, "Local": -5.0}, metric="roc_auc")
    for run in ("t-ditto", "t-local"):
        edit(folder, run, remove_cells(client=2), higher_is_better=True)
    edit(folder, "t-ditto", lambda table: table.assign(value=np.nan))
    *_, lines = compute(folder)
    assert "t: 1 of 8 clients has no roc_auc, which needs rows of" in lines["Who leads"]
    assert "two classes: client 2. No mean" in lines["Who leads"]
    edit(folder, "t-local", lambda table: table.assign(value=np.nan))
    *_, lines = compute(folder)
    assert lines["Who leads"] == "t: No method reached a finite score."


def test_a_cohort_with_a_client_that_has_diverged_has_no_mean(tmp_path: Path) -> None:
    folder = write(tmp_path)
    cohorts = {"newcomers": [0, 1], "from the start": [*range(2, 8)]}
    edit(folder, "t-fedaghn", remove_cells(client=1, split="test", point="post"), cohorts=cohorts)
    _, tables, _ = compute(folder)
    means = tables.cohorts.set_index(["cohort", "point"])["mean"]
    assert means.isna().to_dict() == {key: key == ("newcomers", "post") for key in means.index}


def test_a_score_of_pooled_rows_belongs_to_the_reported_round_only(tmp_path: Path) -> None:
    """Rounds that test data select are other rounds."""
    folder = write(tmp_path)
    edit(folder, "t-fedaghn", pooled={"0": 1.0, "1": 2.0, "2": 6.0})
    _, tables, _ = compute(folder)
    assert tables.board.set_index("run")["pooled"]["t-fedaghn"] == 3.0
    assert tables.leaky["pooled"].isna().all()
    edit(folder, "t-fedaghn", pooled={"0": 1.0, "1": 2.0})
    assert compute(folder)[1].board["pooled"].isna().all()  # a mean over other seeds would be another number


@pytest.mark.parametrize(("metric", "first"), [("accuracy", "high"), ("mse", "low")])
def test_the_best_control_is_first(tmp_path: Path, metric: str, first: str) -> None:
    folder = write(tmp_path, metric=metric)
    edit(folder, "t-local", controls={"high": [9.0] * 8, "low": [1.0] * 8, "none": [None] * 8})
    _, tables, _ = compute(folder)
    assert tables.controls["control"].tolist() == [first, *({"high", "low"} - {first}), "none"]


@pytest.mark.parametrize("clients", [5, 6])
def test_six_clients_are_the_fewest_of_a_verdict(tmp_path: Path, clients: int) -> None:
    study, tables, lines = compute(write(tmp_path, {"A": 0.0, "B": -40.0}, clients=clients))
    has_verdict = (tables.significance["verdict"] != "").any()
    assert has_verdict == (clients == 6)
    assert (verdicts.reason_without_power(study.runs, tables.clients) == "") == has_verdict
    assert ("t: Fewer than 6 clients: no verdict. A leads" in lines["Who leads"]) == (clients == 5)


def test_traffic_has_both_directions(tmp_path: Path) -> None:
    """It is in the leaderboard, and not among the scores that `dvc metrics diff` compares."""
    _, tables, _ = compute(write(tmp_path))
    board = tables.board.set_index("run")
    assert (board.loc["t-fedaghn", ["bytes_up", "bytes_down"]] > 0).all()
    metrics = results.dvc_metrics(tables.board)["t-fedaghn"]
    assert metrics[board.loc["t-fedaghn", "metric"]] == board.loc["t-fedaghn", "mean"]
    assert not {"mib", "seconds"} & {*metrics}


def test_the_value_of_edges_is_ranked_within_each_learner(tmp_path: Path) -> None:
    """Learners differ in their levels, which would dominate ranks over all edges. A constant row has no ranks."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"seed": 0, "round": 3, "learner": np.repeat([0, 1, 2], 6), "source": [*range(6)] * 3})
    rows["weight"], rows["gain"] = 10.0 * rows["learner"] + rng.random(18), 10.0 * rows["learner"] + rng.random(18)
    rows.loc[rows["learner"] == 2, "weight"] = 1.0
    rows.to_csv(tmp_path / "edges.csv", index=False)
    run: Any = SimpleNamespace(folder=tmp_path)
    (row,) = quantities._edges(run)
    expected = [spearmanr(part["weight"], part["gain"]).statistic for _, part in rows[:12].groupby("learner")]
    assert row["value"] == pytest.approx(np.mean(expected))


def test_learned_graphs_are_compared_in_the_unit_of_the_metric(tmp_path: Path) -> None:
    """Errors have four significant digits. A sentence says that there is no verdict."""
    folder = write(tmp_path, {"A": -1.0, "A u": -3.0}, metric="mse")
    for run, graph in (("t-a", "learned"), ("t-a-u", "uniform")):
        edit(folder, run, spec={"method": {"name": "a", "graph": graph}, "train": {"rounds": 2}, "task": {}})
    _, tables, lines = compute(folder)
    (test,) = tables.significance.query("family == 'graph'").to_dict("records")
    assert max(test["difference"], test["low"], test["high"]) < 0
    numbers = [f"{abs(test[name]):.6f}" for name in ("difference", "high", "low")]
    assert "({} lower, 95 % interval {} to {} lower).".format(*numbers) in lines["Learned graphs"]
    edit(folder, "t-a-u", lambda table: table.assign(value=np.nan))
    *_, lines = compute(folder)
    assert lines["Learned graphs"] == "t: no verdict against A u."


@pytest.mark.usefixtures("undrawn")
def test_a_tick_is_a_client_and_not_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [client // 2 for client in range(8)]
    folder = write(tmp_path, units=pairs, sharing=pairs)
    tables = results.write(folder)
    drawn: dict[str, np.ndarray] = {}
    monkeypatch.setattr(plots, "client_spread", lambda ticks, *_: drawn.update(ticks) or "")
    assert "Every tick is one client, averaged over seeds." in report.build(folder).read_text(encoding="utf-8")
    means = tables.clients.groupby(["method", "client"])["value"].mean()
    assert [*drawn] == tables.board["method"].tolist()
    for method, ticks in drawn.items():
        np.testing.assert_allclose(ticks, means[method])


def test_a_variant_may_have_the_name_of_a_missing_value(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "results" / "s", {"t": {}}, {"FedAMP": 0.0, "FedAGHN": 0.0}, rounds=2, clients=4)
    file = folder / "ablations" / "attention" / "table.csv"
    file.write_text(file.read_text().replace("as declared", "None").replace("without p", "NA"))
    assert optional_files.ablation(file)["variant"].tolist()[:2] == ["None", "NA"]
