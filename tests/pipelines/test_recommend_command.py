"""`fedweave recommend`: from a file to answers in the terminal and on a page."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from benchmarks import recommend_truth as truth
from fedweave.pipelines.commands import own_data, recommend, records


@pytest.mark.acceptance  # other tests check the answers themselves
def test_from_a_file_to_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings that Optuna draws are in the race too. The results serve the other commands."""
    federation = truth.federation("common", 2)
    table = pd.DataFrame(federation.dataset.x.reshape(-1, truth.FEATURES)[:, :4]).add_prefix("x")
    owner = [name for name in truth.names() for _ in range(sum(truth.ROWS.values()))]
    table = table.assign(site=owner, sort=federation.dataset.labels)[:1360]
    table.to_csv(tmp_path / "rows.csv", index=False)
    recommend.recommend(
        tmp_path / "rows.csv",
        client="site",
        label="sort",
        out=tmp_path / "out",
        methods=["ditto"],
        rounds=3,
        seeds=1,
        points=2,
        settings=["model.hidden=4"],
        budget="none",
    )
    printed = capsys.readouterr().out
    advice = fw.Recommendation.load(tmp_path / "out")
    assert advice.lines[0].text in printed
    assert "recommendation.html shows everything" in printed
    assert (tmp_path / "out" / "recommendation.html").is_file()
    first = advice.race[advice.race["rung"] == 1]
    rates = first[first["settings"] != ""].set_index("method")["settings"].str.extract(r"(lr=[\d.]+)")[0]
    assert {*rates.index} == {"local", "fedavg", "fedavg_ft", "ditto"}
    assert rates.nunique() == 1
    assert fw.load(tmp_path / "out").methods


@pytest.mark.acceptance
def test_a_client_that_keeps_to_local_training_is_predicted_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fourteen sites, of which the last one has the opposite labels: the others learn together."""
    draws, tables = np.random.default_rng(1), []
    for i in range(14):
        x = draws.normal(size=(220, 8))
        label = (x.sum(1) + draws.logistic(size=220) > 0) ^ (i == 13)
        parts = ["train"] * 30 + ["val"] * 70 + ["test"] * 120
        tables.append(pd.DataFrame(x).add_prefix("x").assign(site=f"s{i}", label=label, part=parts))
    table, file, out = pd.concat(tables), tmp_path / "rows.csv", tmp_path / "out"
    table.to_csv(file, index=False)
    options = {"methods": ["fedavg", "fedavg_ft"], "rounds": 40, "seeds": 3, "points": 1, "model": "linear"}
    recommend.recommend(
        file, client="site", label="label", split="part", out=out, settings=["lr=0.5"], budget="none", **options
    )
    printed = capsys.readouterr().out
    advice = fw.Recommendation.load(out)
    assert advice.local_clients == ["s13"]
    assert "except for s13, which keeps to local training" in printed
    assert "\nfor s13 they use local, refitted on training and validation rows" in printed
    own_data.predict(out, file, client="s13")
    answer = capsys.readouterr()
    assert answer.err.startswith("local of s13 (to which this client keeps, by its validation rows; refitted")
    right = pd.read_csv(io.StringIO(answer.out))["prediction"] == table["label"][-220:].to_numpy()
    assert right.mean() > 0.7
    own_data.predict(out, file, client="s0")
    assert capsys.readouterr().err.startswith(f"{advice.method} of s0 (which is recommended; refitted")


def test_under_trained_methods_are_not_called_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = truth.federation("common", 2)
    table = pd.DataFrame(federation.dataset.x.reshape(-1, truth.FEATURES)).add_prefix("x")
    table = table.assign(site=[f"s{i % 6}" for i in range(len(table))], sort=federation.dataset.labels)[:600]
    table.to_csv(tmp_path / "rows.csv", index=False)
    options = {"client": "site", "label": "sort", "methods": ["local"], "rounds": 2, "seeds": 1, "points": 1}
    out = tmp_path / "out"
    recommend.recommend(tmp_path / "rows.csv", out=out, settings=["lr=0.0001"], budget="none", **options)
    printed = capsys.readouterr().out
    assert "Nothing yet, as the methods are under-trained" in printed
    assert "as nothing is recommended yet" in printed
    assert "which is recommended" not in printed
    assert own_data.load_result(out, "", None, "s1")[1] == "as nothing is recommended yet"
    (out / "recommendation.html").unlink()
    records.report(str(out))
    again = capsys.readouterr().out
    assert "Nothing yet, as the methods are under-trained" in again
    assert again in printed
    assert (out / "recommendation.html").is_file()
