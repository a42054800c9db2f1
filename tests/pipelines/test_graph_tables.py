"""The tables of collaboration graphs in the docs agree with the files in the same folder."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines.commands import boards, graph_tables
from tests.fake_results import ARMS, write_study

TASKS = ("shoulder", "digits-grouped", "cifar100-grouped", "cluster-cifar100", "cora-overlap")


def test_tables_show_the_files() -> None:
    page = graph_tables.PAGE.read_text(encoding="utf-8")
    assert {match[1] for match in graph_tables.BLOCK.findall(page)} == set(TASKS)
    assert graph_tables.fill_blocks(page) == page


def test_a_graph_is_found_when_its_area_stays_above_the_threshold() -> None:
    """The first round above it does not count, and no round counts if the last one is below."""

    def found(*areas: float) -> str:
        return graph_tables.first_stable_round(pd.DataFrame({"round": [1, 5, 10, 20][: len(areas)], "auc": areas}))

    assert found(0.95, 0.8, 0.9, 1.0) == "10"
    assert found(0.9, 0.95, 1.0, 1.0) == "1"
    assert found(1.0, 1.0, 1.0, 0.89) == "–"
    assert found(np.nan, np.nan) == "–"


def test_differences_are_those_of_the_tests() -> None:
    """Each cell "minus a control" has its row among the tests. It is marked where the corrected p is below 0.05."""
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv")
    for task in TASKS:
        lines = [line.split(" | ") for line in graph_tables.table(task).splitlines()[2:]]
        part = tests[tests["task"] == task]
        cells = [cell for line in lines for cell in line[-3:] if "to" in cell]
        assert len(cells) == part["other"].str.contains(r"-(?:uniform|shuffled|oracle)\]$").sum()
        assert sum("**(!)**" in cell for cell in cells) == (part["p_adjusted"] < 0.05).sum()


def test_the_weight_of_chance_is_that_of_uniform_controls() -> None:
    rows = pd.read_csv(boards.FOLDER / "graphs.csv")
    uniform = rows[rows["method"].str.endswith("-uniform]")].groupby("task")["group_mass"].median()
    shares = {task: f"{uniform[task]:.2f}" for task in uniform.index}
    assert shares["digits-grouped"] == shares["cifar100-grouped"]
    clients, group = 100, 5  # of superclasses, which have no uniform control
    sentence = "is {} on `shoulder`, {} on the grouped tasks, {:.2f} on superclasses and {} on Cora"
    superclasses = (group - 1) / (clients - 1)
    assert (
        sentence.format(shares["shoulder"], shares["cifar100-grouped"], superclasses, shares["cora-overlap"]) in _text()
    )


def test_sentences_count_the_tests() -> None:
    """How often a learned graph is significantly better or worse than a control, and the numbers about its rows."""
    text, tests = _text(), pd.read_csv(boards.FOLDER / "graphs.tests.csv")
    for word, start, are in (
        ("uniform", "Of {} comparisons with the same method under uniform weights, ", "are significantly "),
        ("shuffled", "Of {} with shuffled weights, ", "are "),
    ):
        part = tests[tests["other"].str.endswith(f"-{word}]")]
        better, worse = ((part["better"] == part[side]).sum() for side in ("method", "other"))
        sentence = text[text.index(start.format(len(part))) :].split(". ")[0]
        assert f"{better} {are}better" in sentence
        assert f"{worse} {are}worse" in sentence
    uniform = tests[tests["other"].str.endswith("-uniform]")]
    assert set(uniform.loc[uniform["better"] == uniform["method"], "task"]) == {"cifar100-grouped"}
    rows = pd.read_csv(boards.FOLDER / "graphs.csv")
    own = rows[~rows["method"].str.endswith("]")]
    gain = own["edge_value_correlation"].dropna()
    assert f"between −{-gain.min():.2f} and {gain.max():+.2f}" in text
    assert f"above 0.3 for {(gain > 0.3).sum()} of {len(gain)} graphs" in text
    alike = own[own["row_variation"] < 1e-3]
    assert f"the rows of {len(alike)} graphs hardly differ" in text
    assert set(alike["method"]) == {"pFedGAT", "SFL", "FedAMP", "CFL", "GCFL+"}
    most = (rows["at_last"] > rows["seeds"] / 2).sum()
    assert f"for {most} of the {len(rows)} runs" in text


def test_a_correct_graph_with_contrast_helps_on_cifar100() -> None:
    """Three methods find the groups and gain, three give them hardly more weight than others and gain nothing."""
    text = _text()
    rows = pd.read_csv(boards.FOLDER / "graphs.csv").query("task == 'cifar100-grouped'").set_index("method")
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv").query("task == 'cifar100-grouped'")
    own = rows[~rows.index.str.endswith("]")]
    right = own[own["group_auc"] > graph_tables.AUC_THRESHOLD]
    sharp = right[right["group_mass"] > 0.9]
    gain = {label: row["mean"] - _twin(rows, label, "uniform") for label, row in right.iterrows()}
    assert set(sharp.index) == {"pFedGraph", "FedFomo", "Direct matrix"}
    low, high = min(gain[label] for label in sharp.index), max(gain[label] for label in sharp.index)
    assert f"they are {low:.1f} to {high:.1f} points above the same method with uniform weights" in text
    flat = right[right["group_mass"] < 0.2]
    assert set(flat.index) == {"FedAGHN", "HeurFedAMP", "FedAMP"}
    shares = [round(100 * share) for share in (flat["group_mass"].min(), flat["group_mass"].max())]
    assert "their groups get {} to {} % of the weight on others".format(*shares) in text
    assert max(abs(gain[label]) for label in flat.index) < 0.25
    missed = {label: _twin(rows, label, "oracle") - rows.loc[label, "mean"] for label in ("FedAGHN", "HeurFedAMP")}
    assert f"FedAGHN has {missed['FedAGHN']:.1f} points more and HeurFedAMP {missed['HeurFedAMP']:.1f}" in text
    oracle = tests[tests["other"].str.endswith("-oracle]")]
    worse = oracle[oracle["better"] == oracle["other"]]
    span = f"by {-worse['difference'].max():.1f} to {-worse['difference'].min():.1f} points"
    assert f"{len(worse)} of {len(oracle)} methods are significantly better than with their own graph, {span}" in text


def test_ghn_depends_on_its_graph_and_shn_does_not() -> None:
    text = _text()
    rows = pd.read_csv(boards.FOLDER / "graphs.csv")
    changes = []
    for task, ending in (
        ("cifar100-grouped", "more on grouped CIFAR-100"),
        ("cluster-cifar100", "more on superclasses"),
    ):
        part = rows[rows["task"] == task].set_index("method")
        gain = _twin(part, "GHN", "oracle") - part.loc["GHN", "mean"]
        assert f"{gain:.1f} points {ending}" in text or f"{gain:.1f} {ending}" in text
        changes += [abs(_twin(part, "SHN", word) - part.loc["SHN", "mean"]) for word in ("shuffled", "oracle")]
    assert f"(within {np.ceil(10 * max(changes)) / 10:.1f} points)" in text


def test_a_correct_graph_may_lower_the_mean() -> None:
    """On grouped digits five methods find the groups, and all have lower means than with a uniform graph."""
    means = pd.read_csv(boards.FOLDER / "graphs.csv").query("task == 'digits-grouped'").set_index("method")
    own = means[~means.index.str.endswith("]")]
    right = own[(own["group_auc"] > graph_tables.AUC_THRESHOLD) & (own["row_variation"] > 0.01)]
    assert set(right.index) == {"Direct matrix", "FedAGHN", "FedFomo", "HeurFedAMP", "pFedGraph"}
    loss = {label: _twin(means, label, "uniform") - right.loc[label, "mean"] for label in right.index}
    assert min(loss.values()) > 0
    text = _text()
    assert f"pFedGraph loses {loss['pFedGraph']:.1f} points and FedFomo {loss['FedFomo']:.1f}" in text
    for label in ("pFedGraph", "FedAGHN"):
        assert f"{_twin(means, label, 'uniform') - _twin(means, label, 'oracle'):.1f} points below uniform" in text


def test_a_correct_graph_helps_on_cora() -> None:
    """The range of the gain. With six clients no test is significant."""
    text = _text()
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv").query("task == 'cora-overlap'")
    tests = tests[tests["method"].isin(["pFedGraph", "FedGTA", "HeurFedAMP", "FED-PUB"])]
    gains = [tests[tests["other"].str.endswith(f"-{word}]")] for word in ("uniform", "shuffled")]
    (a, b), (c, d) = ((part["difference"].min(), part["difference"].max()) for part in gains)
    assert f"{a:.1f} to {b:.1f} points above the same method with uniform weights, and {c:.1f} to {d:.1f} above" in text
    assert "no corrected test is significant" in text
    assert not (tests["p_adjusted"] < 0.05).any()
    rows = pd.read_csv(boards.FOLDER / "graphs.csv").query("task == 'cora-overlap'").set_index("method")
    assert f"(AUC {rows.loc['FedSheafHN', 'group_auc']:.2f})" in text
    changes = [abs(_twin(rows, "FedSheafHN", word) - rows.loc["FedSheafHN", "mean"]) for word in graph_tables.CONTROLS]
    assert f"change the mean by {max(changes):.1f} points at most" in text


def _text() -> str:
    """The page, with one space between words."""
    return " ".join(graph_tables.PAGE.read_text(encoding="utf-8").split())


def _twin(means: pd.DataFrame, label: str, word: str) -> float:
    """The mean of the method `label` with the graph of a control."""
    own = means[means.index.str.startswith(f"{label} [") & means.index.str.endswith(f"-{word}]")]
    return float(own["mean"].item())


def test_rows_of_tasks_that_were_not_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the study replaces only its own rows. A second copy changes nothing."""
    tables = {ending: pd.read_csv(boards.FOLDER / f"graphs{ending}.csv") for ending in ("", ".tests", ".rounds")}
    shutil.copytree(boards.FOLDER, tmp_path / boards.FOLDER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="has no leaderboard; make it with: fedweave study use graphs"):
        graph_tables.copy_results()
    folder = tmp_path / "results" / "graphs"
    write_study(folder, {"shoulder": ARMS}, {"Local": -6.0, "FedAMP": 0.0}, clients=20, rounds=8, extras=False)
    results.write(folder)
    graph_tables.copy_results()
    texts = [(boards.FOLDER / f"graphs{ending}.csv").read_text() for ending in tables]
    for ending, before in tables.items():
        now = pd.read_csv(boards.FOLDER / f"graphs{ending}.csv")
        others = (table[table["task"] != "shoulder"].reset_index(drop=True) for table in (now, before))
        pd.testing.assert_frame_equal(*others)
        assert set(now.loc[now["task"] == "shoulder", "method"]) <= {"Local", "FedAMP"}
    graph_tables.copy_results()
    assert [(boards.FOLDER / f"graphs{ending}.csv").read_text() for ending in tables] == texts


def test_a_missing_task_is_named() -> None:
    with pytest.raises(
        BadInput, match="'letters' is no task of graphs, only cifar100-grouped, cluster-cifar100, cora-overlap"
    ):
        graph_tables.table("letters")
    with pytest.raises(BadInput, match="'copy' is unknown; write take, or nothing"):
        graph_tables.main("copy")
