"""Leaderboards and their sentences in the docs agree with the files in the same folder."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fedweave.errors import BadInput
from fedweave.pipelines.commands import boards
from fedweave.results.verdicts import join_names

PAGE = boards.PAGES[0]


def test_boards_show_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(boards.BLOCK.findall(page)) == 3
    assert boards.fill_blocks(page) == page
    changed = re.sub(r"(\| 1 \| \w+ \| )\d", r"\g<1>1", page)
    assert changed != page
    assert boards.fill_blocks(changed) == page


@pytest.mark.parametrize("task", ["shoulder", "digits", "digits-graph"])
def test_sentences_count_the_rows(task: str) -> None:
    rows = pd.read_csv(boards.FOLDER / "zoo.csv").query("dataset == @task")
    paragraph = next(p for p in PAGE.read_text(encoding="utf-8").split("\n- ") if p.startswith(f"On `{task}`"))
    text = " ".join(paragraph.split())
    better, others = (rows["vs_local"] == "better").sum(), len(rows) - 1
    assert f"{better or ('none' if 'none of' in text else 0)} of {others} methods" in text
    if task == "shoulder":
        means = rows.set_index("method")["mean"]
        assert f"({join_names(rows.loc[rows['vs_local'] == 'better', 'method'].tolist())})" in text
        assert f"and {(rows['vs_local'] == 'undecided').sum()} are undecided" in text
        assert not (rows["vs_fedavg_ft"] == "better").any()
        assert means["FedProto"] < means["Local"]
    if task == "digits":
        assert f"{(rows['at_last'] >= 2).sum()} of {len(rows)} rows" in text
    if task == "digits-graph":
        leaders = set(rows["method"].head(3))
        assert leaders == {"FedGTA", "FED-PUB", "pFedGraph"}
        assert {*rows["vs_local"].dropna()} <= {"same", "undecided"}


def test_the_findings_in_the_readme_are_those_of_the_quick_study() -> None:
    """Three findings, from the leaderboard of `shoulder` that `make repro` wrote."""
    rows = pd.read_csv(boards.FOLDER / "quick.csv").query("dataset == 'shoulder'").set_index("method")
    text = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    means, leader = rows["mean"], rows["mean"].idxmax()
    better = ["None", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven"]
    count = better[(rows["vs_local"] == "better").sum()]
    assert f"{count} of eleven methods are significantly better than local training ({means['Local']:.1f} %)" in text
    undecided = better[(rows["vs_local"] == "undecided").sum()].lower()
    assert f"and {undecided} are undecided" in text
    gain, loss, clients = (int(rows.loc[leader, key]) for key in ("gain", "loss", "clients"))
    assert f"{leader} ({means[leader]:.1f} %), is better for {gain} of {clients} clients and worse for {loss}" in text
    assert not (rows["vs_fedavg_ft"] == "better").any()
    assert f"better than FedAvg with fine-tuning ({means['FedAvg-FT']:.1f} %)" in text
    areas = rows["group_auc"].dropna()
    assert "Two methods find the true groups" in text
    assert set(areas[areas > 0.9].index) == {"HeurFedAMP", "pFedGraph"}
    assert f"(AUC {areas['HeurFedAMP']:.2f} and {areas['pFedGraph']:.2f})" in text
    rest = areas.loc[["FedAGHN", "SHN", "HeurpFedLA"]]
    assert f"do not ({rest.min():.2f} to {rest.max():.2f})" in text
    every, controls = (pd.read_csv(boards.FOLDER / f"quick{kind}.csv") for kind in ("", ".controls"))
    last_value = controls.set_index("control").loc["Last value", "mean"]
    assert "no method is better than repeating the last value" in text
    assert last_value < every.loc[every["dataset"] == "us-income", "mean"].min()
    assert "More than half of the runs had their best validation round at the end" in text
    assert (2 * every["at_last"] >= every["seeds"]).sum() > len(every) / 2


def test_every_method_has_a_row() -> None:
    from fedweave.methods import METHODS

    rows = pd.read_csv(boards.FOLDER / "zoo.csv")
    absent = {cls.label for cls in METHODS.values() if not cls.pools} - set(rows["method"])
    assert absent == {"Direct matrix"}  # a control of pFedGAT


def test_a_missing_board_is_named(monkeypatch, tmp_path) -> None:
    with pytest.raises(BadInput, match="has no task 'letters', only digits, digits-graph, shoulder"):
        boards.board("zoo", "letters")
    with pytest.raises(BadInput, match=r"unknown\.csv: not found; take it with"):
        boards.board("unknown", "digits")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"leaderboard\.csv: does not exist yet; make it with: fedweave study use zoo"):
        boards.copy_board("zoo")
