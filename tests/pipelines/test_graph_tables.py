"""The tables of collaboration graphs in the docs agree with the files in the same folder."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import results
from fedweave.errors import BadInput
from fedweave.metrics import default_margin
from fedweave.results import statistics
from fedweave.results.marks import SYMBOLS
from tests.fake_results import ARMS, write_study
from tools.docs import boards, claims, graph_tables
from tools.docs.stored_numbers import CLIENTS
from tools.pages import fill, find_blocks

TASKS = ("shoulder", "digits-grouped", "cifar100-grouped", "cluster-cifar100", "cora-overlap")
DIGITS = "digits-grouped"
CIFAR100 = ("cifar100-grouped", "cluster-cifar100")


def test_tables_show_the_files() -> None:
    page = graph_tables.PAGE.read_text(encoding="utf-8")
    assert {*find_blocks(page, "graphs")} == set(TASKS)
    assert fill(page, graphs=graph_tables.table) == page


def test_rows_of_earlier_versions_are_gone() -> None:
    """On CIFAR-100 there are no runs of the two methods that have changed since, and the page says so."""
    rows = [*pd.read_csv(boards.FOLDER / "graphs.csv").groupby("task")["method"].unique().items()]
    absent = {task: {"FedFomo", "GCFL+"} - {name.split(" [")[0] for name in names} for task, names in rows}
    assert {task for task, names in absent.items() if names} == {*CIFAR100, "cora-overlap"}
    assert {*absent["cifar100-grouped"], *absent["cluster-cifar100"]} == {"FedFomo", "GCFL+"}
    assert _text().count("all but FedFomo and GCFL+") == 2


def test_a_graph_is_found_when_its_area_stays_above_the_threshold() -> None:
    """The first round above it does not count, and no round counts if the last one is below."""

    def found(*areas: float) -> str:
        return graph_tables.first_stable_round(pd.DataFrame({"round": [1, 5, 10, 20][: len(areas)], "auc": areas}))

    assert found(0.95, 0.8, 0.9, 1.0) == "10"
    assert found(0.9, 0.95, 1.0, 1.0) == "1"
    assert found(1.0, 1.0, 1.0, 0.89) == "–"
    assert found(np.nan, np.nan) == "–"


def test_differences_are_those_of_the_tests() -> None:
    """Each cell "minus a control" has its row among the tests, and the mark of its verdict."""
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv", dtype={"verdict": str})
    for task in TASKS:
        lines = [line.split(" | ") for line in graph_tables.table(task).splitlines()[2:]]
        part = tests[tests["task"] == task]
        cells = [cell.strip(" |") for line in lines for cell in line[-3:] if "to" in cell]
        assert len(cells) == part["other"].str.contains(r"-(?:uniform|shuffled|oracle)\]$").sum()
        for verdict, mark in SYMBOLS.items():
            assert (
                sum(cell.endswith(f") {mark}".strip()) for cell in cells)
                == (part["verdict"].fillna("") == verdict).sum()
            )


def test_verdicts_follow_from_the_stored_scores_of_clients() -> None:
    """A row without such scores has no verdict, and the page says why."""
    board, tests = (pd.read_csv(boards.FOLDER / f"graphs{ending}.csv") for ending in ("", ".tests"))
    stored = boards.FOLDER / f"graphs{CLIENTS}"
    scores = pd.read_csv(stored) if stored.is_file() else pd.DataFrame(columns=claims.CLIENT_COLUMNS)
    for task in TASKS:
        rows, part = board[board["task"] == task], tests[tests["task"] == task]
        keys = rows[["dataset", "setting"]].iloc[0]
        own = scores[(scores["dataset"] == keys["dataset"]) & (scores["setting"] == keys["setting"])]
        values = {
            str(method): group.groupby(["seed", "part"])["value"].mean().unstack("part").to_numpy()
            for method, group in own.groupby("method", sort=False)  # draws behind corrected p values belong to places
        }
        means = rows.set_index("method")["mean"][[*values]]
        assert {method: scores.mean() for method, scores in values.items()} == pytest.approx(means.to_dict(), rel=1e-3)
        is_stored = part["method"].isin([*values]) & part["other"].isin([*values])
        assert part.loc[~is_stored, "verdict"].isna().all()
        why = "one seed" if rows["seeds"].max() == 1 else "scores not stored"
        assert {*part.loc[~is_stored, "over"]} <= {why}
        if len(values) < len(rows):
            assert rows[["vs_local", "vs_fedavg_ft"]].isna().all().all()
            assert set(rows["mark"]) == {"no verdict"}
        tested = part[is_stored]
        pairs = [*zip(tested["method"], tested["other"], strict=True)]
        again = statistics.compare_pairs(values, pairs, True, default_margin("accuracy")) if values else []
        assert [test.verdict for test in again] == tested["verdict"].fillna("").tolist()
        assert [test.p_adjusted for test in again] == pytest.approx(
            tested["p_adjusted"].tolist(), abs=2e-3, nan_ok=True
        )
    judged = tests[tests["verdict"].notna()].set_index(["task", "method", "other"])["verdict"]
    arms, digits = judged["shoulder"], judged[DIGITS]
    assert {*judged.index.get_level_values(0)} == {"shoulder", DIGITS}
    assert {key: verdict for key, verdict in arms.items() if verdict != "open"} == {
        ("FedAMP", "FedAMP [fedamp-shuffled]"): "equivalent"
    }
    of = {
        word: {(a, b.split("-")[-1][:-1]) for (a, b), verdict in digits.items() if verdict == word} for word in SYMBOLS
    }
    lost = {(name, word) for name in ("pFedGraph", "FedFomo", "FedPAC") for word in ("uniform", "shuffled")}
    assert of["worse"] == lost
    assert of["better"] == {(name, "oracle") for name in ("CFL", "Direct matrix", "FedAGHN", "pFedGAT")}
    assert "CIFAR-100 has one seed: no verdict" in _text()


def test_the_weight_of_chance_is_that_of_uniform_controls() -> None:
    rows = pd.read_csv(boards.FOLDER / "graphs.csv")
    uniform = rows[rows["method"].str.endswith("-uniform]")].groupby("task")["group_mass"].median()
    shares = {task: f"{uniform[task]:.2f}" for task in uniform.index}
    assert shares["digits-grouped"] == shares["cifar100-grouped"]
    sentence = "is {} on `shoulder`, {} on the grouped tasks, {} on superclasses and {} on Cora"
    order = ("shoulder", "cifar100-grouped", "cluster-cifar100", "cora-overlap")
    assert sentence.format(*(shares[task] for task in order)) in _text()


def test_sentences_count_the_tests() -> None:
    """How often a learned graph is above or below a control, by intervals, and the numbers about its rows."""
    text, tests = _text(), pd.read_csv(boards.FOLDER / "graphs.tests.csv")
    for word, sentence in (
        (
            "uniform",
            "Of {} comparisons with the same method under uniform weights, {} have an interval above zero, "
            "all of them there, and {} have one below.",
        ),
        ("shuffled", "Of {} with shuffled weights, {} have an interval above zero and {} have one below."),
    ):
        part = tests[tests["other"].str.endswith(f"-{word}]")]
        above, below = part[part["low"] > 0], part[part["high"] < 0]
        assert word != "uniform" or above["task"].isin(CIFAR100).all()
        assert sentence.format(len(part), len(above), len(below)) in text
    rows = pd.read_csv(boards.FOLDER / "graphs.csv")
    own = rows[~rows["method"].str.endswith("]")]
    gain = own["edge_value_correlation"].dropna()
    assert f"between −{-gain.min():.2f} and {gain.max():+.2f}" in text
    assert f"above 0.3 for {(gain > 0.3).sum()} of {len(gain)} graphs" in text
    alike = own[own["row_variation"] < 1e-3]
    assert f"the rows of {len(alike)} graphs hardly differ" in text
    assert set(alike["method"]) == {"pFedGAT", "SFL", "FedAMP", "CFL"}
    most = (rows["at_last"] > rows["seeds"] / 2).sum()
    assert f"for {most} of the {len(rows)} runs" in text


def test_weight_on_the_group_helps_on_cifar100() -> None:
    """Methods that give the group most of the weight on others gain on both tasks, with intervals above zero."""
    text, boards_of, tests = _text(), *_cifar100()
    sharp = {"pFedGraph", "CFL", "Direct matrix"}
    gains = {
        word: {task: _differences(tests[task], sharp, word) for task in CIFAR100} for word in ("uniform", "shuffled")
    }
    for task in CIFAR100:
        own = boards_of[task]
        assert set(own.index[own["group_mass"] > 0.5]) == sharp | {"FedPAC"}
        for word in gains:
            assert (gains[word][task]["low"] > 0).all()
    (a, b), (c, d) = (_span(gains["uniform"][task]["difference"]) for task in CIFAR100)
    assert (
        f"{a} to {b} points above the same method with uniform weights on the grouped task, and {c} to {d} on" in text
    )
    low, high = _span(pd.concat([gains["shuffled"][task]["difference"] for task in CIFAR100]))
    assert f"They are {low} to {high} points above shuffled weights" in text
    heads = [_differences(tests[task], {"FedPAC"}, "uniform") for task in CIFAR100]
    assert all((part["low"] > 0).all() for part in heads)
    assert "gains {:.1f} and {:.1f} points".format(*(part["difference"].item() for part in heads)) in text


def test_one_graph_is_above_local_training_on_cifar100() -> None:
    text, boards_of, _ = _text(), *_cifar100()
    better = [
        set(own.index[(own["mean"] > own.loc["Local", "mean"]) & own["group_auc"].notna()])
        for own in boards_of.values()
    ]
    assert set.intersection(*better) == {"pFedGraph"}
    lead = [f"{own.loc['pFedGraph', 'mean'] - own.loc['Local', 'mean']:.1f}" for own in boards_of.values()]
    assert "by {} points, and on superclasses by {}.".format(*lead) in text
    own, uniform = boards_of["cluster-cifar100"], _twin(_board("cluster-cifar100"), "pFedGraph", "uniform")
    local, (pre, post) = own.loc["Local", "mean"], own.loc["pFedGraph", ["pre", "post"]]
    assert f"pFedGraph has {pre:.1f} on superclasses, {pre - post:.1f} more than after local training" in text
    assert f"{local - uniform:.1f} points below Local on superclasses ({uniform:.1f} and {local:.1f})" in text


def test_a_correct_order_without_contrast_does_not_help_on_cifar100() -> None:
    text, boards_of, tests = _text(), *_cifar100()
    flat = {"FedAGHN", "HeurFedAMP", "FedAMP"}
    shares = []
    for task, own in boards_of.items():
        assert set(own.index[(own["group_auc"] > graph_tables.AUC_THRESHOLD) & (own["group_mass"] < 0.2)]) == flat
        assert _differences(tests[task], flat, "uniform")["difference"].abs().max() < 0.55
        shares += [round(100 * share) for share in _extremes(own.loc[sorted(flat), "group_mass"])]
    assert "get {} to {} % of the weight on others, and {} to {} % on superclasses".format(*shares) in text
    missed = [
        f"{-_differences(tests[task], {label}, 'oracle')['difference'].item():.1f}"
        for label in ("FedAGHN", "HeurFedAMP")
        for task in CIFAR100
    ]
    assert "FedAGHN has {} and {} points more, and HeurFedAMP {} and {}.".format(*missed) in text


def test_the_true_groups_are_above_most_graphs_on_cifar100() -> None:
    text, boards_of, tests = _text(), *_cifar100()
    for task, sentence in (
        ("cifar100-grouped", "{} of {} methods have more than with their own graph on the grouped task"),
        ("cluster-cifar100", "and {} of {} on superclasses"),
    ):
        oracle = tests[task][tests[task]["other"].str.endswith("-oracle]")]
        worse = oracle[oracle["high"] < 0]
        low, high = _span(-worse["difference"])
        assert f"{sentence.format(len(worse), len(oracle))}, by {low} to {high}" in text
    board = _board("cluster-cifar100")
    best = _twin(board, "pFedLA", "oracle")
    assert best == board["mean"].max()
    assert f"the true groups ({best:.1f})" in text
    assert boards_of["cluster-cifar100"]["mean"].rank()["pFedLA"] == 2


def test_the_readme_has_the_largest_gains_and_losses() -> None:
    """Of graphs that show the groups, with differing rows, beside uniform weights."""
    readme = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    rows, tests = (pd.read_csv(boards.FOLDER / f"graphs{ending}.csv") for ending in ("", ".tests"))
    rows = rows[~rows["method"].str.endswith("]") & (rows["group_auc"] > graph_tables.AUC_THRESHOLD)]
    right = set(zip(rows["task"], rows["method"], strict=True))
    uniform = tests[tests["other"].str.endswith("-uniform]")]
    gains = uniform[[key in right for key in zip(uniform["task"], uniform["method"], strict=True)]]
    most = gains.groupby("task")["difference"].max()
    assert (
        f"up to {most[[*CIFAR100]].max():.0f} points higher on CIFAR-100 and up to {most['cora-overlap']:.0f}" in readme
    )
    assert f"up to {-gains.query('task == @DIGITS')['difference'].min():.0f} points lower on grouped digits" in readme
    board = _board("cifar100-grouped")
    methods = board["group_auc"].notna() & ~board.index.str.endswith("]")
    assert f"One of {methods.sum()} methods with a graph is above local training there, on both tasks" in readme


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
    """On grouped digits six methods find the groups, and all have lower means than with a uniform graph."""
    means = pd.read_csv(boards.FOLDER / "graphs.csv").query("task == 'digits-grouped'").set_index("method")
    own = means[~means.index.str.endswith("]")]
    right = own[(own["group_auc"] > graph_tables.AUC_THRESHOLD) & (own["row_variation"] > 0.01)]
    assert set(right.index) == {"Direct matrix", "FedAGHN", "FedFomo", "FedPAC", "HeurFedAMP", "pFedGraph"}
    loss = {label: _twin(means, label, "uniform") - right.loc[label, "mean"] for label in right.index}
    assert min(loss.values()) > 0
    text = _text()
    assert f"pFedGraph loses {loss['pFedGraph']:.1f} points and FedFomo {loss['FedFomo']:.1f}" in text
    for label in ("pFedGraph", "FedAGHN"):
        assert f"{_twin(means, label, 'uniform') - _twin(means, label, 'oracle'):.1f} points below uniform" in text


def test_a_correct_graph_helps_on_cora() -> None:
    """The range of the gain, and how many intervals contain zero."""
    text = _text()
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv").query("task == 'cora-overlap'")
    tests = tests[tests["method"].isin(["pFedGraph", "FedGTA", "HeurFedAMP", "FED-PUB"])]
    gains = [tests[tests["other"].str.endswith(f"-{word}]")] for word in ("uniform", "shuffled")]
    (a, b), (c, d) = ((part["difference"].min(), part["difference"].max()) for part in gains)
    assert f"{a:.1f} to {b:.1f} points above the same method with uniform weights, and {c:.1f} to {d:.1f} above" in text
    both = pd.concat(gains)
    assert len(both) == 8
    assert ((both["low"] < 0) & (both["high"] > 0)).sum() == 6
    assert "Six of these eight intervals contain zero" in text
    rows = pd.read_csv(boards.FOLDER / "graphs.csv").query("task == 'cora-overlap'").set_index("method")
    assert f"(AUC {rows.loc['FedSheafHN', 'group_auc']:.2f})" in text
    changes = [abs(_twin(rows, "FedSheafHN", word) - rows.loc["FedSheafHN", "mean"]) for word in graph_tables.CONTROLS]
    assert f"change the mean by {max(changes):.1f} points at most" in text


def _text() -> str:
    """The page, with one space between words."""
    return " ".join(graph_tables.PAGE.read_text(encoding="utf-8").split())


def _board(task: str) -> pd.DataFrame:
    return pd.read_csv(boards.FOLDER / "graphs.csv").query("task == @task").set_index("method")


def _cifar100() -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Of both tasks of CIFAR-100: the methods with their own graph, and the tests."""
    means = {task: _board(task) for task in CIFAR100}
    tests = pd.read_csv(boards.FOLDER / "graphs.tests.csv")
    own = {task: board[~board.index.str.endswith("]")] for task, board in means.items()}
    return own, {task: tests[tests["task"] == task] for task in CIFAR100}


def _differences(tests: pd.DataFrame, labels: set[str], word: str) -> pd.DataFrame:
    """The tests of methods against the control `word` of the graph."""
    part = tests[tests["method"].isin(labels) & tests["other"].str.endswith(f"-{word}]")]
    assert len(part) == len(labels)
    return part


def _extremes(values: pd.Series) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _span(values: pd.Series) -> list[str]:
    return [f"{value:.1f}" for value in _extremes(values)]


def _twin(means: pd.DataFrame, label: str, word: str) -> float:
    """The mean of the method `label` with the graph of a control."""
    own = means[means.index.str.startswith(f"{label} [") & means.index.str.endswith(f"-{word}]")]
    return float(own["mean"].item())


def test_rows_of_tasks_that_were_not_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the study replaces only its own rows. A second copy changes nothing."""
    tables = {
        ending: pd.read_csv(boards.FOLDER / f"graphs{ending}.csv", dtype={"vs_local": str, "vs_fedavg_ft": str})
        for ending in ("", ".tests", ".rounds")
    }
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
        now = pd.read_csv(boards.FOLDER / f"graphs{ending}.csv", dtype={"vs_local": str, "vs_fedavg_ft": str})
        others = (table[table["task"] != "shoulder"].reset_index(drop=True) for table in (now[before.columns], before))
        pd.testing.assert_frame_equal(*others)
        assert set(now.loc[now["task"] == "shoulder", "method"]) <= {"Local", "FedAMP"}
    graph_tables.copy_results()
    assert [(boards.FOLDER / f"graphs{ending}.csv").read_text() for ending in tables] == texts


def test_a_missing_task_is_named() -> None:
    with pytest.raises(
        BadInput, match="'letters' is not a task of graphs, only cifar100-grouped, cluster-cifar100, cora-overlap"
    ):
        graph_tables.table("letters")
    with pytest.raises(BadInput, match="'copy' is unknown; write take, or nothing"):
        graph_tables.main("copy")
