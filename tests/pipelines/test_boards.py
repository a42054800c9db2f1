"""Leaderboards and their sentences in the docs agree with the files in the same folder."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fedweave import results
from fedweave.errors import BadInput
from fedweave.graphs.quality import ALIKE
from fedweave.metrics import default_margin
from fedweave.results import statistics
from tests.fake_results import ARMS, write_study
from tools.docs import boards
from tools.docs.stored_numbers import CLIENTS
from tools.pages import fill, find_blocks

PAGE = boards.PAGES[0]


def test_boards_show_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(find_blocks(page, "board")) == 4
    assert fill(page, board=boards.board) == page
    changed = re.sub(r"(\| 1 \| \w+ \| )\d", r"\g<1>1", page)
    assert changed != page
    assert fill(changed, board=boards.board) == page


@pytest.mark.parametrize("task", ["shoulder", "digits", "digits-graph", "names"])
def test_sentences_count_the_rows(task: str) -> None:
    rows = pd.read_csv(boards.FOLDER / "zoo.csv").query("dataset == @task")
    paragraph = next(p for p in PAGE.read_text(encoding="utf-8").split("\n- ") if p.startswith(f"On `{task}`"))
    text = " ".join(paragraph.split())
    means, others = rows.set_index("method")["mean"], len(rows) - 1
    assert f"{(means > means['Local']).sum()} of {others} methods have a higher mean than Local" in text
    if task == "shoulder":
        assert f"and {(means > means['FedAvg-FT']).sum()} of {others} a higher one than FedAvg-FT" in text
        assert f"the first, {means.idxmax()}, is {means.max() - means['FedAvg-FT']:.1f} points above it" in text
        assert {*means.index[means < means["Local"]]} == {"FedProto", "APFL"}
        better = rows[rows["vs_local"] == "better"]["method"].tolist()
        assert f"Three methods are better than Local: {', '.join(better[:-1])} and {better[-1]}" in text
        assert {*rows.set_index("method")["vs_fedavg_ft"].drop("FedAvg-FT")} == {"open"}
        controls = (
            pd.read_csv(boards.FOLDER / "zoo.controls.csv").query("dataset == @task").set_index("control")["mean"]
        )
        assert f"has {controls['Boosting of pooled rows']:.1f} %, as much as FedCP" in text
        assert abs(controls["Boosting of pooled rows"] - means["FedCP"]) < 0.1
    if task == "digits":
        assert {*rows["vs_local"].dropna(), *rows["vs_fedavg_ft"].dropna()} == {"open"}
        assert f"{(rows['at_last'] >= 2).sum()} of {len(rows)} rows" in text
    if task == "names":
        verdicts = rows.set_index("method")[["vs_local", "vs_fedavg_ft"]]
        assert f"and {(verdicts['vs_local'] == 'better').sum()} are better" in text
        assert f"{(means > means['FedAvg-FT']).sum()} have a higher mean than FedAvg-FT" in text
        worse = verdicts["vs_fedavg_ft"].drop("Local").eq("worse").sum()
        assert f"none is better, and {worse} are worse" in text
        assert "better" not in {*verdicts["vs_fedavg_ft"]}
        late = pd.read_csv(boards.FOLDER / "zoo.newcomers.csv", keep_default_na=False).set_index("method")
        scores = late["mean"].astype(float)
        assert (
            f"For newcomers {(scores > scores['Local']).sum()} have a higher mean than Local ({scores['Local']:.1f} %)"
            in text
        )
        assert f"first {scores.idxmax()} ({scores.max():.1f} %); with {late['clients'].iloc[0]} newcomers" in text
        assert {*late["vs_local"]} == {"", "open"}
    if task == "digits-graph":
        assert rows["method"].head(4).tolist() == ["FedGTA", "pFedGraph", "SHN", "FED-PUB"]


def test_a_verdict_has_its_scores_of_clients() -> None:
    """Those of the zoo follow from the stored scores."""
    rows = pd.read_csv(boards.FOLDER / "zoo.csv")
    scores = pd.read_csv(boards.FOLDER / f"zoo{CLIENTS}")
    for (dataset, setting), own in scores.groupby(["dataset", "setting"]):
        values = {
            str(method): group.groupby(["seed", "part"])["value"].mean().unstack("part").to_numpy()
            for method, group in own.groupby("method")
        }
        board = rows[(rows["dataset"] == dataset) & (rows["setting"] == setting)].set_index("method")
        assert {name: v.mean() for name, v in values.items()} == pytest.approx(board["mean"].to_dict(), rel=1e-3)
        tests = statistics.compare_to_controls(values, ("Local", "FedAvg-FT"), True, default_margin("accuracy"))
        for test in (test for test in tests if test.other == "Local"):
            assert test.verdict == board["vs_local"].fillna("")[test.method]


def test_the_findings_in_the_readme_are_those_of_the_quick_study() -> None:
    """Three findings, from the leaderboard of `shoulder` that `make repro` wrote."""
    rows = pd.read_csv(boards.FOLDER / "quick.csv").query("dataset == 'shoulder'").set_index("method")
    text = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    means, leader = rows["mean"], rows["mean"].idxmax()
    better = ["None", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven"]
    assert rows.index[rows["vs_local"] == "better"].tolist() == ["FedPer"]
    assert f"One of eleven methods, FedPer ({means['FedPer']:.1f} %), is better than local training " in text
    gain, loss, clients = (int(rows.loc["FedPer", key]) for key in ("gain", "loss", "clients"))
    assert f"({means['Local']:.1f} %): {gain} of {clients} clients gain by it, and {loss} lose." in text
    assert f"{better[(rows['vs_local'] == 'open').sum()]} are open" in text
    assert rows.loc[leader, "vs_local"] == "open"
    assert f"So is the leader, {leader} ({means[leader]:.1f} %)" in text
    assert not (rows["vs_fedavg_ft"] == "better").any()
    assert f"better than FedAvg with fine-tuning ({means['FedAvg-FT']:.1f} %)" in text
    areas = rows["group_auc"].dropna()
    assert "Two methods find the true groups, left arm and right arm**: HeurFedAMP and pFedGraph" in text
    assert {*areas[areas > 0.9].index} == {"HeurFedAMP", "pFedGraph"}
    assert f"(AUC {areas[areas > 0.9].min():.2f})" in text
    rest = areas.loc[["FedAGHN", "SHN", "HeurpFedLA"]]
    assert f"do not ({rest.min():.2f} to {rest.max():.2f})" in " ".join(text.split())
    assert {*rows.index[rows["row_variation"] < ALIKE]} == {"pFedGAT"}
    every, controls = (pd.read_csv(boards.FOLDER / f"quick{kind}.csv") for kind in ("", ".controls"))
    incomes = every[every["dataset"] == "us-income"]
    assert "On the incomes, local training is under-trained" in text
    assert (2 * incomes["at_last"] >= incomes["seeds"])[incomes["method"] == "Local"].all()
    last_value = controls.set_index("control").loc["Last value", "mean"]
    assert "no method is better than repeating the last value" in text
    assert last_value < incomes["mean"].min()
    unconverged = (2 * every["at_last"] >= every["seeds"]).sum()
    assert f"{unconverged} of {len(every)} runs had their best validation round at the end" in text


def test_every_method_has_a_row() -> None:
    from fedweave.methods import METHODS

    rows = pd.read_csv(boards.FOLDER / "zoo.csv")
    absent = {cls.label for cls in METHODS.values() if not cls.pools} - set(rows["method"])
    newer = {"FedDyn", "GPFL", "LG-FedAvg", "MOON", "Partial pooling"}
    assert absent == {"Direct matrix"}  # a control of pFedGAT
    assert {*rows.loc[rows["method"].isin(newer), "dataset"]} == {"names"}


def test_a_part_of_a_study_replaces_its_own_rows_and_has_newcomers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tasks that were not run stay. Where clients come later, the board has their scores and verdicts."""
    shutil.copytree(boards.FOLDER, tmp_path / boards.FOLDER)
    monkeypatch.chdir(tmp_path)
    before = {task: boards.board("zoo", task) for task in ("digits", "digits-graph")}
    folder = tmp_path / "results" / "zoo"
    task = {**ARMS, "dataset": "shoulder", "setting": "arms"}
    write_study(folder, {"shoulder": task}, {"Local": -6.0, "FedAMP": 0.0}, clients=20, rounds=8, extras=False)
    for run in (folder / "runs").iterdir():
        info = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**info, "cohorts": {"newcomers": [*range(14, 20)]}}))
    results.write(folder)
    controls = pd.read_csv(boards.FOLDER / "zoo.controls.csv").query("dataset == 'shoulder'")
    controls.to_csv(folder / "controls.csv", index=False)
    boards.copy_board("zoo")
    lines = boards.board("zoo", "shoulder").splitlines()
    assert "| 95 % interval | newcomers | newcomers vs Local | as received |" in lines[0]
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["FedAMP", "Local"]
    assert {task: boards.board("zoo", task) for task in before} == before
    rows = pd.read_csv(folder / "cohorts.csv").query("reported").set_index("method")["mean"]
    shown = [float(line.split(" | ")[4].split(" ± ")[0]) for line in lines[2:4]]
    assert shown == pytest.approx([rows["FedAMP"], rows["Local"]], abs=0.006)
    texts = [path.read_bytes() for path in sorted(boards.FOLDER.iterdir())]
    boards.copy_board("zoo")
    assert [path.read_bytes() for path in sorted(boards.FOLDER.iterdir())] == texts


def test_a_missing_board_is_named(monkeypatch, tmp_path) -> None:
    with pytest.raises(BadInput, match="has no task 'letters', only digits, digits-graph, names, shoulder"):
        boards.board("zoo", "letters")
    with pytest.raises(BadInput, match=r"unknown\.csv: not found; take it with"):
        boards.board("unknown", "digits")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"leaderboard\.csv: does not exist yet; make it with: fedweave study use zoo"):
        boards.copy_board("zoo")
