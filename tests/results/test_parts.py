"""Clients that count as one in tests and intervals: those of one unit, and those that share test nodes."""

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import report, results
from fedweave.metrics import Margin
from fedweave.pipelines.stages import leaderboard, terminal
from fedweave.results import statistics, verdicts
from fedweave.results.repetitions import interval
from tests.fake_results import ARMS, write_study

METHODS = {"Local": -3.0, "FedAvg-FT": -0.4, "FedAGHN": 0.0}
PEOPLE = [name.split(",")[0] for name in ARMS["client_names"]]
PAIRS = [client // 2 for client in range(20)]


def study(folder: Path, **block: Any) -> results.Study:
    """Three methods on twenty clients."""
    tasks = {"blobs": {**ARMS, **block}}
    return results.load_study(write_study(folder / "results" / "toy", tasks, METHODS, clients=20, extras=False))


def counted(made: results.Study) -> str:
    return verdicts.describe_parts(made.runs, results.clients(made))


@settings(deadline=None)  # on a busy machine
@given(st.lists(st.integers(0, 4), min_size=2, max_size=9), st.integers(0, 2**32 - 1))
def test_columns_are_means_of_parts_for_any_numbering(owner: list[int], seed: int) -> None:
    draws = np.random.default_rng(seed)
    frame = pd.DataFrame(draws.normal(size=(3, len(owner))))
    one = results.average_parts({"a": frame}, owner)["a"]
    members = [[i for i, part in enumerate(owner) if part == number] for number in sorted({*owner})]
    np.testing.assert_allclose(one, np.stack([frame[mine].mean(axis=1) for mine in members], axis=1))
    renumbered = results.average_parts({"a": frame}, [9 - part for part in owner])["a"]
    np.testing.assert_allclose(renumbered[:, ::-1], one)
    alone = results.average_parts({"a": frame}, [*range(len(owner))])["a"]
    np.testing.assert_array_equal(alone, results.average_parts({"a": frame})["a"])


def test_a_part_with_a_missing_score_has_none_and_only_common_clients_count() -> None:
    first = pd.DataFrame([[1.0, np.nan, 3.0, 5.0], [2.0, 2.0, 4.0, 6.0]])
    second = pd.DataFrame([[7.0, 8.0, 9.0]], columns=[0, 1, 3])
    columns = results.average_parts({"a": first, "b": second}, [0, 0, 1, 1])
    np.testing.assert_array_equal(columns["a"], [[np.nan, 5.0], [2.0, 6.0]])
    np.testing.assert_array_equal(columns["b"], [[7.5, 9.0]])


def test_two_clients_of_equal_scores_are_tested_as_one() -> None:
    """Tests and intervals are those of the study with the first client of every unit."""
    draws = np.random.default_rng(0)
    gains = {"a": draws.normal(0.8, 1, size=8), "b": np.zeros(8)}  # of clients, which differ more than seeds
    halves = {name: pd.DataFrame(gain + draws.normal(0, 0.1, size=(3, 8))) for name, gain in gains.items()}
    doubled = {name: half[[client // 2 for client in range(16)]] for name, half in halves.items()}
    for frame in doubled.values():
        frame.columns = range(16)
    once, twice = (
        statistics.compare_pairs(results.average_parts(frames, owner), [("a", "b")], True)[0]
        for frames, owner in ((halves, None), (doubled, PAIRS[:16]))
    )
    np.testing.assert_allclose(astuple(twice)[2:9], astuple(once)[2:9])
    as_if_apart = statistics.compare_pairs(results.average_parts(doubled), [("a", "b")], True)[0]
    assert as_if_apart.p < once.p
    assert as_if_apart.high - as_if_apart.low < once.high - once.low


def test_units_of_single_clients_change_nothing(tmp_path: Path) -> None:
    apart = study(tmp_path / "a")
    named = study(tmp_path / "b", units=ARMS["client_names"])  # sharing is null then
    for first, second in zip(results.compute_tables(apart), results.compute_tables(named), strict=True):
        pd.testing.assert_frame_equal(first, second)
    assert counted(apart) == counted(named) == ""


def test_means_are_over_clients_and_tests_over_units(tmp_path: Path) -> None:
    apart, paired = study(tmp_path / "a"), study(tmp_path / "b", units=PEOPLE, sharing=PAIRS)
    before, after = results.compute_tables(apart), results.compute_tables(paired)
    same = ["method", "mean", "std", "client_std", "worst10", "gain", "loss", "clients"]
    pd.testing.assert_frame_equal(before.board[same], after.board[same])
    scores = {run.label: results.score_matrix(after.clients, run.name).to_numpy() for run in paired.runs}
    units = {label: values.reshape(3, 10, 2).mean(2) for label, values in scores.items()}
    board = after.board.set_index("method")
    for label, values in units.items():
        np.testing.assert_allclose(board.loc[label, ["low", "high"]].astype(float), interval(values))
    expected = statistics.compare_all_pairs(units, True, Margin(points=1.0))
    pairs = after.significance[after.significance["family"] == "pairs"].drop(columns=["task", "family"])
    for name in ("method", "other", "verdict"):
        assert pairs[name].tolist() == [getattr(test, name) for test in expected]
    np.testing.assert_allclose(pairs["p_adjusted"], [test.p_adjusted for test in expected])
    assert after.ranks["blocks"].iloc[0] == 10


SHARED = [client // 4 for client in range(20)]  # one unit of two people each
SOME, BOTH = [0, 1, 2, 3, 5, 8, 10], {"units": PEOPLE, "sharing": SHARED}
WORDS = {
    "Clients of one unit count as one: 20 clients, 10 units.": {"units": PEOPLE, "sharing": PAIRS},
    "Clients of one unit count as one: 7 clients, 5 units.": {"units": PEOPLE, "sharing": PAIRS, "evaluated": SOME},
    "Clients that share test nodes count as one: 20 clients, 5 parts.": {"sharing": SHARED},
    "Clients of one unit, or that share test nodes, count as one: 20 clients, 5 parts.": BOTH,
}


@pytest.mark.parametrize("sentence", WORDS)
def test_the_sentence_counts_the_clients_with_a_score(
    sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = WORDS[sentence]
    made = study(tmp_path, **block)
    if "evaluated" in block:
        for run in made.runs:
            left_out = ~run.evaluations["client"].isin(block["evaluated"])
            run.evaluations.drop(index=run.evaluations.index[left_out], inplace=True)
    assert sentence in counted(made)
    tables = results.compute_tables(made)
    leaderboard.print_boards(terminal.console(), made, tables)
    assert sentence in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_clients_that_count_as_one(tmp_path: Path) -> None:
    folder = study(tmp_path, units=PEOPLE, sharing=PAIRS).folder
    results.write(folder)
    page = report.build(folder).read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert "over seeds and clients; clients of one unit count as one: 20 clients, 10 units" in text
    assert "Ranks over units" in text
    assert "Average over 10 units, Friedman p = " in text


def test_too_few_units_have_no_power(tmp_path: Path) -> None:
    made = study(tmp_path, units=[f"house {i // 5}" for i in range(20)], sharing=[i // 5 for i in range(20)])
    assert verdicts.reason_without_power(made.runs, results.clients(made)) == (
        "Clients of one unit count as one: 20 clients, 4 units. With 4 of these there is no verdict: even if all "
        "agree, p is 0.12 or more. It takes 6 or more."
    )
    assert verdicts.reason_without_power(made.runs[:1], results.clients(made)) == ""


def test_one_run_with_units_decides_for_its_task(tmp_path: Path) -> None:
    """Runs of an earlier version do not have units."""
    made = study(tmp_path, units=PEOPLE, sharing=PAIRS)
    first = made.runs[0].folder / "run.json"
    about = json.loads(first.read_text())
    first.write_text(json.dumps({key: value for key, value in about.items() if key not in ("units", "sharing")}))
    loaded = results.load_study(made.folder)
    assert counted(loaded) == "Clients of one unit count as one: 20 clients, 10 units."
    scores = results.scores_by_method([*loaded.runs], results.clients(loaded))
    assert {values.shape for values in scores.values()} == {(3, 10)}
