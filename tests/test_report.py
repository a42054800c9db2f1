"""Results folders with made-up numbers: tables against NumPy, the printed columns, and the page that shows them."""

import json
import math
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import metrics, published, report, results
from fedweave.errors import BadInput
from tests.fake_results import write_run, write_study

METHODS = {"Local": -6.0, "FedAvg": -12.0, "FedAvg-FT": -0.1, "FedAMP": -5.0, "FedAGHN": 0.0}
PRINTED = {"paper": "pfedgat", "table": "table1", "dataset": "cifar10", "setting": "iid", "budget": "full"}
TASKS = {"blobs": {"note": "blobs from a lossy copy"}, "sensors": {"metric": "mse", "dataset": "metr-la", "setting": "natural"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("made") / "results" / "toy", TASKS, METHODS, rounds=8)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return report.build(folder).read_text(encoding="utf-8")


def one(tmp_path: Path, label: str = "FedAMP", rounds: int = 6, **block: object) -> Path:
    """A study with a single run; returns the run's folder."""
    return write_run(tmp_path / "results" / "s", "t", label, 0.0, block, (0, 1), 8, rounds, np.random.default_rng(0))


def test_leaderboard_is_what_numpy_gets_from_the_evaluations(folder: Path) -> None:
    board = results.tables(results.load_study(folder)).board
    assert [*board.columns[2:]] == results.COLUMNS
    for run, row in board.set_index("run").iterrows():
        table = pd.read_parquet(folder / "runs" / run / "evaluations.parquet").query("point == 'post'")
        table = table.sort_values(["split", "seed", "round", "client"])
        test, val = table["value"].to_numpy().reshape(2, 3, 8, 12)  # splits, seeds, rounds, clients
        higher = row["metric"] == "accuracy"
        rounds = val.mean(-1).argmax(-1) if higher else val.mean(-1).argmin(-1)
        scores = test[np.arange(3), rounds]
        worst = scores.min(1) if higher else scores.max(1)
        got = row[["mean", "std", "client_std", "worst10"]].to_numpy(dtype=float)
        expected = [scores.mean(), scores.mean(1).std(ddof=1), scores.std(1).mean(), worst.mean()]
        np.testing.assert_allclose(got, expected, rtol=1e-9)
    log = pd.read_csv(folder / "runs" / "blobs-fedaghn" / "rounds.csv")
    row = board.set_index("run").loc["blobs-fedaghn"]
    assert row["bytes_down"] == log["bytes_down"].sum() / 3
    assert row["seconds"] == pytest.approx(log["seconds"].sum() / 3)


def test_best_first_in_the_direction_of_the_metric(folder: Path) -> None:
    board = results.tables(results.load_study(folder)).board
    assert board[board["task"] == "blobs"]["mean"].is_monotonic_decreasing
    assert board[board["task"] == "sensors"]["mean"].is_monotonic_increasing
    rows = list(results.leaderboard_rows(board[results.COLUMNS]))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"] * 2
    assert {row["published"] for row in rows} == {results.EMPTY}


@pytest.mark.parametrize("select", ["best_val_round", "per_client_best_val", "last"])
def test_test_values_do_not_move_the_selected_round(tmp_path: Path, select: str) -> None:
    run = one(tmp_path, select=select)
    before = results.clients(results.load_study(run.parents[1]))
    table = pd.read_parquet(run / "evaluations.parquet")
    test = table["split"] == "test"
    table.loc[test, "value"] = np.random.default_rng(3).uniform(0, 100, test.sum())
    table.to_parquet(run / "evaluations.parquet", index=False)
    after = results.clients(results.load_study(run.parents[1]))
    assert (before["round"] == after["round"]).all()
    assert (before["value"] != after["value"]).any()
    leaky = results.clients(results.load_study(run.parents[1]), metrics.LEAKY)
    per_seed = table[test & (table["point"] == "post")].groupby(["seed", "round"])["value"].mean().groupby("seed").idxmax()
    assert leaky.groupby("seed")["round"].first().to_dict() == dict(per_seed.tolist())


def test_selection_on_test_is_never_a_headline(tmp_path: Path) -> None:
    run = one(tmp_path, select="best_test_round")
    with pytest.raises(BadInput, match=r"'best_test_round' is unknown.*choices: best_val_round, last, per_client_best_val"):
        results.load_study(run.parents[1])


def test_files_of_the_evaluate_stage(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy"
    shutil.copytree(folder, copy)
    made = results.write(copy)
    assert pd.read_csv(copy / "leaderboard.csv").columns.tolist() == results.COLUMNS
    assert set(made.significance["family"]) == {"leader", "pairs"}
    assert len(made.significance.query("family == 'pairs'")) == 2 * 10
    stored = json.loads((copy / "metrics" / "blobs-fedaghn.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert set(stored) == {"accuracy", "std", "worst10", "seconds", "mib"}
    for name in ("clients", "curves", "significance", "best_test_round"):
        assert len(pd.read_csv(copy / f"{name}.csv")) > 0


def test_one_seed_has_no_std_and_divergence_stays_visible(tmp_path: Path) -> None:
    for label in ("FedAvg", "Local"):
        one(tmp_path, label=label, metric="mse")
    run = tmp_path / "results" / "s" / "runs" / "t-fedavg"
    table = pd.read_parquet(run / "evaluations.parquet").query("seed == 0").assign(value=np.nan)
    table.to_parquet(run / "evaluations.parquet", index=False)
    board = results.tables(results.load_study(tmp_path / "results" / "s")).board
    assert board["method"].tolist() == ["Local", "FedAvg"]
    assert board["mean"].isna().tolist() == [False, True]
    assert board["std"].isna().tolist() == [False, True]
    numbers = results.dvc_metrics(board)["t-fedavg"]
    assert (numbers["mse"], numbers["std"]) == (None, None)
    assert "diverged" in report.build(tmp_path / "results" / "s").read_text()


def test_clients_without_test_rows_are_left_out(tmp_path: Path) -> None:
    run = one(tmp_path)
    table = pd.read_parquet(run / "evaluations.parquet")
    table.loc[table["client"] == 3, "value"] = np.nan
    table.to_parquet(run / "evaluations.parquet", index=False)
    study = results.load_study(run.parents[1])
    assert sorted(results.clients(study)["client"].unique()) == [0, 1, 2, 4, 5, 6, 7]
    assert np.isfinite(results.tables(study).board["mean"]).all()


def test_runs_that_share_a_label_stay_apart(tmp_path: Path) -> None:
    first = one(tmp_path)
    second = first.with_name("t-other")
    shutil.copytree(first, second)
    info = json.loads((second / "run.json").read_text()) | {"run": "t-other"}
    (second / "run.json").write_text(json.dumps(info))
    (first.parent / "t-half").mkdir()
    study = results.load_study(first.parents[1])
    assert {run.label for run in study.runs} == {"FedAMP [t-fedamp]", "FedAMP [t-other]"}
    assert study.unfinished == ("t-half",)


def test_broken_folders_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no finished run; train one first"):
        results.load_study(tmp_path)
    run = one(tmp_path)
    table = pd.read_parquet(run / "evaluations.parquet")
    pd.concat([table, table[:1]]).to_parquet(run / "evaluations.parquet")
    with pytest.raises(BadInput, match=r"evaluations\.parquet: two rows for one seed, round, point, split, client"):
        results.load_run(run)
    table[table["point"] == "pre"].to_parquet(run / "evaluations.parquet")
    with pytest.raises(BadInput, match="point: 'post' was not evaluated; choices: pre"):
        results.clients(results.load_study(run.parents[1]))
    (run / "rounds.csv").unlink()
    with pytest.raises(BadInput, match=r"rounds\.csv: missing"):
        results.load_run(run)
    (run / "run.json").write_text("{}")
    (run / "rounds.csv").write_text("")
    with pytest.raises(BadInput, match=r"run\.json: no run, task"):
        results.load_run(run)


def test_every_printed_row_loads() -> None:
    counts = {paper: len(published.rows(paper)) for paper in published.PAPERS}
    assert counts == {"fedaghn": 261, "pfedgat": 257, "pfedla": 160, "shn": 157, "fedsheafhn": 436}
    assert all(math.isfinite(row.mean) for paper in published.PAPERS for row in published.rows(paper))


@pytest.mark.parametrize(
    ("paper", "table", "dataset", "setting", "method", "mean"),
    [
        ("pfedgat", "table2", "cifar100", "avg", "Local", 48.46),
        ("pfedgat", "table2", "cifar100", "avg", "FedAMP", 29.58),
        ("pfedgat", "table1", "cifar10", "avg", "pFedHN", 73.02),
        ("fedsheafhn", "table3", "ogbn-arxiv", "disjoint/clients20", "FedAvg", 36.56),
        ("fedsheafhn", "table3", "ogbn-arxiv", "disjoint/clients20", "FedSheafHN", 71.87),
        ("fedsheafhn", "table1", "ogbn-arxiv", "disjoint/clients20", "FedSheafHN", 71.75),
        ("shn", "table1", "cifar100", "lda-alpha0.1", "SHN", 48.26),
        ("pfedla", "table3", "emnist", "noniid_1/clients10/k1", "HeurpFedLA", 94.11),
    ],
)
def test_printed_values_are_kept_as_printed(paper: str, table: str, dataset: str, setting: str, method: str, mean: float) -> None:
    found = published.lookup(published.reference({"paper": paper, "table": table}, dataset, setting), method, "accuracy")
    assert found is not None
    assert found.mean == mean


def test_units_labels_and_budgets_of_the_printed_columns() -> None:
    metr = published.reference({"paper": "shn", "table": "table1"}, "metr-la", "natural")
    raw = next(row for row in published.rows("shn") if (row.dataset, row.method) == ("metr-la", "SHN"))
    assert published.lookup(metr, "shn", "mse").mean == pytest.approx(raw.mean / 1000)
    assert published.lookup(metr, "SHN", "accuracy") is None
    assert published.lookup(metr, "SFL*", "mse") is None
    pat = published.reference({"paper": "fedaghn", "table": "table1"}, "cifar10", "pathological")
    assert published.lookup(pat, "HeurFedAMP", "accuracy").mean == published.lookup(pat, "H-FedAMP", "accuracy").mean
    assert published.lookup(metr, "fedavg_ft", "mse") == published.lookup(metr, "FedAvg-FT", "mse")
    places = {
        ("fedaghn", "table1", "cifar10", "dir0.1"): 200,
        ("fedaghn", "table1", "cifar100-resnet18", "pathological"): 80,
        ("fedaghn", "table1", "tinyimagenet-resnet18", "dir0.1"): 40,
        ("pfedgat", "table3", "cifar10", "dir0.1/clients25"): 50,
        ("pfedla", "table1", "emnist", "noniid_1/clients10"): 600,
        ("pfedla", "table2", "emnist", "noniid_2/clients100"): 2500,
        ("shn", "table1", "tpt-48", "natural"): 2000,
        ("fedsheafhn", "table2", "ogbn-arxiv", "overlapping/clients30"): 200,
        ("fedsheafhn", "table1", "cora", "disjoint/clients10"): 100,
    }
    for place, rounds in places.items():
        assert published.paper_rounds(published.Reference(*place, True)) == rounds
    with pytest.raises(BadInput, match=r"published\.setting: 'dir0\.3' is unknown; did you mean 'dir0\.5'"):
        published.reference({"paper": "fedaghn", "table": "table2"}, "cifar10", "dir0.3")


@pytest.mark.parametrize(
    ("rounds", "budget", "reason"),
    [(50, "full", ""), (60, "full", ""), (49, "full", "trained 49 of the 50 rounds"), (50, "reduced", "does not declare")],
)
def test_printed_numbers_stand_beside_the_full_budget_only(tmp_path: Path, rounds: int, budget: str, reason: str) -> None:
    run = one(tmp_path, label="pFedGAT", rounds=rounds, published=PRINTED | {"budget": budget})
    study = results.load_study(run.parents[1])
    row = results.tables(study).board.iloc[0]
    expected = next(r.mean for r in published.rows("pfedgat") if r[1:5] == ("table1", "cifar10", "iid", "pFedGAT"))
    assert (row["published_mean"] == expected) == (reason == "")
    assert math.isnan(row["published_mean"]) == bool(reason)
    assert reason in study.runs[0].shortfall
    if rounds >= 50:
        text = report.build(run.parents[1]).read_text()
        assert (f"{expected:.2f}" in text) == (reason == "")
        assert ("Reduced budget" in text) == bool(reason)


class Page(HTMLParser):
    """Collects what a page refers to, its ids and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.ids, self.words, self.tags = [], [], [], Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "srcset", "poster")]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_is_self_contained_and_its_references_resolve(page: str) -> None:
    found = Page(page)
    assert found.links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert not any(word in page for word in ("url(http", "@import", "fetch(", "XMLHttpRequest"))
    assert found.tags["link"] == found.tags["iframe"] == found.tags["base"] == 0
    assert max(Counter(found.ids).values()) == 1
    referred = {link[1:] for link in found.links if link.startswith("#")} | {p.split(")")[0] for p in page.split("url(#")[1:]}
    assert referred <= set(found.ids)


def test_page_shows_every_method_task_and_figure(page: str) -> None:
    words = Page(page).words
    for method in METHODS:
        assert sum(word == method for word in words) >= 2 * 3  # leaderboard, curves and clients of both tasks
    for text in ("blobs · blobs", "metr-la · natural", "Who learns from whom", "Tuning", "Ablations", "frozen p, q", "Environment"):
        assert any(text in word for word in words)
    assert "blobs from a lossy copy" in page
    assert Page(page).tags["image"] == 2 * (5 + 5 + 4)  # per task: rounds of FedAMP's one graph; rounds and layers of FedAGHN's


def test_page_shows_a_control_that_does_as_well(page: str) -> None:
    assert "the test does not tell it apart from FedAvg-FT" in page
    assert 'class="tie"' in page


def test_page_is_a_function_of_the_runs(folder: Path, page: str) -> None:
    assert report.build(folder).read_text(encoding="utf-8") == page


def test_page_is_the_same_from_stored_tables_and_those_of_older_runs_are_not_shown(folder: Path, page: str, tmp_path: Path) -> None:
    copy = tmp_path / "results" / "toy"
    shutil.copytree(folder, copy)
    partitions = folder.parents[1] / "data" / "partitions"
    written, study = results.write(copy, partitions), results.load_study(copy)
    for name, table in results.current(study)._asdict().items():
        assert table is not getattr(written, name)
        pd.testing.assert_frame_equal(table, getattr(written, name).replace({None: np.nan}), check_dtype=False, rtol=0, atol=0)
    assert report.build(copy, partitions).read_text(encoding="utf-8") == page
    run = copy / "runs" / "blobs-fedavg" / "evaluations.parquet"
    table = pd.read_parquet(run)
    table.assign(value=table["value"] / 2).to_parquet(run, index=False)
    assert not results.current(results.load_study(copy)).board["mean"].equals(written.board["mean"])


def test_page_needs_no_optional_file_and_escapes_names(tmp_path: Path) -> None:
    label = "<script>alert('$x_1$')</script> & co"
    run = one(tmp_path, label=label, note="<img src=x onerror=alert(1)>")
    text = report.build(run.parents[1]).read_text(encoding="utf-8")
    assert Page(text).tags["script"] == 1
    assert Page(text).tags["img"] == 0
    assert sum(word == label for word in Page(text).words) >= 3  # whole, as text: in the table and in figures
    for section in ("Tuning", "Ablations", "Labels", "Who learns from whom"):
        assert f"<h2>{section}</h2>" not in text
        assert f"<h3>{section}</h3>" not in text


def test_broken_optional_files_name_themselves(tmp_path: Path) -> None:
    run = one(tmp_path, label="FedAMP")
    np.savez(run / "collaboration-0.npz", rounds=[1], weights=np.ones((2, 1, 3, 3)), layers=["a"])
    with pytest.raises(BadInput, match=r"collaboration-0\.npz: weights \(2, 1, 3, 3\)"):
        report.build(run.parents[1])
    (run / "collaboration-0.npz").unlink()
    (run.parents[1] / "ablations.csv").write_text("variant,mean\nx,1\n")
    with pytest.raises(BadInput, match=r"ablations\.csv: no column ablation, task"):
        report.build(run.parents[1])
