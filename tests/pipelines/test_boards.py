"""Boards in the docs: made from the files beside them, as their sentences are."""

import re

import pandas as pd
import pytest

from fedweave.errors import BadInput
from fedweave.pipelines.commands import boards

PAGE = boards.PAGES[0]


def test_boards_show_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(boards.BLOCK.findall(page)) == 3
    assert boards.filled(page) == page
    changed = re.sub(r"(\| 1 \| \w+ \| )\d", r"\g<1>1", page)
    assert changed != page
    assert boards.filled(changed) == page


@pytest.mark.parametrize("task", ["shoulder", "digits", "digits-graph"])
def test_sentences_count_the_rows(task: str) -> None:
    rows = pd.read_csv(boards.FOLDER / "zoo.csv").query("dataset == @task")
    paragraph = next(p for p in PAGE.read_text(encoding="utf-8").split("\n- ") if p.startswith(f"On `{task}`"))
    text = " ".join(paragraph.split())
    better, others = (rows["vs_local"] == "better").sum(), len(rows) - 1
    assert f"{better or ('none' if 'none of' in text else 0)} of {others} methods" in text
    if task == "shoulder":
        means = rows.set_index("method")["mean"]
        assert not (rows["vs_fedavg_ft"] == "better").any()
        assert means["FedProto"] < means["Local"]
    if task == "digits":
        assert f"{(rows['at_last'] >= 2).sum()} of {len(rows)} rows" in text
    if task == "digits-graph":
        leaders = set(rows["method"].head(3))
        assert leaders == {"FedGTA", "FED-PUB", "pFedGraph"}
        assert (rows.set_index("method").loc[[*leaders], "vs_local"] == "undecided").all()


def test_every_method_has_a_row() -> None:
    from fedweave.methods import METHODS

    rows = pd.read_csv(boards.FOLDER / "zoo.csv")
    absent = {cls.label for cls in METHODS.values() if not cls.pools} - set(rows["method"])
    assert absent == {"Direct matrix"}  # a control of pFedGAT


def test_what_is_not_there_is_named(monkeypatch, tmp_path) -> None:
    with pytest.raises(BadInput, match="has no task 'letters', only digits, digits-graph, shoulder"):
        boards.board("zoo", "letters")
    with pytest.raises(BadInput, match=r"unknown\.csv: not there; take it with"):
        boards.board("unknown", "digits")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"leaderboard\.csv: not there yet; make it with: fedweave study use zoo"):
        boards.take("zoo")
