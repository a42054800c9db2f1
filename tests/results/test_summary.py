"""The beginning of a study's report: five lines of text, marks of the tests, graphs that show the groups, runs that had
not converged.
"""

import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedweave import plots, report, results
from fedweave.pipelines.stages import leaderboard
from fedweave.pipelines.stages import report as report_stage
from fedweave.report import page as page_data
from fedweave.report.summary import summary
from fedweave.results import marks, verdicts
from fedweave.runs.control_names import LINEAR, PARTIAL, POOLED_BOOSTING
from tests.fake_results import ARMS, write_run, write_study

METHODS = {"Local": -6.0, "FedAvg": -12.0, "FedAvg-FT": -3.0, "FedAMP": -4.0, "FedAGHN": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty clients with names, in two groups."""
    base = tmp_path_factory.mktemp("summary") / "results" / "arms"
    return write_study(base, {"shoulder": ARMS}, METHODS, clients=20, rounds=8, extras=False)


@pytest.fixture(scope="module")
def tables(folder: Path) -> results.Tables:
    return results.write(folder)


@pytest.fixture(scope="module")
def page(folder: Path, tables: results.Tables) -> str:
    return report.build(folder).read_text(encoding="utf-8")


def draws() -> np.random.Generator:
    """The same draws for every run, for any order of the runs."""
    return np.random.default_rng(4)


def lines(folder: Path) -> dict[str, str]:
    """The texts by topic."""
    study = results.load_study(folder)
    return {line.topic: line.text for line in summary(study, results.compute_tables(study))}


def test_every_method_has_one_mark(tables: results.Tables) -> None:
    """Marks partition the methods. The tables agree with the tests behind them."""
    board = tables.board
    marking = marks.assign_marks(board, tables.significance)
    assert {*marking} == {*board["method"]}
    assert {*marking.values()} <= {"best", "lead", "equivalent", "open", "behind"}
    assert sum(mark in ("best", "lead") for mark in marking.values()) == 1
    assert board["mark"].tolist() == [marking[method] for method in board["method"]]
    leading = tables.significance[tables.significance["family"] == "leader"]
    for test in leading.to_dict("records"):
        assert marking[test["other"]] == {"better": "behind"}.get(test["verdict"], test["verdict"])


def test_clients_that_gain_and_lose_are_counted(folder: Path, tables: results.Tables) -> None:
    mean = tables.clients.groupby(["method", "client"])["value"].mean()
    for row in tables.board.to_dict("records"):
        difference = mean[row["method"]] - mean["Local"]
        counts = ((difference > 0).sum(), (difference < 0).sum(), 20)
        expected = (np.nan,) * 3 if row["method"] == "Local" else counts
        np.testing.assert_array_equal([row["gain"], row["loss"], row["clients"]], expected)


def test_the_five_lines_agree_with_the_tables(folder: Path, tables: results.Tables) -> None:
    summary, board = lines(folder), tables.board
    assert [*summary] == ["Who leads", "Against Local", "Deploy", "True groups", "Tuning", "Convergence"]
    row = board.iloc[0]
    assert f"shoulder: {row['method']} leads with {row['mean']:.2f} ± {row['std']:.2f} %" in summary["Who leads"]
    best = board[board["vs_local"] == "better"].iloc[0]
    counts = f"better scores for {best['gain']:.0f} of 20 clients, worse for {best['loss']:.0f}"
    assert f"; {best['method']}: {counts}" in summary["Against Local"]
    better = (board["vs_local"] == "better").sum()
    assert f"{better} of 4 methods {'is' if better == 1 else 'are'} better than Local" in summary["Against Local"]
    named = {*re.findall(r"Local|FedAvg-FT|FedAvg|FedAMP|FedAGHN", summary["Convergence"])}
    assert named == {*results.unconverged_rows(board)["method"]}
    auc = tables.measures[tables.measures["quantity"] == "group_auc"].set_index("method")["value"]
    assert auc.to_dict() == {"FedAMP": 1.0, "FedAGHN": 1.0}
    assert "the groups left and right: found by FedAGHN 1.00 and FedAMP 1.00" in summary["True groups"]
    assert summary["Tuning"] == "Untuned: lr=0.05 for all."


def test_clients_are_counted_with_the_method_that_is_better_than_local(folder: Path, tables: results.Tables) -> None:
    """The leader may be open against Local: its counts would read as those of the one method that is better."""
    board = tables.board
    words = {"FedAMP": "better", "Local": ""}
    changed = tables._replace(board=board.assign(vs_local=[words.get(method, "open") for method in board["method"]]))
    assert board["method"].iloc[0] != "FedAMP"
    line = next(line for line in summary(results.load_study(folder), changed) if line.topic == "Against Local")
    row = board.set_index("method").loc["FedAMP"]
    start = "shoulder: 1 of 4 methods is better than Local, 3 open"
    assert line.text.startswith(
        f"{start}; FedAMP: better scores for {row['gain']:.0f} of 20 clients, worse for {row['loss']:.0f}"
    )


def test_a_gain_over_an_under_trained_local_is_not_told_without_saying_so(folder: Path, tables: results.Tables) -> None:
    board = tables.board
    trained = tables._replace(board=board.assign(at_last=0))
    short = tables._replace(board=board.assign(at_last=np.where(board["method"] == "Local", 3, 0)))
    said = [" ".join(line.text for line in summary(results.load_study(folder), one)) for one in (trained, short)]
    assert ["but Local is under-trained; " in text for text in said] == [False, True]


def test_a_control_that_is_as_good_is_named_first(tmp_path: Path) -> None:
    names = {"Local": -9.0, "FedAvg-FT": 0.2, "FedAGHN": 0.0}
    copy = write_study(tmp_path / "results" / "s", {"t": {}}, names, rounds=4, extras=False)
    warning = "t: no method is shown to be better than the control FedAvg-FT (FedAvg-FT "
    assert lines(copy)["Who leads"].startswith(warning)
    apart = write_study(tmp_path / "results" / "u", {"t": {}}, {**names, "FedAGHN": 9.0}, rounds=4, extras=False)
    assert "control" not in lines(apart)["Who leads"]
    alone = write_study(tmp_path / "results" / "v", {"t": {}}, {"FedAGHN": 0.0, "FedAMP": -9.0}, rounds=4, extras=False)
    assert lines(alone)["Against Local"] == "Local was not run, so nothing shows whether collaboration helps a client."


@pytest.mark.usefixtures("undrawn")
def test_one_seed_gives_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said before all else, also before the control that no method is better than, and once by the board."""
    folder = write_study(tmp_path / "results" / "s", {"t": {}}, METHODS, seeds=(0,), rounds=4, extras=False)
    study, tables = results.load_study(folder), results.write(folder)
    assert {*tables.board["mark"]} == {"lead", "no verdict"}
    assert {*tables.board["vs_local"]} == {""}
    first = next(line for line in summary(study, tables) if line.topic == "Who leads")
    assert first.warning
    assert first.sentences[0].startswith("t: One seed: no verdict. FedAGHN leads with ")
    assert first.sentences[1].startswith("t: no method is shown to be better than the control ")
    assert lines(folder)["Against Local"].startswith("t: one seed: no verdict; FedAGHN: better scores for ")
    console = Console(width=160)
    leaderboard.print_boards(console, study, tables)
    board = capsys.readouterr().out
    assert board.count("no verdict") == 1
    assert re.search(r"95 % interval .*\n.* over clients ", board)
    page = report.build(folder).read_text(encoding="utf-8")
    section = page[page.index('class="task"') : page.index('id="summary"')]
    assert section.count("One seed: no verdict") == 1
    assert "95 % interval over clients</th>" in section
    assert ">p</button>" not in section


def test_tooltips_have_the_whole_test(tables: results.Tables, page: str) -> None:
    test = tables.significance.query("family == 'leader' and other == 'FedAMP'").to_dict("records")[0]
    size, low, high = (f"{test[name]:.2f}" for name in ("difference", "low", "high"))
    interval = f"95 % interval {low} to {high} points lower, p = {test['p_adjusted']:.2g}, margin 1.00"
    assert f"; FedAMP against FedAGHN: {size} points lower, {interval}" in page


@pytest.mark.usefixtures("undrawn")
def test_methods_that_do_not_depend_on_the_seed_are_named(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "results" / "s", {"t": {}}, METHODS, rounds=4, extras=False)
    for label in ("local", "fedavg"):
        path = folder / "runs" / f"t-{label}" / "evaluations.parquet"
        table = pd.read_parquet(path)
        first = table[table["seed"] == 0]
        pd.concat([first.assign(seed=seed) for seed in (0, 1, 2)]).to_parquet(path, index=False)
    tests = results.compute_tables(results.load_study(folder)).significance
    sentence = "FedAvg and Local do not depend on the seed: compared with each other over clients."
    assert verdicts.describe_fixed(tests) == sentence
    assert sentence in report.build(folder).read_text(encoding="utf-8")


def test_a_method_with_more_rounds_is_named(tmp_path: Path) -> None:
    """A method with a first stage trains longer. Equal rounds need no line."""
    folder = write_study(tmp_path / "results" / "arms", {"shoulder": ARMS}, METHODS, clients=20, rounds=8, extras=False)
    assert "Unequal budgets" not in lines(folder)
    write_run(folder, "shoulder", "SHN", 1.0, ARMS, (0, 1, 2), 20, 12, draws())
    assert lines(folder)["Unequal budgets"] == "shoulder: 12 rounds for SHN, 8 for all others."
    run = write_run(folder, "shoulder", "Mine", 1.0, ARMS, (0, 1, 2), 20, 1, draws())
    info = json.loads((run / "run.json").read_text()) | {"contestant": {"how": "program", "unequal": []}}
    (run / "run.json").write_text(json.dumps(info))
    budgets = "shoulder: Mine has a budget of its own. shoulder: 12 rounds for SHN, 8 for all others."
    assert lines(folder)["Unequal budgets"] == budgets


def test_a_graph_of_identical_rows_does_not_count(tmp_path: Path) -> None:
    """Columns of the larger group have more weight. The AUC is above chance, but every client gets the same mixture."""
    group = [0] * 9 + [1] * 3
    block = {"group": group, "group_names": ["large", "small"]}
    run = write_run(tmp_path / "results" / "s", "t", "FedAGHN", 0.0, block, (0,), 12, 6, draws())
    weights = np.tile(np.where(np.array(group) == 0, 0.1, 0.01), (1, 1, 12, 1)).astype(np.float32)
    np.savez(run / "collaboration-0.npz", rounds=[1], weights=weights, layers=["all"])
    table = results.compute_tables(results.load_study(run.parents[1])).measures.set_index("quantity")["value"]
    assert table["group_auc"] > 0.7
    assert table["row_variation"] == pytest.approx(0.0, abs=1e-6)
    said = lines(run.parents[1])
    assert "no graph, rows nearly identical: FedAGHN" in said["True groups"]
    assert said["Collapsed graphs"] == "t: all clients get nearly the same mixture with FedAGHN."


def test_the_line_on_tuning_has_the_changes(tmp_path: Path) -> None:
    copy = write_study(tmp_path / "results" / "s", methods={"FedAvg": -9.0, "FedAGHN": 0.0}, rounds=4)
    changes = {}
    for file in copy.glob("tuned/*/trials/*.json"):
        values = [trial["value"] for trial in json.loads(file.read_text())["trials"]]
        changes[file.stem] = max(value for value in values if value is not None) - values[0]
    most = max(changes, key=lambda run: changes[run])
    assert lines(copy)["Tuning"] == (
        "20 trials each for 2 of 2 runs; 2 took other values than the declared ones. Their validation scores became "
        f"{np.median([*changes.values()]):.1f} points higher in the median, and {changes[most]:.1f} points higher for "
        f"{most}, the most."
    )


@pytest.mark.usefixtures("undrawn")
def test_the_line_on_tuning_by_bytes_has_the_savings(tmp_path: Path) -> None:
    copy = write_study(tmp_path / "results" / "s", methods={"FedAvg": -9.0, "FedAGHN": 0.0}, rounds=4)
    for file in copy.glob("tuned/*/trials/*.json"):
        record = json.loads(file.read_text())
        for number, trial in enumerate(record["trials"]):
            trial["bytes"] = 2**20 * (8 if number == 0 else 2)
        file.write_text(json.dumps(record))
    assert lines(copy)["Tuning"].endswith("The bytes of a repetition changed by \N{MINUS SIGN}75 % in the median.")
    page = " ".join(report.build(copy).read_text(encoding="utf-8").split())
    assert page.count('<td class="n">8.0 → 2.0</td>') == 2


@pytest.mark.parametrize(("best", "late"), [((6, 6, 2), True), ((6, 2, 2), False), ((3, 3, 3), False)])
def test_a_run_whose_best_round_is_the_last_had_not_converged(
    tmp_path: Path, best: tuple[int, ...], late: bool
) -> None:
    run = write_run(tmp_path / "results" / "s", "t", "FedAMP", 0.0, {"select": "last"}, range(3), 8, 6, draws())
    table = pd.read_parquet(run / "evaluations.parquet")
    peak = table["seed"].map(dict(enumerate(best)))
    table["value"] = 50.0 - (table["round"] - peak).abs() + 0.1 * table["client"]
    table.to_parquet(run / "evaluations.parquet", index=False)
    study = results.load_study(run.parents[1])
    board = results.compute_tables(study).board
    assert board["at_last"].item() == sum(round == 6 for round in best)
    assert board["best_round"].item() == np.mean(best)
    assert ("Not converged" in lines(run.parents[1])["Convergence"]) == late
    assert bool(len(results.unconverged_rows(board))) == late


def test_one_evaluated_round_gives_no_line_on_convergence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "results" / "s", "t", "FedAMP", 0.0, {}, (0, 1), 8, 1, draws())
    assert results.compute_tables(results.load_study(run.parents[1])).board["at_last"].item() == 0
    assert lines(run.parents[1])["Convergence"] == "Not known: each run has scores of one round only."


def test_the_page_begins_with_the_lines_and_names_clients(page: str, folder: Path) -> None:
    tables = ['class="task"', 'class="answers"', 'class="forest"', 'class="sortable board"']
    figures = ["Who gains and who loses", "Who learns from whom", "Over rounds"]
    places = [page.index(text) for text in (*tables, *figures, '<section id="summary">', 'id="method"')]
    assert places == sorted(places)
    for text in lines(folder).values():
        for sentence in text.split("; "):
            assert sentence.strip(".")[:40] in page
    for name in ("subject 3, left", "subject 9, right"):
        assert page.count(f">{name}<") >= 4  # rows and columns of two graphs
    assert ">left<" in page
    assert "told apart" not in page


def test_terminal_and_page_have_the_same_lines(
    folder: Path, tables: results.Tables, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parents[1])
    leaderboard.show_stored("arms", results.load_study(folder), tables)
    shown = capsys.readouterr().out
    for line in summary(results.load_study(folder), tables):
        assert f"{line.topic}:" in shown
        assert all(f" {sentence}\n" in shown for sentence in line.sentences)
    row = tables.board.iloc[0]
    assert f"{row['low']:.2f} to {row['high']:.2f}" in shown


def test_the_file_is_plain_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the stage runs in a terminal that has colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.chdir(folder.parents[1])
    file = Path("results", "arms", "leaderboard.txt")
    study = results.load_study(file.parent)
    report_stage.write_board("arms", study, results.compute_tables(study))
    text = file.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert max(map(len, text.splitlines()[:4])) <= 120


def test_tasks_have_one_order_in_all_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each task has one line, and its warning comes first. The line on tuning names the task of its numbers."""
    names = {"Local": -9.0, "FedAvg-FT": 0.2, "FedAGHN": 0.0}
    folder = write_study(tmp_path / "results" / "s", {"a": {}, "b": ARMS}, names, clients=20, rounds=6)
    study = results.load_study(folder)
    rows = summary(study, results.compute_tables(study))
    for line in rows:
        about = [sentence[0] for sentence in line.sentences if re.match(r"[ab][:,] ", sentence)]
        assert about == sorted(about), line
    tuned = next(line for line in rows if line.topic == "Tuning")
    assert [sentence[:17] for sentence in tuned.sentences] == ["a: 20 trials each", "b: Untuned: lr=0."]
    leaderboard.print_summary(Console(), rows)
    shown = capsys.readouterr().out
    assert re.search(r"^Tuning:\n  a: 20 trials .*\n  b: Untuned", shown, re.M)


@pytest.mark.parametrize(("width", "gain"), [(160, True), (60, False)])
def test_only_visible_columns_are_explained(
    folder: Path, tables: results.Tables, width: int, gain: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(width=width)
    leaderboard.print_legend(console, results.load_study(folder), tables, leaderboard.boards(console, tables).values())
    text = capsys.readouterr().out
    assert ("gain / loss: clients" in text) == gain
    assert "mean over clients, std over seeds" in text
    assert "one test decides, over seeds and clients" in text
    assert "behind" in {*tables.board["mark"]}
    assert f"? open ({marks.NOTHING_SHOWN}), no mark: worse, or no verdict" in text


@pytest.mark.parametrize(
    ("width", "present", "absent"),
    [
        (160, ["seconds", "received", "FedAvg-FT"], []),
        (120, ["Local", "FedAvg-FT", "gain /"], ["seconds"]),
        (100, ["received", "training"], ["seconds"]),
        (60, ["mean ± std"], ["seconds", "MiB"]),
    ],
)
def test_a_narrow_terminal_shows_fewer_and_complete_columns(
    tables: results.Tables, width: int, present: list[str], absent: list[str]
) -> None:
    """Beside the names of the controls of all kinds."""
    kinds = {LINEAR: results.RULE, PARTIAL: results.RULE, POOLED_BOOSTING: results.POOLED}
    controls = pd.DataFrame(kinds.items(), columns=["control", "kind"])
    controls = controls.assign(metric="accuracy", mean=50.0, worst10=9.0)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(leaderboard.fit_board(console, tables.board, controls))
    shown = console.export_text()
    assert "…" not in shown
    assert all(word in shown for word in present)
    assert not any(word in shown for word in absent)
    lines = [line.split() for line in shown.splitlines() if line.strip()][-5:]
    assert [line[0] for line in lines] == ["[control]", "Linear", "Partial", "[not", "Boosting"]
    for row in tables.board.to_dict("records") if "received" in present else ():
        assert f"{row['pre']:.2f}  " in shown
        assert f"{row['post']:.2f}  " in shown


def test_clients_without_names_have_numbers(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "results" / "u", "t", "FedAMP", 0.0, {}, (0,), 8, 2, draws())
    assert results.load_run(plain).client_names == [f"client {i}" for i in range(8)]
    assert results.load_run(plain).group_names(np.array([0, 2])) == ["group 0", "group 1", "group 2"]


@pytest.mark.parametrize(("count", "drawn"), [(2, False), (5, True)])
def test_ranks_over_few_tasks_are_not_drawn(tmp_path: Path, count: int, drawn: bool) -> None:
    names = {"Local": -9.0, "FedAvg": -3.0, "FedAGHN": 0.0}
    base = write_study(tmp_path / "results" / "s", {f"t{i}": {} for i in range(count)}, names, (0,), 6, 2, extras=False)
    tables = results.compute_tables(results.load_study(base))
    assert bool(page_data.ranking_over_tasks(tables.ranks)) == drawn
    marking = {task: marks.assign_marks(part, tables.significance) for task, part in tables.board.groupby("task")}
    ranks = [float(row.rank) for row in page_data.overview(tables.board, marking, plots.assign_styles([*names]))]
    assert ranks == sorted(ranks)
