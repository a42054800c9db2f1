"""Result folders with generated numbers: tables compared with NumPy, the printed columns, and the page."""

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import plots, report, results
from fedweave.pipelines.stages import leaderboard
from fedweave.report import page as page_data
from fedweave.report import task_view
from fedweave.results import verdicts
from fedweave.results.marks import REFERENCES
from tests.fake_results import write_single_run, write_study

METHODS = {"Local": -6.0, "FedAvg": -12.0, "FedAvg-FT": 0.0, "FedAMP": -5.0, "FedAGHN": 0.0}


TASKS = {
    "blobs": {"note": "blobs from a lossy copy"},
    "sensors": {"metric": "mse", "dataset": "metr-la", "setting": "natural"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("made") / "results" / "toy", TASKS, METHODS, rounds=8)


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return report.build(folder).read_text(encoding="utf-8")


def test_leaderboard_agrees_with_numpy_on_the_evaluations(folder: Path) -> None:
    board = results.compute_tables(results.load_study(folder)).board
    assert [*board.columns[2:]] == results.COLUMNS
    for run, row in board.set_index("run").iterrows():
        table = pd.read_parquet(folder / "runs" / run / "evaluations.parquet").query("point == 'post'")
        table = table.sort_values(["split", "seed", "round", "client"])
        test, val = table["value"].to_numpy().reshape(2, 3, 8, 12)  # splits, seeds, rounds, clients
        higher = row["metric"] == "accuracy"
        rounds = val.mean(-1).argmax(-1) if higher else val.mean(-1).argmin(-1)
        scores = test[np.arange(3), rounds]
        worst = scores.min(1) if higher else scores.max(1)
        row_values = row[["mean", "std", "client_std", "worst10"]].to_numpy(dtype=float)
        expected = [scores.mean(), scores.mean(1).std(ddof=1), scores.std(1).mean(), worst.mean()]
        np.testing.assert_allclose(row_values, expected, rtol=1e-9)
    log = pd.read_csv(folder / "runs" / "blobs-fedaghn" / "rounds.csv")
    row = board.set_index("run").loc["blobs-fedaghn"]
    assert row["bytes_down"] == log["bytes_down"].sum() / 3
    assert row["seconds"] == pytest.approx(log["seconds"].sum() / 3)


def test_best_first_in_the_direction_of_the_metric(folder: Path) -> None:
    board = results.compute_tables(results.load_study(folder)).board
    assert board[board["task"] == "blobs"]["mean"].is_monotonic_decreasing
    assert board[board["task"] == "sensors"]["mean"].is_monotonic_increasing
    rows = list(results.leaderboard_rows(board[results.COLUMNS]))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"] * 2
    assert {row["published"] for row in rows} == {results.EMPTY}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("clients", "message"), [(5, "With 5 clients there is no verdict"), (6, "")])
def test_page_and_terminal_report_too_few_clients_for_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clients: int, message: str
) -> None:
    folder = write_study(
        tmp_path / "results" / "toy", methods={"Local": -20.0, "FedAGHN": 0.0}, clients=clients, extras=False
    )
    results.write(folder)
    monkeypatch.chdir(tmp_path)
    study = results.load_study(folder)
    leaderboard.show_stored("toy", study, results.compute_tables(study))
    text = report.build(folder).read_text(encoding="utf-8")
    for shown in (capsys.readouterr().out, text):
        assert ("there is no verdict" in shown) == bool(message)
        assert ("Fewer than 6 clients: no verdict. FedAGHN leads with" in shown) == bool(message)
        assert message in shown


def test_the_terminal_shows_text_in_brackets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It identifies variants and controls."""
    names = {"FedAvg": -9.0, "FedAvg [fast]": 0.0, "FedAvg [/]": -20.0}
    folder = write_study(tmp_path / "results" / "toy", methods=names, extras=False)
    results.write(folder)
    monkeypatch.chdir(tmp_path)
    study = results.load_study(folder)
    leaderboard.show_stored("toy", study, results.compute_tables(study))
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_files_of_the_evaluate_stage(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy"
    shutil.copytree(folder, copy)
    made = results.write(copy)
    assert pd.read_csv(copy / "leaderboard.csv").columns.tolist() == results.COLUMNS
    assert set(made.significance["family"]) == {"leader", "controls", "pairs"}
    assert len(made.significance.query("family == 'pairs'")) == 2 * 10
    text = (copy / "metrics" / "blobs-fedaghn.json").read_text()
    stored = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert set(stored) == {"accuracy", "std", "worst10"}
    for name in ("clients", "curves", "significance", "best_test_round"):
        assert len(pd.read_csv(copy / f"{name}.csv")) > 0


class Page(HTMLParser):
    """Collects the references of a page, its ids and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.ids, self.words, self.tags = [], [], [], Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        references = ("src", "href", "xlink:href", "action", "srcset", "poster")
        self.links += [value or "" for name, value in attrs if name in references]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_is_self_contained_and_its_references_resolve(page: str) -> None:
    parsed = Page(page)
    assert parsed.links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in parsed.links)
    assert not any(word in page for word in ("url(http", "@import", "fetch(", "XMLHttpRequest"))
    assert parsed.tags["link"] == parsed.tags["iframe"] == parsed.tags["base"] == 0
    assert max(Counter(parsed.ids).values()) == 1
    referred = {link[1:] for link in parsed.links if link.startswith("#")} | {*re.findall(r"url\(#([^)]*)\)", page)}
    assert referred <= set(parsed.ids)


def test_page_shows_every_method_task_and_figure(page: str) -> None:
    words = Page(page).words
    for method in METHODS:
        assert sum(word == method for word in words) >= 2 * 3  # leaderboard, curves and clients of both tasks
    titles = ("blobs · blobs", "metr-la · natural", "Who learns from whom", "Tuning", "Ablations", "Environment")
    for text in (*titles, "frozen p, q"):
        assert any(text in word for word in words)
    assert "blobs from a lossy copy" in page
    # Per task: two graphs with names; over rounds FedAMP's, which has one for all layers; over rounds and layers
    # FedAGHN's.
    assert Page(page).tags["image"] == 2 * (2 + 5 + 5 + 4)


def test_page_shows_a_control_that_is_as_good(page: str) -> None:
    assert "blobs: no method is shown to be better than the control FedAvg-FT" in page
    assert "equivalent to FedAvg-FT (within 5 % of the error)" in page
    assert '<span class="open">?</span>' in page


def test_a_sentence_names_few_methods_and_counts_the_rest() -> None:
    def phrase(word: str, needed: float = np.nan, count: int = 9) -> str:
        tests = [{"method": "m0", "other": f"m{i}", "verdict": word, "seeds_needed": needed} for i in range(1, count)]
        (text,) = verdicts._outcome_phrases(tests, "1 point")
        return text

    assert phrase("equivalent") == "equivalent to m1, m2, m3, m4, m5 and 3 others (within 1 point)"
    assert phrase("better") == "better than 8 other methods"
    shown = "neither a difference nor equivalence is shown"
    assert phrase("open", 7, 2) == f"open against m1 ({shown}; 7 seeds would decide)"
    assert phrase("open", count=2) == f"open against m1 ({shown}; more seeds alone would not decide, more clients may)"


def test_methods_in_colour_differ_in_every_task() -> None:
    """Thirty-one methods on two tasks. Each task has its own best three."""
    names = [*REFERENCES, *(f"m{i:02d}" for i in range(28))]
    orders = {"first": [*names[3:], *names[:3]], "second": [*names[27:], *names[:27]]}
    parts = [pd.DataFrame({"task": task, "method": order, "mean": 50.0}) for task, order in orders.items()]
    styles = plots.assign_styles(names, page_data.emphasised_methods(pd.concat(parts)))
    for part in parts:
        bold = task_view.coloured_methods(part)
        assert len(bold) == 6
        assert len({styles[name][1:] for name in bold}) == 6


@pytest.mark.parametrize("narrow", [False, True])
def test_curves_name_the_methods_in_colour(narrow: bool) -> None:
    """Two of twenty methods have a colour. A dotted line connects the end of a shorter run with its name. In a narrow
    figure the names are below it.
    """
    names = [f"M{i}" for i in range(20)]
    rows = [(name, round, 50.0 + round) for name in names for round in range(1, 5 if name == "M1" else 9)]
    curves = pd.DataFrame(rows, columns=["method", "round", "mean"]).assign(std=1.0)
    drawn = plots.convergence(curves, plots.assign_styles(names), "accuracy", bold=["M1", "M0"], narrow=narrow)
    assert [name for name in names if f">{name}<" in drawn] == ["M0", "M1"]
    assert drawn.count("stroke-dasharray") == (0 if narrow else 1)
    assert drawn.count("var(--s0)") > 0 < drawn.count("var(--s1)")
    assert not any(f"var(--s{i})" in drawn for i in range(2, 6))


def test_curves_are_drawn_for_every_task(folder: Path, tmp_path: Path) -> None:
    """Each figure is a file that needs no network."""
    shutil.copytree(folder, tmp_path / "results" / "toy")
    study = results.load_study(tmp_path / "results" / "toy")
    drawn = report.draw_curves(study, results.compute_tables(study))
    assert {file.name for file in drawn.iterdir()} == {"blobs.svg", "sensors.svg"}
    text = (drawn / "blobs.svg").read_text()
    assert "FedAGHN" in text
    assert "http" not in text.replace("http://www.w3.org/", "")
    size = re.search(r'<svg [^>]*width="([\d.]+)" height="([\d.]+)" viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    assert size.group(1, 2) == size.group(3, 4)


@pytest.mark.usefixtures("undrawn")
def test_a_few_trials_are_listed(tmp_path: Path) -> None:
    """Importances need more trials. The list has the score and the values of each trial, and marks pruned ones."""
    folder = write_study(tmp_path / "results" / "s", methods={"FedAvg": -9.0, "FedAGHN": 0.0}, rounds=4, clients=4)
    record = json.loads((file := folder / "tuned" / "blobs" / "trials" / "blobs-fedaghn.json").read_text())
    assert "Tuning of blobs-fedaghn" in report.build(folder).read_text(encoding="utf-8")
    file.write_text(json.dumps(record | {"importance": {}}))
    text = report.build(folder).read_text(encoding="utf-8")
    assert "Tuning of blobs-fedaghn" not in text
    words = Page(text).words
    for trial in record["trials"]:
        stated = f"{trial['reached']:.2f}" + (" (pruned)" if trial["value"] is None else "")
        assert stated in words
        assert f"lr {trial['params']['lr']:.4g}" in words


def test_page_needs_no_optional_file_and_escapes_names(tmp_path: Path) -> None:
    label = "<script>alert('$x_1$')</script> & co"
    run = write_single_run(tmp_path, label=label, note="<img src=x onerror=alert(1)>")
    text = report.build(run.parents[1]).read_text(encoding="utf-8")
    assert Page(text).tags["script"] == 1
    assert Page(text).tags["img"] == 0
    assert sum(word == label for word in Page(text).words) >= 3  # complete, as text: in the table and in figures
    for section in ("Tuning", "Ablations", "Labels", "Who learns from whom"):
        assert f"<h2>{section}</h2>" not in text
        assert f"<h3>{section}</h3>" not in text
