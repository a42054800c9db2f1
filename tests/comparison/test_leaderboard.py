"""The leaderboard in Python: the documented columns, the numbers of the tables, and no unnecessary computation."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp as t_test

import fedweave as fw
from fedweave import results
from fedweave.comparison.leaderboard import explain_words
from fedweave.report.summary import summary
from fedweave.results import statistics
from fedweave.results.marks import control_tests, outcome
from tests.fake_results import write_study

DOCS = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
METHODS = {"Local": -6.0, "FedAvg": -3.0, "FedAvg-FT": -0.1, "FedAMP": -5.0, "FedAGHN": 0.0}


def write_results(folder: Path, tasks: tuple[str, ...] = ("blobs",), methods: dict[str, float] = METHODS) -> Path:
    block = {"points": {"FedAvg": "pre"}}
    return write_study(folder / "results" / "s", dict.fromkeys(tasks, block), methods, rounds=6, extras=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    return fw.load(write_results(tmp_path_factory.mktemp("board")))


def list_documented_columns() -> list[str]:
    """The columns in the first cells of the table in docs/comparison.md."""
    section = DOCS.read_text(encoding="utf-8").split("## The leaderboard in Python\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.M)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_columns_are_the_documented_ones(done: fw.Comparison) -> None:
    assert [*done.leaderboard()] == list_documented_columns()


def test_a_control_has_columns_only_if_it_was_compared(tmp_path: Path) -> None:
    """If there are several tasks, they are named."""
    several = fw.load(write_results(tmp_path, ("blobs", "circles"), {"Local": -6.0, "FedAMP": -5.0, "FedAGHN": 0.0}))
    board = several.leaderboard()
    assert [*board] == ["task", *(name for name in list_documented_columns() if "fedavg_ft" not in name)]
    assert board["rank"].tolist() == [1, 2, 3, 1, 2, 3]
    assert {*board["method"]} == {*several.methods}


def test_a_control_with_a_name_of_its_own_is_the_control(tmp_path: Path) -> None:
    """Tests and gains find it. Where the plain one is there too, or trains in another way, it stays a variant."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(90, 3)), np.arange(90) % 2
    federation = fw.Federation.from_arrays(x, y, client=np.arange(90) % 3)
    methods = {"alone": "local", "tuned": "fedavg_ft", "near": fw.methods.Ditto(lam=0.1)}
    options = {"model": "linear", "rounds": 1, "seeds": 2, "progress": False, "tune": 0}
    named = fw.compare(federation, methods, out=tmp_path / "named", **options)
    plain = fw.compare(federation, [*methods.values()], **options)
    board, expected = (made.leaderboard().drop(columns=["method", "seconds"]) for made in (named, plain))
    pd.testing.assert_frame_equal(board, expected)
    assert {"vs_local", "vs_fedavg_ft"} < {*board}
    assert {*named.methods} == {*methods}
    file = tmp_path / "named" / "runs" / "own-data-alone" / "run.json"
    info = json.loads(file.read_text(encoding="utf-8"))
    info["spec"]["train"]["lr"] = 0.5
    file.write_text(json.dumps(info), encoding="utf-8")
    assert "vs_local" not in fw.load(tmp_path / "named").leaderboard()


WORDS = {"behind": "is better", "equivalent": "equivalent (within 1.00 points; p = ", "open": ": open; "}


def test_a_test_of_two_methods_has_the_verdict_of_the_leaderboard(tmp_path: Path) -> None:
    """With two methods there is one test, so that the correction changes nothing. Every verdict occurs."""
    draws, found = np.random.default_rng(0), set()
    folder = write_results(tmp_path, methods={"FedAMP": -5.0, "FedAGHN": 0.0})
    for spread, gain in [(0.0, 3.0), (0.1, 0.0), (4.0, 4.0), *((spread, 1.5) for spread in np.linspace(0.2, 3, 12))]:
        compared = fw.load(folder)
        table = compared.selected_scores.copy()
        shape = (table["seed"].nunique(), table["client"].nunique())
        base = draws.normal(70, 8, size=shape)
        shifts = gain + spread * draws.normal(size=(shape[0], 1)) + 0.1 * draws.normal(size=shape)
        for run, values in zip(compared.runs.values(), (base, base + shifts), strict=True):
            rows = table["run"] == run.name
            seeds, clients = (table.loc[rows, name].rank(method="dense").astype(int) - 1 for name in ("seed", "client"))
            table.loc[rows, "value"] = values[seeds, clients]
        vars(compared)["selected_scores"] = table
        leader, other = compared.leaderboard()["verdict"]
        text = str(compared.test(*compared.methods))
        found.add(other)
        assert WORDS[other] in text, (leader, other, text)
    assert found == {"behind", "equivalent", "open"}


def test_the_board_agrees_with_the_tables(done: fw.Comparison) -> None:
    """Scores, both points, verdicts, and the interval of the method's difference from each control."""
    tables = results.compute_tables(done.study)
    board, rows = done.leaderboard(), tables.board
    same = ["mean", "std", "low", "high", "pre", "post", "pooled", "client_std", "worst10", "vs_local", "vs_fedavg_ft"]
    pd.testing.assert_frame_equal(board[same], rows[same], check_exact=True)
    assert board["verdict"].tolist() == rows["mark"].tolist()
    leading = tables.significance[tables.significance["family"] == "leader"].set_index("other")
    for name, column in {"p": "p_adjusted", "margin": "margin"}.items():
        np.testing.assert_array_equal(board[name], rows["method"].map(leading[column]))
    assert board["rank"].tolist() == [1, 2, 3, 4, 5]
    reported = [row[row["point"]] for row in board.to_dict("records")]
    np.testing.assert_allclose(board["mean"], reported)
    assert {*board["point"]} == {"pre", "post"}
    for control, name in {"Local": "vs_local", "FedAvg-FT": "vs_fedavg_ft"}.items():
        tests = control_tests(tables.significance, control)
        for method, row in zip(rows["method"], board.to_dict("records"), strict=True):
            test = tests.get(method, {"low": np.nan, "high": np.nan})
            np.testing.assert_array_equal([row[f"{name}_low"], row[f"{name}_high"]], [test["low"], test["high"]])
            assert row[name] == (outcome(test, method) if method != control else "")


def test_tests_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call and another order of `scores` compute no test."""
    computed = fw.load(write_results(tmp_path))
    first = computed.leaderboard()
    monkeypatch.setattr(results, "significance", None)  # a call to it fails the test
    pd.testing.assert_frame_equal(computed.leaderboard(), first)
    assert [*computed.scores()] == first["method"].tolist()
    first["mean"] = 0.0  # a copy: a change of it has no effect elsewhere
    assert computed.leaderboard()["mean"].min() > 0


def test_another_margin_judges_the_same_runs(tmp_path: Path) -> None:
    """Equivalence within the margin, which `save` stores."""
    folder = write_results(tmp_path, methods={"Local": -6.0, "FedAMP": -0.01, "FedAGHN": 0.0})
    strict, wide = (fw.load(folder).with_margin(margin) for margin in (0.0, "50 %"))
    words = [compared.leaderboard().set_index("method")["verdict"] for compared in (strict, wide)]
    assert [one["fedaghn"] for one in words] == ["open", "equivalent"]
    assert [one["local"] for one in words] == ["behind", "behind"]  # a difference that is shown stays one
    assert strict.leaderboard()["margin"].dropna().eq(0).all()
    assert "equivalent: the accuracy differs by no more than 50 % of the smaller mean" in str(wide)
    pd.testing.assert_frame_equal(fw.load(folder).leaderboard(), fw.load(folder).with_margin(1).leaderboard())
    with pytest.raises(fw.BadInput, match="report: the folder has another margin; call save"):
        wide.report()
    saved = fw.load(wide.save(tmp_path / "copy"))
    pd.testing.assert_frame_equal(saved.leaderboard(), wide.leaderboard())
    assert json.loads((tmp_path / "copy" / "margins.json").read_text()) == {"accuracy": "50 %"}
    assert not (folder / "margins.json").exists()
    saved.with_margin(0.25).save(tmp_path / "copy")
    assert fw.load(tmp_path / "copy").study.margin("accuracy").points == 0.25
    for bad in (-1, "5", True, None, float("nan")):
        with pytest.raises(fw.BadInput, match=r"^margin: .* is not a margin; write a number in the unit of the score"):
            saved.with_margin(bad)  # type: ignore[arg-type]


def test_a_margin_is_checked_before_any_work_and_stored(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(240, 3)), np.arange(240) % 2
    federation = fw.Federation.from_arrays(x, y, client=np.arange(240) % 6)
    call = {"model": "linear", "rounds": 1, "seeds": 2, "central": False, "progress": False, "out": tmp_path / "out"}
    with pytest.raises(fw.BadInput, match=r"^margin: '5' is not a margin"):
        fw.compare(federation, ["local", "fedavg"], margin="5", **call, tune=0)
    assert not (tmp_path / "out" / "runs").exists()
    fw.compare(federation, ["local", "fedavg"], **call, tune=0)
    assert not (tmp_path / "out" / "margins.json").exists()
    compared = fw.compare(federation, ["local", "fedavg"], margin=np.float64(40), **call, tune=0)
    loaded = fw.load(tmp_path / "out")
    assert compared.study.margins == loaded.study.margins == {"accuracy": fw.metrics.Margin(points=40.0)}
    assert "40 points, chosen after the results" in loaded.study.margin("accuracy").describe("accuracy")
    pd.testing.assert_frame_equal(loaded.leaderboard(), compared.leaderboard())
    assert fw.compare(federation, ["local", "fedavg"], **call, tune=0).study.margins == loaded.study.margins


def test_a_margin_that_was_chosen_after_the_results_says_so(tmp_path: Path) -> None:
    """Wherever the margin is named. Not one that was given before training, and not the default."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(240, 3)), np.arange(240) % 2
    federation = fw.Federation.from_arrays(x, y, client=np.arange(240) % 6)
    call = {"model": "linear", "rounds": 1, "seeds": 3, "central": False, "progress": False, "tune": 0}
    with warnings.catch_warnings(action="ignore"):  # of few rows and rounds
        before = fw.compare(federation, ["fedavg", "scaffold"], margin=40, out=tmp_path / "out", **call)
        again = fw.compare(federation, ["fedavg", "scaffold", "fedprox"], out=tmp_path / "out", **call)
    after = "chosen after the results"
    assert "equivalent (within 40.00 points; p = " in str(before.test("fedavg", "scaffold"))
    for compared in (before, again, fw.load(tmp_path / "out"), again.with_margin(1)):
        assert after not in str(compared)
        assert after not in str(compared.test("fedavg", "scaffold"))
    with warnings.catch_warnings(action="ignore"):
        later = fw.compare(federation, ["fedavg", "scaffold", "fedprox"], margin=41, out=tmp_path / "out", **call)
    copied = fw.load(before.save(tmp_path / "copy"))
    for compared in (later, fw.load(tmp_path / "out"), before.with_margin(30), copied):
        is_changed = compared.study.margins != before.study.margins
        assert (after in str(compared)) == (after in str(compared.test("fedavg", "scaffold"))) == is_changed
    assert f"within 41 points, {after}" in fw.load(tmp_path / "out").report().read_text()
    with warnings.catch_warnings(action="ignore"):  # further seeds are no new beginning
        call |= {"seeds": 4, "margin": 42, "out": tmp_path / "out"}
        further = fw.compare(federation, ["fedavg", "scaffold", "fedprox"], **call)
    assert after in str(further)


def test_two_fixed_models_are_compared_over_clients(tmp_path: Path) -> None:
    """Those of one seed, as they are: other seeds and other methods do not matter."""
    compared = fw.load(write_results(tmp_path))
    test = compared.test("fedaghn", "fedamp", seed=1)
    table = compared.selected_scores[compared.selected_scores["seed"] == 1]
    scores = [results.score_matrix(table, compared.runs[name].name).to_numpy() for name in ("fedaghn", "fedamp")]
    difference = (scores[0] - scores[1])[0]
    expected = t_test(difference, 0.0)
    assert (test.over, test.tests, test.seeds, test.clients) == ("clients", 1, 1, 12)
    np.testing.assert_allclose([test.difference, test.p], [difference.mean(), expected.pvalue], rtol=1e-6)
    np.testing.assert_allclose([test.low, test.high], expected.confidence_interval(), rtol=1e-6)
    assert test.verdict == "better"
    with pytest.raises(fw.BadInput, match="seed: 9 was not trained; choices: 0, 1, 2"):
        compared.test("fedaghn", "fedamp", seed=9)


def test_one_seed_gives_no_verdict(tmp_path: Path) -> None:
    """The board says so once, in place of a verdict, however large a difference is."""
    folder = write_study(tmp_path / "results" / "s", {"blobs": {}}, METHODS, seeds=(0,), rounds=6, extras=False)
    board = fw.load(folder).leaderboard()
    assert {*board["verdict"]} == {"lead", "no verdict"}
    assert {*board["vs_local"]} == {""}
    assert board["p"].isna().all()
    assert str(fw.load(folder)).count("one seed: no verdict") == 1
    assert str(fw.load(folder).test("fedaghn", "local")).endswith("over clients): one seed: no verdict")


def test_a_graph_control_is_listed_last_without_a_rank(tmp_path: Path) -> None:
    """Also if it has the best mean. Then the best method leads on all boards, and all verdicts are against that."""
    folder = write_results(tmp_path, methods={"FedAGHN [shuffled]": 0.5, "FedAGHN": 0.0, "Local": -12.0})
    for label, graph in {"fedaghn--shuffled-": "shuffled", "fedaghn": "learned"}.items():
        file = folder / "runs" / f"blobs-{label}" / "run.json"
        info = json.loads(file.read_text())
        info["spec"]["method"]["graph"] = graph
        file.write_text(json.dumps(info))
    tables = results.write(folder)
    stored = fw.load(folder)
    control, other = "FedAGHN [shuffled]", ["FedAGHN", "Local"]
    assert tables.board["mean"].idxmax() == 2
    assert tables.board["method"].tolist() == [*other, control]
    assert tables.board["mark"].tolist() == ["best", "behind", "graph control"]
    tests = tables.significance
    assert {*tests[tests["family"] == "leader"]["method"]} == {"FedAGHN"}
    assert [row["rank"] for row in results.leaderboard_rows(tables.board)] == ["1", "2", ""]
    ranked = stored.leaderboard()
    assert ranked["verdict"].tolist() == tables.board["mark"].tolist()
    np.testing.assert_array_equal(ranked["rank"], [1, 2, np.nan])
    assert ranked["p"].notna().tolist() == [False, True, True]
    leads, *_, learned = [line.text for line in summary(stored.study, tables) if "FedAGHN" in line.text]
    assert "FedAGHN leads" in leads
    assert control not in leads
    assert control in learned


def _header(lines: list[str]) -> str:
    return next(line for line in lines if "rank" in line.split())


def test_printed_comparison_has_the_scores_in_a_terminal(tmp_path: Path) -> None:
    """The main columns of `leaderboard` in its order, at most 120 characters wide, with the rules below.

    What the scores of one task cannot show is said before them.
    """
    for tasks in (("blobs",), ("blobs", "circles")):
        comparison = fw.load(write_results(tmp_path / tasks[-1], tasks))
        title, *lines = str(comparison).splitlines()
        assert title == repr(comparison)
        assert max(map(len, lines)) <= 120
        said = lines[: lines.index(_header(lines))]
        assert " ".join(said).startswith("Under-trained: " if len(tasks) == 1 else "")
        header, *lines = lines[len(said) :]
        board = comparison.leaderboard()
        columns = [name for name in board if name in header.split()]
        assert {"rank", "mean", "low", "high", "verdict", "vs_local", "vs_fedavg_ft", "pre", "post"} < {*columns}
        assert ("task" in columns) == (len(tasks) == 2)
        for line, row in zip(lines, board.to_dict("records"), strict=False):
            numbers = [f"{row[name]:.2f}" for name in ("mean", "low", "high", "pre", "post")]
            assert [word for word in line.split() if word in numbers] == numbers
        words = [line for line in lines if line.startswith(("equivalent: ", "open: ", "untuned: "))]
        assert [line for line in lines if "[control]" in line] == lines[len(board) : len(lines) - len(words)]
        assert words == [*explain_words(board, comparison.study), "untuned: lr=0.05 for all"]


def draw_scores(folder: Path, draws: np.random.Generator) -> fw.Comparison:
    """The comparison in `folder` with drawn scores: every method has a gain of its own."""
    compared = fw.load(folder)
    table = compared.selected_scores.copy()
    for run in compared.runs.values():
        rows = table["run"] == run.name
        table.loc[rows, "value"] = 70 + 5 * draws.random() + draws.normal(0, 2.5, size=rows.sum())
    vars(compared)["selected_scores"] = table
    return compared


def test_a_test_of_many_methods_has_the_correction_of_the_leaderboard(tmp_path: Path) -> None:
    """It says what the leaderboard says, also where the test of the pair alone would say something else."""
    labels = ("Local", "FedAvg-FT", *(f"M{i}" for i in range(6)))
    folder = write_results(tmp_path, methods=dict.fromkeys(labels, 0.0))
    draws, differs, found = np.random.default_rng(1), 0, set()
    for _ in range(8):
        compared = draw_scores(folder, draws)
        board = compared.leaderboard().set_index("method")
        leader, *others = board.index.drop(["local", "fedavg-ft"])
        for name in (leader, *others):
            control = compared.test(name, "local")
            assert control.verdict == board["vs_local"][name]
            assert str(control).split(": ")[1].endswith(f", {control.p_adjusted:.3g} corrected for 13 tests")
            assert control.difference == -compared.test("local", name).difference
        if leader != board.index[0]:
            continue
        table = compared.selected_scores
        scores = {m: results.score_matrix(table, run.name).to_numpy() for m, run in compared.runs.items()}
        for name in others:
            test = compared.test(leader, name)
            assert WORDS[board["verdict"][name]] in str(test)
            (alone,) = statistics.compare_pairs(scores, [(leader, name)], True)
            assert (test.tests, test.p, test.low, test.high) == (28, alone.p, alone.low, alone.high)
            assert board["p"][name] == test.p_adjusted >= alone.p_adjusted
            differs += alone.better != test.better
            found.add(board["verdict"][name])
    assert differs
    assert found == {"behind", "open"}
