"""A task of several splits: boards and page name the splits and the test, and no count of clients is over splits."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import fedweave as fw
from fedweave import plots, report, results
from fedweave.pipelines.scheduling import artifacts
from fedweave.pipelines.stages import leaderboard
from fedweave.report.summary import summary
from fedweave.results import verdicts
from tests.fake_results import write_study

METHODS = {"Local": -6.0, "FedAvg-FT": -3.0, "FedAGHN": 0.0}
WORDS = "3 splits (1, 2, 3): test over splits, seeds and clients"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One task of three splits, and one of a single split."""
    base = tmp_path_factory.mktemp("splits") / "results" / "splits"
    return write_study(base, {"anew": {"splits": [1, 2, 3]}, "once": {}}, METHODS, rounds=6, extras=False)


@pytest.fixture(scope="module")
def study_and_tables(folder: Path) -> tuple[results.Study, results.Tables]:
    return results.load_study(folder), results.write(folder)


def test_the_text_names_splits_and_test(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    """Below the board of this task only."""
    console = Console(file=io.StringIO(), width=160)
    leaderboard._print(console, *study_and_tables)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    anew, once = text.split("mean over clients, std over seeds")[0].split("blobs once, accuracy")
    assert f"\n{WORDS}\n" in anew
    assert " splits (" not in once
    assert "gain /" not in anew
    assert "gain /" in once


@pytest.mark.usefixtures("undrawn")
def test_the_page_names_the_test_of_every_task(
    folder: Path, study_and_tables: tuple[results.Study, results.Tables]
) -> None:
    page = report.build(folder).read_text(encoding="utf-8").replace("&#39;", "'")
    facts = dict(zip(("anew", "once"), re.findall(r"<dt>test</dt><dd>([^<]*)</dd>", page), strict=True))
    assert facts == {"anew": WORDS, "once": "over seeds and clients"}


def test_a_single_method_is_not_tested(tmp_path: Path) -> None:
    """Its splits are named, and no test."""
    folder = write_study(tmp_path / "results" / "one", {"anew": {"splits": [1, 2, 3]}}, {"FedAGHN": 0.0}, extras=False)
    runs = results.load_study(folder).runs
    assert verdicts.describe_test(runs) == "3 splits (1, 2, 3)"


@pytest.mark.parametrize(
    ("count", "clients", "words"),
    [
        (1, 6, "One seed: no verdict. "),
        (2, 6, "Two seeds: no verdict. "),
        (3, 1, "With 1 client there is no verdict: "),
        (3, 6, ""),
    ],
)
def test_a_missing_verdict_is_explained(tmp_path: Path, count: int, clients: int, words: str) -> None:
    block = {"anew": {"splits": [*range(count)]}}
    folder = write_study(tmp_path / "results" / "s", block, METHODS, range(count), clients, rounds=2, extras=False)
    study = results.load_study(folder)
    reason = verdicts.reason_without_power(study.runs, results.clients(study))
    assert reason.startswith(words)
    assert bool(reason) == bool(words)
    assert verdicts.reason_without_power(study.runs[:1], results.clients(study)) == ""


def test_the_table_of_a_flow_names_them_too(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    assert [*artifacts._designs(*study_and_tables)] == [f"anew: {WORDS}"]


def test_the_figure_of_a_flow_has_every_client_of_every_split(
    study_and_tables: tuple[results.Study, results.Tables], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_data_url", lambda _, content: content.decode())
    monkeypatch.setattr("fedweave.plots.style.standalone", str)
    monkeypatch.setattr(plots, "client_spread", lambda ticks, *_: str({len(values) for values in ticks.values()}))
    drawn = {title: figure for figure, title in artifacts._figures(*study_and_tables)}
    assert drawn["anew: accuracy of every client"] == "{36}"
    assert drawn["once: accuracy of every client"] == "{12}"


def test_clients_are_not_counted_over_splits(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    """Client 3 of one split is not client 3 of another. The result of the test against Local is still there."""
    board = study_and_tables[1].board
    counts = board[["gain", "loss", "clients"]].notna().all(axis="columns") & (board["method"] != "Local")
    assert counts.groupby(board["task"]).sum().to_dict() == {"anew": 0, "once": 2}
    line = next(line for line in summary(*study_and_tables) if line.topic == "Against Local")
    anew, once = line.sentences
    counts = r"anew: \d of 2 methods (is|are) better than Local(, \d (worse|equivalent|open))*"
    assert re.fullmatch(rf"{counts}, but Local is under-trained\.", anew)
    assert "better scores for" in once


def test_a_test_by_the_api_is_over_splits(folder: Path) -> None:
    done = fw.load(folder)
    anew, once = (done.test(f"{task}-fedaghn", f"{task}-local") for task in ("anew", "once"))
    assert re.search(r" over 3 splits and their clients\), p = \S+, \S+ corrected for 3 tests: ", str(anew))
    assert re.search(r" over seeds and clients\), p = \S+, \S+ corrected for 3 tests: ", str(once))
    assert (anew.splits, anew.clients, once.splits) == (3, 12, 1)


def test_clients_of_two_splits_are_never_averaged(
    folder: Path, study_and_tables: tuple[results.Study, results.Tables]
) -> None:
    """The API has one row per split and client. The report has one tick for each, and ranks over splits."""
    done = fw.load(folder)
    anew, once = (done[f"{task}-fedaghn"].scores for task in ("anew", "once"))
    assert anew.index.names == ["split", "client"]
    assert (len(anew), len(once)) == (36, 12)
    chosen = done["anew-fedaghn"].select_scores().pivot(index="seed", columns="client", values="value")
    for seed, split in zip(chosen.index, [1, 2, 3], strict=True):
        assert anew[split].to_dict() == chosen.loc[seed].to_dict()
    ranks = study_and_tables[1].ranks.drop_duplicates("task").set_index("task")["blocks"]
    assert (ranks["anew"], ranks["once"]) == (3, 12)
    text = report.build(folder).read_text(encoding="utf-8")
    assert text.count("Every tick is one client of one split.") == 1
    assert text.count("Ranks over splits") == text.count("Ranks over clients") > 0
    assert text.count("Seeds are averaged: it says nothing of") == 1  # those over clients
