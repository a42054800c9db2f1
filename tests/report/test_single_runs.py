"""Studies with a single run: selection, missing and broken files, and the text on the page."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import report, results
from fedweave.errors import BadInput
from fedweave.runs import selection
from tests.fake_results import write_single_run


@pytest.mark.parametrize("select", ["best_val_round", "per_client_best_val", "last"])
def test_test_values_do_not_change_the_selected_round(tmp_path: Path, select: str) -> None:
    run = write_single_run(tmp_path, select=select)
    before = results.clients(results.load_study(run.parents[1]))
    table = pd.read_parquet(run / "evaluations.parquet")
    test = table["split"] == "test"
    table.loc[test, "value"] = np.random.default_rng(3).uniform(0, 100, test.sum())
    table.to_parquet(run / "evaluations.parquet", index=False)
    after = results.clients(results.load_study(run.parents[1]))
    assert (before["round"] == after["round"]).all()
    assert (before["value"] != after["value"]).any()
    leaky = results.clients(results.load_study(run.parents[1]), selection.LEAKY)
    means = table[test & (table["point"] == "post")].groupby(["seed", "round"])["value"].mean()
    per_seed = means.groupby("seed").idxmax()
    assert leaky.groupby("seed")["round"].first().to_dict() == dict(per_seed.tolist())


def test_selection_on_test_is_never_a_headline(tmp_path: Path) -> None:
    run = write_single_run(tmp_path, select="best_test_round")
    words = r"'best_test_round' is unknown.*choices: best_val_round, last, per_client_best_val"
    with pytest.raises(BadInput, match=words):
        results.load_study(run.parents[1])


def test_one_seed_has_no_std_and_divergence_stays_visible(tmp_path: Path) -> None:
    for label in ("FedAvg", "Local"):
        write_single_run(tmp_path, label=label, metric="mse")
    run = tmp_path / "results" / "s" / "runs" / "t-fedavg"
    table = pd.read_parquet(run / "evaluations.parquet").query("seed == 0").assign(value=np.nan)
    table.to_parquet(run / "evaluations.parquet", index=False)
    board = results.compute_tables(results.load_study(tmp_path / "results" / "s")).board
    assert board["method"].tolist() == ["Local", "FedAvg"]
    assert board["mean"].isna().tolist() == [False, True]
    assert board["std"].isna().tolist() == [False, True]
    numbers = results.dvc_metrics(board)["t-fedavg"]
    assert (numbers["mse"], numbers["std"]) == (None, None)
    assert "diverged" in report.build(tmp_path / "results" / "s").read_text()


def test_clients_without_test_rows_are_omitted(tmp_path: Path) -> None:
    run = write_single_run(tmp_path)
    table = pd.read_parquet(run / "evaluations.parquet")
    table.loc[table["client"] == 3, "value"] = np.nan
    table.to_parquet(run / "evaluations.parquet", index=False)
    study = results.load_study(run.parents[1])
    assert sorted(results.clients(study)["client"].unique()) == [0, 1, 2, 4, 5, 6, 7]
    assert np.isfinite(results.compute_tables(study).board["mean"]).all()


def test_runs_that_share_a_label_stay_separate(tmp_path: Path) -> None:
    first = write_single_run(tmp_path)
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
    with pytest.raises(BadInput, match="nowhere: there is no such folder of results; check the path"):
        results.load_study(tmp_path / "nowhere")
    run = write_single_run(tmp_path)
    words = f"^{run}: is the folder of one run; give that of its results, {run.parents[1]}$"
    with pytest.raises(BadInput, match=words):
        results.load_study(run)
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


def test_broken_optional_files_name_themselves(tmp_path: Path) -> None:
    run = write_single_run(tmp_path, label="FedAMP")
    np.savez(run / "collaboration-0.npz", rounds=[1], weights=np.ones((2, 1, 3, 3)), layers=["a"])
    with pytest.raises(BadInput, match=r"collaboration-0\.npz: weights \(2, 1, 3, 3\)"):
        report.build(run.parents[1])
    (run / "collaboration-0.npz").unlink()
    (run.parents[1] / "ablations" / "x").mkdir(parents=True)
    (run.parents[1] / "ablations" / "x" / "table.csv").write_text("variant,mean\nx,1\n")
    with pytest.raises(BadInput, match=r"table\.csv: damaged \(ValueError: no column ablation, run, task"):
        report.build(run.parents[1])
    shutil.rmtree(run.parents[1] / "ablations")
    (run.parents[1] / "tuned" / "t" / "trials").mkdir(parents=True)
    (run.parents[1] / "tuned" / "t" / "trials" / "t-x.json").write_text('{"trials": []}')
    with pytest.raises(BadInput, match=r"t-x\.json: damaged"):
        report.build(run.parents[1])


@pytest.mark.usefixtures("undrawn")
def test_the_page_reports_dropped_and_changed_uploads(tmp_path: Path) -> None:
    run = write_single_run(tmp_path)
    for facts, stated in (({}, False), ({"dropped": 3, "epsilon": 2.5, "delta": 1e-05}, True)):
        info = json.loads((run / "run.json").read_text()) | facts
        (run / "run.json").write_text(json.dumps(info))
        text = report.build(run.parents[1]).read_text(encoding="utf-8")
        assert ("Broken uploads that the server dropped: FedAMP 3." in text) == stated
        assert ("FedAMP ε = 2.5 at δ = 1e-05" in text) == stated
