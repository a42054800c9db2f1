"""`fedweave recommend`: from a file to answers in the terminal and on a page."""

from pathlib import Path

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
    assert own_data.load_result(out, "", None)[1] == "as nothing is recommended yet"
    (out / "recommendation.html").unlink()
    records.report(str(out))
    again = capsys.readouterr().out
    assert "Nothing yet, as the methods are under-trained" in again
    assert again in printed
    assert (out / "recommendation.html").is_file()
