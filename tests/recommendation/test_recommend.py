"""Recommendations on data with a known correct answer: answers, files, a second call, and refused input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from benchmarks import recommend_truth as truth
from fedweave.pipelines.commands.recommend import board
from fedweave.recommendation import page
from fedweave.recommendation.subsets import drop_test_rows, subsample_training
from fedweave.runs import predictions

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# One seed of each case, with a smaller race than in the benchmark.
SMALL: dict[str, Any] = {**truth.ARGUMENTS, "methods": ["pfedgraph"], "rounds": 8, "settings": 1}


def recommend_case(case: str, folder: Path, **arguments: Any) -> fw.Recommendation:
    """The recommendation of a case."""
    return fw.recommend(truth.federation(case, 1), **{**SMALL, **arguments}, out=folder)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> fw.Recommendation:
    """Two planted groups."""
    return recommend_case("groups", tmp_path_factory.mktemp("groups") / "out")


def test_two_groups_learn_within_them_and_are_shown(grouped: fw.Recommendation) -> None:
    assert truth.is_correct("groups", grouped), str(grouped)
    assert grouped.method == "pfedgraph"
    assert grouped.graph is not None
    assert grouped.graph.index.tolist() == truth.names()
    assert "Best                     pFedGraph is best on validation rows." in str(grouped)
    assert "Under-trained: no statement about collaboration" in str(grouped)  # after 8 rounds
    assert "A choice for each client" not in str(grouped)


@pytest.mark.acceptance
@pytest.mark.parametrize("case", ["common", "unrelated", "noise"])
def test_the_correct_answer_is_given(case: str, tmp_path: Path) -> None:
    """One common model, no collaboration, or a common model by which one client loses."""
    advice = recommend_case(case, tmp_path / "out")
    assert truth.is_correct(case, advice), str(advice)


def test_tables_are_tidy_and_complete(grouped: fw.Recommendation) -> None:
    """Every finalist and every client is there once. A pooled model is a control and not a method."""
    board = grouped.board.set_index("method")
    assert {*board.index} == {"local", "fedavg", "fedavg_ft", "pfedgraph"}
    assert board["validation"].is_monotonic_decreasing
    assert board["models"].to_dict() == {"local": 12, "fedavg": 1, "fedavg_ft": 12, "pfedgraph": 12}
    assert board.loc["local", "bytes"] == 0 < board.loc["fedavg", "bytes"] < board.loc["pfedgraph", "bytes"]
    assert (board["seconds"] > 0).all()
    np.testing.assert_allclose(board["mib"], board["bytes"] / 2**20)
    model = 4 * grouped.comparison.study.runs[0].info["parameters"] / 2**20
    memory = board[["server_mib", "client_mib"]].loc[["local", "fedavg", "fedavg_ft"]] / model
    np.testing.assert_allclose(memory, [(0, 2), (1, 1), (1, 1)])  # a client of Local keeps its model while it trains
    assert board["server_mib"]["pfedgraph"] > 12 * model
    others = ["fedavg", "fedavg_ft"]
    np.testing.assert_allclose(board["difference"][others], board["test"][others] - board["test"]["pfedgraph"])
    clients = grouped.clients
    assert len(clients) == 3 * 12
    assert ((clients["low"] <= clients["difference"]) & (clients["difference"] <= clients["high"])).all()
    scores = grouped.comparison.scores()
    for row in clients.to_dict("records"):
        assert row["score"] == pytest.approx(scores.loc[row["client"], row["method"]])
        assert row["local"] == pytest.approx(scores.loc[row["client"], "local"])
    assert board["over_local"]["pfedgraph"] > 0
    assert board["verdict_local"].to_dict()["local"] == ""
    assert grouped.rows["share"].tolist() == [0.25, 0.5, 1.0]
    assert {*grouped.race["rung"]} == {1, 2}
    kinds = grouped.comparison.controls().set_index("control")["kind"]
    assert kinds["Majority class"] == kinds["Partial pooling"] == "control"
    assert kinds["Central"] == "not federated"


def test_the_table_says_that_local_is_tested_against_what_would_be_deployed(grouped: fw.Recommendation) -> None:
    """The difference beside the score of Local is not that of the two scores, if some clients keep their models."""
    assert not grouped.note_on_local
    facts = {**grouped.facts, "leader": "fedavg", "own": {"fedavg": ["north", "south"], "pfedgraph": ["east"]}}
    advice = replace(grouped, facts=facts)
    note = "Local is tested against FedAvg as it would be deployed, with local training for north and south."
    assert advice.note_on_local == board(advice).caption == note
    assert advice.method_of("east") == "local"
    assert advice.method_of("north") == advice.method == "pfedgraph"
    assert note in " ".join(page.build(advice).read_text(encoding="utf-8").split())


def test_a_second_call_trains_nothing(grouped: fw.Recommendation) -> None:
    """The same folder and arguments give the same tables. Other arguments are refused, but not a larger budget."""
    calls: list[fw.Progress] = []
    again = recommend_case("groups", grouped.folder, callbacks=[calls.append], budget="3h")
    assert not calls
    for name in ("race", "board", "clients", "rows"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(grouped, name))
    with pytest.raises(fw.BadInput, match="holds a recommendation for other data, methods or settings"):
        recommend_case("groups", grouped.folder, rounds=13)


def test_another_margin_trains_nothing_and_is_stored(grouped: fw.Recommendation, tmp_path: Path) -> None:
    """It judges the same runs. Local is far from the best, so that a difference stays one."""
    calls: list[fw.Progress] = []
    folder = grouped.save(tmp_path / "out")
    wide = recommend_case("groups", folder, callbacks=[calls.append], margin="50 %")
    assert not calls
    assert wide.facts["margin"] == "50 % of the smaller mean, chosen after the results"
    assert fw.load(folder).study.margin("accuracy").share == 0.5
    assert wide.method == grouped.method
    verdicts = [advice.board.set_index("method")["verdict"] for advice in (grouped, wide)]
    assert {*verdicts[1]} - {"leads", "equivalent", "worse"} == set()
    assert verdicts[1]["local"] == verdicts[0]["local"] == "worse"


def test_a_saved_recommendation_is_loaded_and_has_a_page(grouped: fw.Recommendation, tmp_path: Path) -> None:
    """A copy is the same. The page has the answers, the clients' names and no address of another host."""
    copy = fw.Recommendation.load(grouped.save(tmp_path / "copy"))
    assert str(copy) == str(grouped)
    pd.testing.assert_frame_equal(copy.graph, grouped.graph)
    page = copy.report().read_text(encoding="utf-8")
    for line in copy.lines:
        assert line.topic in page
    assert all(name in page for name in truth.names())
    assert "<svg" in page
    assert page.count('<div class="figure narrow"') == 1  # the curves, for the screen of a phone
    assert "The leader is the collaborating method that is best on validation rows." in page
    assert "Central [not federated]" in page
    assert not [word for word in page.split() if word.startswith(('src="http', 'href="http'))]
    assert copy.facts["under_trained"]
    trained = replace(copy, facts={**copy.facts, "under_trained": ""}).report().read_text(encoding="utf-8")
    for mark in ("Use it", 'class="picked"', "recommended</summary>", "Bold: recommended"):  # nothing is deployed yet
        assert (mark in page, mark in trained) == (False, True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(fw.BadInput, match="is not an empty folder; choose"):
        grouped.save(tmp_path / "other")


def test_the_race_uses_no_test_rows(grouped: fw.Recommendation, tmp_path: Path) -> None:
    """With other test labels, the race is the same to the bit, and final scores differ."""
    federation = truth.federation("groups", 1)
    y = federation.dataset.labels.copy()
    tested = np.concatenate(federation.partition.test)
    y[tested] = (y[tested] + 1) % truth.CLASSES
    other = replace(federation, dataset=replace(federation.dataset, y=y))
    advice = fw.recommend(other, **SMALL, out=tmp_path / "out")
    columns = ["candidate", "validation", "outcome"]
    pd.testing.assert_frame_equal(advice.race[columns], grouped.race[columns], check_exact=True)
    assert advice.board["validation"].tolist() == grouped.board["validation"].tolist()
    assert advice.board["test"].tolist() != grouped.board["test"].tolist()


def test_federations_without_test_rows_and_with_fewer_training_rows() -> None:
    """Smaller shares are subsets of larger ones, for every client."""
    federation = truth.federation("common", 0)
    assert not any(map(len, drop_test_rows(federation).partition.test))
    quarter, half = (subsample_training(federation, share).partition.train for share in (0.25, 0.5))
    for few, some, every in zip(quarter, half, federation.partition.train, strict=True):
        assert {*few} < {*some} < {*every}
        assert (len(few), len(some)) == (10, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "soon"}, "budget: 'soon' is not a time; give a number of seconds"),
        ({"traffic": "much"}, "traffic: 'much' is not a size"),
        ({"margin": "5"}, "^margin: '5' is not a margin"),
        ({"settings": 0}, "settings: 0 must be a whole number, at least 1"),
        ({"methods": ["dito"]}, "methods: 'dito'"),
        ({"callbacks": 3}, "callbacks: 3 is not a list of functions"),
        ({"callbacks": ["show"]}, r"callbacks: \['show'\] is not a list of functions"),
        ({"lr": -1.0}, r"^recommend\(\): lr: -1\.0 is out of range"),
        ({"budget": 1}, r"budget: 1 s is too little; 4 methods need at least \d+ s here"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Each refusal is one line, before any training."""
    call = {**SMALL, "rounds": 3000, **arguments} if arguments.get("budget") == 1 else {**SMALL, **arguments}
    with pytest.raises(fw.BadInput, match=message) as caught:
        fw.recommend(truth.federation("common", 0), **call, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "runs").exists()


def test_too_few_clients_for_a_test_are_reported(tmp_path: Path) -> None:
    """The advice says that no verdict is possible, and names no method as better."""
    x, y = np.random.default_rng(0).normal(size=(150, 3)), np.arange(150) % 2
    federation = fw.Federation.from_arrays(x, y, client=[*"ABCDd"] * 30)
    numbers = {"rounds": np.int64(6), "settings": np.int64(1), "seeds": np.int64(2), "budget": np.int64(10_000)}
    call = {**SMALL, "methods": ["local", "fedavg", "fedavg_ft"], **numbers}  # NumPy's numbers are those of Python
    advice = fw.recommend(federation, **call, out=tmp_path)
    for warning in ("clients 'D' and 'd' differ only in spelling", "5 of 5 clients have fewer than 10 test rows"):
        assert [note for note in advice.facts["notes"] if note.startswith(warning)]
    assert [note for note in advice.facts["notes"] if note.startswith("With 5 clients there is no verdict")]
    assert advice.answer == "local"
    assert "(Local): no verdict on other methods is possible." in str(advice)
    assert "Fewer than 6 clients: no verdict. FedAvg" in str(advice)


@pytest.mark.usefixtures("undrawn")
def test_one_seed_gives_no_verdict_on_methods(tmp_path: Path) -> None:
    """Two clear groups, but with one seed of the last comparison nothing is called better."""
    advice = recommend_case("groups", tmp_path / "out", seeds=1)
    assert advice.answer == "local"
    assert {*advice.board["verdict"]} == {"leads", "no verdict"}
    assert advice.board["p_local"].isna().all()
    assert "One seed: no verdict." in str(advice)
    assert [note for note in advice.facts["notes"] if note.startswith("One seed: no verdict.")]
    assert "no verdict" in advice.report().read_text(encoding="utf-8")


def test_a_data_set_with_several_splits_is_refused() -> None:
    block = {"name": "dirichlet", "beta": 0.5, "clients": 5, "seeds": [1, 2, 3]}
    with pytest.raises(fw.BadInput, match=r"federation: it has several splits.* give `seed` in place of `seeds`"):
        fw.recommend(fw.Federation.from_dataset("digits", block))
    federation = truth.federation("common", 0)
    val = federation.partition.val
    for count, said in ((12, "12 clients"), (1, "1 client")):
        some = (*(rows[:0] for rows in val[:count]), *val[count:])
        bare = replace(federation, partition=replace(federation.partition, val=some))
        with pytest.raises(fw.BadInput, match=rf"recommend\(\): {said} without validation rows, such as 'site 00'"):
            fw.recommend(bare, **SMALL)
    with pytest.raises(fw.BadInput, match=r"answer\.json: not found; give the folder of a recommendation"):
        fw.Recommendation.load("nowhere")
    with pytest.raises(fw.BadInput, match="folder: None is not a path of a folder"):
        fw.Recommendation.load(None)  # type: ignore[arg-type]


def test_too_many_outputs_to_be_stored_show_nothing_of_single_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "LARGEST", 10)
    advice = recommend_case("noise", tmp_path / "out", seeds=1)
    assert {*advice.clients["verdict"]} == {"open"}
    assert not any(advice.facts["own"].values())
    assert "nothing is shown of single clients, as their predictions are not stored (" in str(advice)
    assert "nan%" not in advice.report().read_text(encoding="utf-8")
