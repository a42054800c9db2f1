"""Families of tests, marks, and measures of graphs, each compared with a count or a known result."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import average_precision_score

from fedweave import results
from fedweave.engine import graph_truth
from fedweave.graphs import quality
from fedweave.results import marks, statistics
from fedweave.results.gains import gains as count_gains
from tests.fake_results import write_study


@pytest.fixture
def rng() -> np.random.Generator:
    """The draws of a test do not depend on earlier tests."""
    return np.random.default_rng(4)


def test_the_family_of_controls_has_every_test_once(rng: np.random.Generator) -> None:
    values = {name: rng.normal(size=(2, 9)) for name in ("a", "Local", "b", "FedAvg-FT")}
    actual = [(c.method, c.other) for c in statistics.compare_to_controls(values, marks.CONTROLS, True)]
    expected = [("a", "Local"), ("b", "Local"), ("FedAvg-FT", "Local"), ("a", "FedAvg-FT"), ("b", "FedAvg-FT")]
    assert sorted(actual) == sorted(expected)
    assert statistics.compare_to_controls({"a": values["a"], "b": values["b"]}, marks.CONTROLS, True) == []


@pytest.mark.parametrize(("higher", "gain", "loss"), [(True, 2.0, 1.0), (False, 1.0, 2.0)])
def test_gain_and_loss_follow_the_direction_of_the_metric(higher: bool, gain: float, loss: float) -> None:
    """Of five clients two are above Local, one is below, one is equal, and one has no score with one seed."""
    scores = {"Local": [[1.0] * 5] * 2, "a": [[2.0, 1.5, 0.5, 1.0, 3.0], [1.0, 1.5, 0.5, 1.0, np.nan]]}
    rows = [
        (name, seed, client, value)
        for name, matrix in scores.items()
        for seed, row in enumerate(matrix)
        for client, value in enumerate(row)
    ]
    table = pd.DataFrame(rows, columns=["run", "seed", "client", "value"])
    runs: Any = [SimpleNamespace(name=n, label=n, has_splits=False, higher_is_better=higher) for n in scores]
    assert count_gains(runs, table) == {"a": {"gain": gain, "loss": loss, "clients": 4.0}}
    assert count_gains(runs[1:], table) == {}


def test_a_method_with_the_label_of_a_control_does_not_replace_it(tmp_path: Path) -> None:
    """As a copy of local.py with another name and the old label has: tests look for a control by its label."""
    folder = write_study(tmp_path / "results" / "own", methods={"Local": -6.0, "FedAvg": -9.0}, extras=False)
    other = folder / "runs" / "blobs-mine"
    (folder / "runs" / "blobs-fedavg").rename(other)
    info = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**info, "run": other.name, "method": "mine", "label": "Local"}))
    tables = results.compute_tables(results.load_study(folder))
    assert sorted(tables.board["method"]) == ["Local", "Local [blobs-mine]"]
    controls = tables.significance[tables.significance["family"] == "controls"]
    assert controls[["method", "other"]].to_numpy().tolist() == [["Local [blobs-mine]", "Local"]]
    assert tables.board.set_index("method")["clients"].to_dict()["Local [blobs-mine]"] == 12


@pytest.mark.parametrize(("score", "mark"), [(80.0, "alone"), (np.nan, "diverged")])
def test_a_single_method_is_not_behind_another(score: float, mark: str) -> None:
    board = pd.DataFrame({"method": ["FedAvg"], "mean": [score]})
    assert marks.assign_marks(board, pd.DataFrame(columns=["family", "method", "other"])) == {"FedAvg": mark}


def test_a_comparison_with_a_control_is_found_from_both_sides() -> None:
    numbers = (3.0, 1.0, 5.0, 0.0, 0.01, 0.01, 1.0)
    pair = statistics.TestedPair("FedAvg-FT", "Local", *numbers, "better", "seeds and clients")
    tests = pd.DataFrame([{"family": family, **asdict(pair)} for family in ("controls", "pairs")])
    assert marks.outcome(marks.control_tests(tests, "Local")["FedAvg-FT"], "FedAvg-FT") == "better"
    turned = marks.control_tests(tests, "FedAvg-FT")["Local"]
    assert (turned["difference"], turned["low"], turned["high"]) == (-3.0, -5.0, -1.0)
    assert marks.outcome(turned, "Local") == "worse"
    for word in ("equivalent", "open", ""):
        assert marks.outcome({**row_of(tests), "verdict": word}, "Local") == word


@pytest.mark.parametrize(
    ("outcomes", "mark"),
    [
        (("better", "better"), "best"),
        (("better", "equivalent"), "lead"),
        (("better", "open"), "lead"),
        (("equivalent", "open"), "lead"),
        (("better", ""), "lead"),
        (("diverged", "diverged"), "lead"),
        (("better", "diverged"), "best"),
    ],
)
def test_the_best_is_better_than_all_others(outcomes: tuple[str, str], mark: str) -> None:
    """The others are those with a score. A leader without others is not the best."""
    words = {"better": "behind", "equivalent": "equivalent", "open": "open", "": "no verdict"}
    rows, means = [], [80.0]
    for other, seen in zip("bc", outcomes, strict=True):
        means.append(np.nan if seen == "diverged" else 70.0)
        rows.append(("leader", "a", other, "" if seen == "diverged" else seen))
    tests = pd.DataFrame(rows, columns=["family", "method", "other", "verdict"])
    expected = {"a": mark} | {o: words.get(seen, "diverged") for o, seen in zip("bc", outcomes, strict=True)}
    assert marks.assign_marks(pd.DataFrame({"method": [*"abc"], "mean": means}), tests) == expected


def test_a_leader_that_is_worse_over_units_is_not_better() -> None:
    """Means are over clients, and tests are over units."""
    tests = pd.DataFrame([("leader", "a", "b", "worse")], columns=["family", "method", "other", "verdict"])
    board = pd.DataFrame({"method": ["a", "b"], "mean": [80.0, 70.0]})
    assert marks.assign_marks(board, tests) == {"a": "lead", "b": "open"}


def row_of(tests: pd.DataFrame) -> dict[str, object]:
    """The first row of the tests."""
    return tests.to_dict("records")[0]


def test_auc_of_planted_groups_and_of_none(rng: np.random.Generator) -> None:
    group = np.arange(12) % 3
    planted = np.where(group[:, None] == group, 0.2, 0.01)
    assert quality.group_auc(planted, group) == 1.0
    assert quality.group_auc(-planted, group) == 0.0
    assert quality.group_auc(np.full((12, 12), 1 / 12), group) == 0.5
    own = planted + np.diag(np.full(12, 9.0))  # the weight on oneself does not count
    assert quality.group_auc(own, group) == 1.0
    # Learners may differ in their total weight on others
    assert quality.group_auc(planted * np.arange(1, 13)[:, None], group) == 1.0
    drawn = [quality.group_auc(rng.normal(size=(12, 12)), group) for _ in range(200)]
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.02)
    assert np.isnan(quality.group_auc(planted, np.zeros(12)))
    assert np.isnan(quality.group_auc(planted, np.arange(12)))
    assert np.isnan(quality.group_auc(np.full((12, 12), np.nan), group))


def test_auc_against_counting(rng: np.random.Generator) -> None:
    group, weights = rng.integers(0, 3, 9), rng.integers(0, 4, (9, 9)).astype(float)
    rows = []
    for i in range(9):
        inside = [weights[i, j] for j in range(9) if j != i and group[j] == group[i]]
        outside = [weights[i, j] for j in range(9) if group[j] != group[i]]
        if inside and outside:
            rows.append(np.mean([(a > b) + 0.5 * (a == b) for a in inside for b in outside]))
    assert quality.group_auc(weights, group) == pytest.approx(np.mean(rows))


def test_average_precision_is_scikit_learns(rng: np.random.Generator) -> None:
    """Equal weights are one threshold."""
    group, weights = rng.integers(0, 3, 12), rng.integers(0, 4, (12, 12)).astype(float)
    others = ~np.eye(12, dtype=bool)
    rows = [(group[mine] == group[i], weights[i, mine]) for i, mine in enumerate(others)]
    expected = [average_precision_score(*row) for row in rows if row[0].any() and not row[0].all()]
    assert quality.group_precision(weights, group) == pytest.approx(np.mean(expected))


def test_the_share_of_a_group_ignores_signs() -> None:
    group = np.array([0, 0, 1, 1])
    weights = np.array([[9.0, -2, 1, -1], [3, 9, 0, 0], [1, 1, 9, 2], [0, 0, 0, 9]])
    # The last row has no weight on others, and so no share.
    assert quality.group_mass(weights, group) == pytest.approx(np.mean([2 / 4, 1, 2 / 4]))


def test_the_variation_between_rows_by_its_definition(rng: np.random.Generator) -> None:
    weights = rng.normal(0.3, 1, size=(5, 5))
    columns = [[weights[i, j] for i in range(5) if i != j] for j in range(5)]
    expected = np.mean([np.std(column) for column in columns]) / abs(np.mean(columns))
    assert quality.row_variation(weights) == pytest.approx(expected)


def test_identical_rows_do_not_vary(rng: np.random.Generator) -> None:
    mixture = rng.dirichlet(np.ones(10))
    assert quality.row_variation(np.tile(mixture, (10, 1))) == pytest.approx(0.0, abs=1e-12)
    assert quality.row_variation(np.tile(mixture, (10, 1)) + np.diag(np.arange(10.0))) == pytest.approx(0.0, abs=1e-12)
    group = np.arange(10) % 2
    planted = np.where(group[:, None] == group, 0.2, 0.0)
    assert quality.row_variation(planted) > 0.9
    assert quality.row_variation(7 * planted) == pytest.approx(quality.row_variation(planted))
    assert np.isnan(quality.row_variation(np.eye(10)))
    assert np.isnan(quality.row_variation(np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]])))  # of mean 0


def test_collapse_of_planted_graphs(rng: np.random.Generator) -> None:
    """Shares of groups are neither; signs and scale do not matter; a client without a source has itself."""
    group = np.arange(12) % 3
    planted = np.where(group[:, None] == group, 0.25, 0.0)
    assert quality.effective_sources(planted) == pytest.approx(4)
    assert quality.distance_to_uniform(planted) == pytest.approx(1 - 4 / 12)
    assert quality.distance_to_self(planted) == pytest.approx(3 / 4)
    signs = rng.choice([-7.0, 7.0], (12, 12))
    consensus = np.tile(rng.dirichlet(np.ones(12)), (12, 1))
    almost_alone = np.eye(12) + 0.001 * rng.random((12, 12))
    alone = [(almost_alone, "self"), (np.zeros((12, 12)), "self")]
    for weights, word in [(planted, ""), (consensus, "consensus"), *alone]:
        found = quality.quality(weights[None], None, None)
        scaled = quality.quality((signs * weights)[None], None, None)
        for name in (quality.SOURCES, quality.FROM_UNIFORM, quality.FROM_SELF):
            assert scaled[name] == pytest.approx(found[name])
        assert quality.collapse(found.get(quality.VARIATION, np.nan), found[quality.FROM_SELF]) == word
    assert np.isnan(quality.effective_sources(np.full((3, 3), np.nan)))


def test_an_unknown_divergence_has_no_rank(rng: np.random.Generator) -> None:
    divergence = rng.random((6, 6))
    assert quality.similarity_correlation(-divergence, divergence) == pytest.approx(1.0)
    divergence[1, 2] = np.nan
    assert np.isnan(quality.similarity_correlation(rng.random((6, 6)), divergence))


def test_only_similar_clients_get_weight() -> None:
    """The formula on three clients: exp(−4 d / median of the pairs), no weight below a third, rows of sum 1."""
    divergence = np.array([[0.0, 0.1, 0.4], [0.1, 0.0, 0.2], [0.4, 0.2, 0.0]])
    raw = np.exp(-4 * divergence / 0.2)
    shares = raw / raw.sum(1, keepdims=True)
    assert (shares < 1 / 3).sum() == 6
    np.testing.assert_allclose(graph_truth.similarity_graph(divergence), np.eye(3))
    divergence[0, 1] = divergence[1, 0] = 0.01
    raw = np.exp(-4 * divergence / 0.2)
    shares = raw / raw.sum(1, keepdims=True)
    kept = np.where(shares >= 1 / 3, shares, 0.0)
    assert (kept > 0).sum() == 5
    np.testing.assert_allclose(graph_truth.similarity_graph(divergence), kept / kept.sum(1, keepdims=True))
    # If most pairs are equal, the median is 0, and divergences count unscaled.
    places = np.array([0.0] * 6 + [0.01, 5.0])
    divergence = np.abs(places[:, None] - places)
    raw = np.exp(-4 * divergence[0, [0] * 6 + [6]])
    expected = [*(raw / raw.sum()), 0.0]
    np.testing.assert_allclose(graph_truth.similarity_graph(divergence)[0], expected)
    # Clients with equal targets have equal weights.
    np.testing.assert_allclose(graph_truth.similarity_graph(np.zeros((3, 3))), np.full((3, 3), 1 / 3))


def test_divergences_are_scipys_and_never_negative(rng: np.random.Generator) -> None:
    shares = rng.dirichlet(np.full(10, 0.3), 6)
    divergence = graph_truth.jensen_shannon(shares)
    for i, j in product(range(6), repeat=2):
        assert divergence[i, j] == pytest.approx(jensenshannon(shares[i], shares[j]) ** 2, abs=1e-12)
    alike = rng.dirichlet(np.ones(10)) * (1 + 1e-12 * rng.normal(size=(60, 10)))  # differences are rounding errors
    assert graph_truth.jensen_shannon(alike / alike.sum(1, keepdims=True)).min() >= 0.0


def test_a_method_may_have_the_name_of_a_missing_value(tmp_path: Path) -> None:
    """The written tables are read unchanged."""
    folder = write_study(tmp_path / "toy", methods={"NA": 0.0, "None": 1.0, "Local": 2.0}, extras=False)
    tables = results.write(folder)
    again = pd.read_csv(folder / "leaderboard.csv", **results.AS_WRITTEN)
    assert [*again["method"]] == [*tables.board["method"]]
