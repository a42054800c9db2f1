"""Verdicts, intervals and ranks compared with hand calculation, other libraries and published tables."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks.verdicts import Cell
from fedweave.errors import BadInput
from fedweave.metrics import METRICS, Margin, Metric, default_margin, parse_margin
from fedweave.plots import cliques_of, space_labels
from fedweave.results import holm, ranking, statistics
from fedweave.results.repetitions import interval


@pytest.fixture
def rng() -> np.random.Generator:
    """The draws of a test do not depend on earlier tests."""
    return np.random.default_rng(1)


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm.adjust([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm.adjust([0.6, 0.7]), [1.0, 1.0])
    np.testing.assert_allclose(holm.adjust([0.01, np.nan, 0.02]), [0.02, np.nan, 0.02])


def test_a_method_is_better_only_by_its_test(rng: np.random.Generator) -> None:
    base = rng.normal(70, 8, size=(3, 12))
    noisy = rng.normal(0, 0.5, size=(2, 3, 12))
    values = {"good": base + 3 + noisy[0], "plain": base, "twin": base + noisy[1]}
    pairs = {(c.method, c.other): c for c in statistics.compare_all_pairs(values, higher_is_better=True)}
    assert (pairs["good", "plain"].verdict, pairs["good", "plain"].better) == ("better", "good")
    assert (pairs["plain", "twin"].verdict, pairs["plain", "twin"].better) == ("open", "")
    assert pairs["good", "plain"].low > 0
    (lower,) = statistics.compare_pairs(values, [("good", "plain")], higher_is_better=False)
    assert (lower.verdict, lower.better) == ("worse", "plain")
    leading = statistics.leader_comparisons(list(pairs.values()), statistics.leader(values, True))
    assert [(c.method, c.other, c.verdict) for c in leading] == [("good", name, "better") for name in ("plain", "twin")]
    turned = statistics.leader_comparisons(list(pairs.values()), "plain")[0]
    assert (turned.method, turned.other, turned.verdict, turned.better) == ("plain", "good", "worse", "good")
    assert turned.difference == -pairs["good", "plain"].difference
    assert (turned.low, turned.high) == (-pairs["good", "plain"].high, -pairs["good", "plain"].low)


def test_agreement_of_clients_on_one_seed_of_three_is_not_a_difference(rng: np.random.Generator) -> None:
    """All thirty clients agree, because of one seed. New seeds could say otherwise."""
    base = rng.normal(70, 1, size=(3, 30))
    other = base + np.array([[9.0], [1.0], [-1.0]]) + rng.normal(0, 0.1, size=(3, 30))
    (test,) = statistics.compare_pairs({"a": other, "b": base}, [("a", "b")], True)
    assert test.low < 0 < test.high
    assert test.p_adjusted > 0.05
    assert (test.verdict, test.over) == ("open", "seeds and clients")


def test_one_seed_has_no_verdict_and_an_interval_over_clients(rng: np.random.Generator) -> None:
    values = {name: rng.normal(gain, 1, size=(1, 20)) for name, gain in (("a", 9.0), ("b", 0.0))}
    (test,) = statistics.compare_all_pairs(values, True, Margin(points=100.0))
    assert (test.verdict, test.better, test.over) == ("", "", "one seed")
    expected = ttest_1samp((values["a"] - values["b"])[0], 0)
    np.testing.assert_allclose((test.low, test.high), [*expected.confidence_interval()])
    assert np.isnan([test.p_adjusted, test.p_equivalent]).all()


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_few_clients_have_no_verdict(clients: int) -> None:
    values = {"a": np.full((3, clients), 9.0) + np.arange(clients), "b": np.zeros((3, clients))}
    (test,) = statistics.compare_all_pairs(values, True)
    assert (test.verdict, test.over) == ("", "too few clients")


def test_methods_that_no_seed_changes_are_compared_over_clients(rng: np.random.Generator) -> None:
    """Three seeds of a rule without randomness are one repetition: p is that of Student's test over clients."""
    gain = rng.normal(1, 1, size=12)
    fixed = {"rule": np.tile(50 + gain, (3, 1)), "other": np.full((3, 12), 50.0)}
    (test,) = statistics.compare_all_pairs(fixed, True)
    assert (test.over, test.verdict) == ("clients", "better")
    assert test.p == pytest.approx(ttest_1samp(gain, 0).pvalue)
    values = fixed | {"random": 50 + rng.normal(size=(3, 12))}
    over = {(c.method, c.other): c.over for c in statistics.compare_all_pairs(values, True)}
    both = "seeds and clients"
    assert over == {("rule", "other"): "clients", ("rule", "random"): both, ("other", "random"): both}


def test_two_fixed_models_are_compared_over_clients_alone(rng: np.random.Generator) -> None:
    """What a seed did to a given model is a part of its quality; training it again would be another question."""
    champion = rng.normal(70, 5, size=30)
    challenger = champion + 1 + rng.normal(0, 0.5, size=30)
    values = {"champion": champion, "challenger": challenger}
    (test,) = statistics.compare_pairs(values, [("challenger", "champion")], True, fixed=True)
    assert (test.verdict, test.over) == ("better", "clients")
    assert test.p == pytest.approx(ttest_1samp(challenger - champion, 0).pvalue)


def test_equal_methods_are_equivalent_and_not_different() -> None:
    """No score differs, so no margin is too small; without a margin nothing is equivalent."""
    values = {"a": np.arange(24.0).reshape(3, 8), "b": np.arange(24.0).reshape(3, 8)}
    for margin, verdict in ((None, "open"), (Margin(points=0.01), "equivalent")):
        (test,) = statistics.compare_all_pairs(values, True, margin)
        assert (test.low, test.high, test.p, test.p_adjusted) == (0.0, 0.0, 1.0, 1.0)
        assert (test.verdict, test.better) == (verdict, "")


def test_equivalence_is_two_one_sided_tests(rng: np.random.Generator) -> None:
    """Of two fixed models, whose differences are normal: the larger p of Student's one-sided tests at both margins."""
    gain = rng.normal(0.4, 1, size=60)
    values = {"a": 70 + gain, "b": np.full(60, 70.0)}
    words = {}
    for points in (0.3, 0.8, 2.0):
        (test,) = statistics.compare_pairs(values, [("a", "b")], True, Margin(points=points), fixed=True)
        sides = ((points, "less"), (-points, "greater"))
        expected = max(ttest_1samp(gain, end, alternative=side).pvalue for end, side in sides)
        assert test.p_equivalent == pytest.approx(expected, abs=0.015)
        words[points] = test.verdict
    assert words[0.3] != "equivalent"
    assert words[2.0] in ("equivalent", "better")  # a difference that is shown is one, also within the margin


def test_an_open_comparison_names_the_seeds_that_would_decide(rng: np.random.Generator) -> None:
    """Seeds vary much and clients do not: more seeds decide. Clients vary much and seeds do not: none do."""
    clients, seeds = rng.normal(0, 1, size=(6, 1, 20)), rng.normal(0, 1, size=(6, 5, 1))
    gain = np.array([2.0, 0, 0, 0, 0, 0])[:, None, None]
    for scores, decides in ((gain + 0.05 * clients + seeds, True), (gain + 5 * clients + 0.01 * seeds, False)):
        noisy = scores + 0.01 * rng.normal(size=(6, 5, 20))
        pairs = statistics.compare_all_pairs(dict(zip("abcdef", noisy, strict=True)), True, Margin(points=0.1))
        opens = [c for c in pairs if c.method == "a" and c.verdict == "open"]
        assert opens
        assert all(np.isfinite(c.seeds_needed) == decides for c in opens)
        assert all(c.seeds_needed > 5 for c in opens if decides)


def test_two_seeds_have_no_verdict(rng: np.random.Generator) -> None:
    """Also between methods without randomness, so that a board has one reason."""
    scores = Cell(0.2, 2, 20, 4).study(rng)
    scores[2:] = scores[2:].mean(1, keepdims=True)
    scores[0] += 50.0
    tests = statistics.compare_all_pairs(dict(zip("abcd", scores, strict=True)), True, Margin(points=1.0))
    assert {(test.verdict, test.over) for test in tests} == {("", "two seeds")}
    assert np.isnan([(test.p_adjusted, test.p_equivalent, test.seeds_needed) for test in tests]).all()


def test_a_diverged_method_changes_no_other_verdict(rng: np.random.Generator) -> None:
    scores = Cell(0.2, 3, 10, 4).study(rng)
    values = dict(zip("abcd", scores, strict=True))
    broken = values | {"diverged": np.where(np.eye(3, 10) > 0, np.nan, 50.0)}
    every = statistics.compare_all_pairs(broken, True)
    rest = [c for c in every if "diverged" not in (c.method, c.other)]
    np.testing.assert_equal([*map(astuple, rest)], [*map(astuple, statistics.compare_all_pairs(values, True))])
    lost = [c for c in every if "diverged" in (c.method, c.other)]
    assert {(c.verdict, c.over) for c in lost} == {("", "no common scores")}
    assert np.isnan([c.p_adjusted for c in lost]).all()


def test_methods_with_other_numbers_of_seeds_have_an_interval_over_clients(rng: np.random.Generator) -> None:
    first, second, third = rng.normal(1, 1, size=(3, 9)), rng.normal(size=(2, 9)), rng.normal(size=(3, 9))
    values = {"a": first, "b": second, "c": third}
    lost, kept = statistics.compare_pairs(values, [("a", "b"), ("a", "c")], True)
    expected = ttest_1samp(first.mean(0) - second.mean(0), 0).confidence_interval()
    np.testing.assert_allclose((lost.low, lost.high), [*expected])
    assert (lost.verdict, lost.over) == ("", "no common scores")
    (alone,) = statistics.compare_pairs({"a": first, "c": third}, [("a", "c")], True)
    np.testing.assert_equal(astuple(kept), astuple(alone))


def test_equal_calls_give_equal_numbers(rng: np.random.Generator) -> None:
    values = dict(zip("abcde", Cell(0.2, 3, 16, 5).study(rng), strict=True))
    first, second = ([*map(astuple, statistics.compare_all_pairs(values, True))] for _ in range(2))
    np.testing.assert_equal(first, second)


@pytest.mark.parametrize(
    ("metric", "means", "size", "words"),
    [
        ("accuracy", (80.0, 70.0), 1.0, "1 point"),
        ("roc_auc", (0.8, 0.7), 0.01, "0.01"),
        ("mse", (2.0, 1.0), 0.05, "5 % of the error"),
        ("log_loss", (0.6, 0.5), 0.025, "5 % of the error"),
        ("unheard-of", (3.0, 4.0), 0.0, "none"),
    ],
)
def test_default_margins(metric: str, means: tuple[float, float], size: float, words: str) -> None:
    margin = default_margin(metric)
    assert margin.of(*means) == pytest.approx(size)
    assert margin.describe(metric) == words


def test_a_metric_without_bounds_has_no_default_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Metric("own", lambda targets, outputs: 0.0)
    monkeypatch.setitem(METRICS, "own", entry)
    assert default_margin("own") == Margin()


def test_margins_as_they_are_written() -> None:
    assert parse_margin(0.5, "margins.accuracy") == Margin(points=0.5)
    assert parse_margin("5 %", "margins.mse") == parse_margin("5%", "margins.mse") == Margin(share=0.05)
    for wrong in ("5", "five", -1, True, None, float("nan"), "-5 %", [1]):
        with pytest.raises(BadInput, match=r"^margins\.mse: .*is not a margin; write a number"):
            parse_margin(wrong, "margins.mse")
    with pytest.raises(BadInput, match=r"^margins\.mse: 70 % of the mean is more than 50 %; write 50 % or less"):
        parse_margin("70 %", "margins.mse")
    assert parse_margin("50 %", "margins.mse") == Margin(share=0.5)
    with pytest.raises(BadInput, match=r"^margin: 1 is the whole range of roc_auc, 0 to 1; write a part"):
        parse_margin(1, "margin", "roc_auc")
    assert parse_margin(1, "margin", "accuracy") == parse_margin(1, "margin", "mse") == Margin(points=1)


def test_leader_skips_methods_without_a_score() -> None:
    values = {"broken": np.full((1, 4), np.nan), "a": np.ones((1, 4)), "b": np.full((1, 4), 2.0)}
    assert statistics.leader(values, True) == "b"
    assert statistics.leader(values, False) == "a"
    assert statistics.leader({"broken": values["broken"]}, True) is None
    leading = statistics.leader_comparisons(statistics.compare_all_pairs(values, True), "b")
    assert {c.other: c.verdict for c in leading}["broken"] == ""
    assert statistics.leader_comparisons(statistics.compare_all_pairs(values, True), None) == []


def test_different_clients_cannot_be_paired() -> None:
    with pytest.raises(BadInput, match="pass the common ones"):
        statistics.compare_pairs({"a": np.ones((1, 4)), "b": np.ones((1, 5))}, [("a", "b")], True)


@pytest.mark.parametrize(
    ("seeds", "clients", "of_seeds", "of_rest"),
    [
        (1, 6, 0.0, 0.0),
        (2, 20, 0.5, 0.5),
        (2, 100, 0.1, 1.0),
        (5, 6, 0.0, 0.2),
        (5, 10, 0.1, 0.5),
        (3, 20, 0.5, 0.5),
        (5, 48, 0.5, 0.5),
        (3, 100, 0.1, 1.0),
        (3, 20, 0.0, 1.0),
    ],
)
def test_intervals_contain_the_true_mean(
    seeds: int, clients: int, of_seeds: float, of_rest: float, rng: np.random.Generator
) -> None:
    """In 95 % of studies, for any variances of seeds and of single cells. The variance of clients is 1."""
    count, shape = 1000, (seeds, clients)
    hits = 0
    for _ in range(count):
        effects = rng.normal(0, of_seeds**0.5, size=(seeds, 1)) + rng.normal(size=(1, clients))
        low, high = interval(effects + rng.normal(0, of_rest**0.5, size=shape))
        hits += low <= 0 <= high
    assert 0.93 < hits / count  # two seeds are wider than they must be where seeds do not vary


def test_intervals_of_one_seed_or_client_are_students(rng: np.random.Generator) -> None:
    """One seed: Student's t over clients. One client: over seeds. Equal values have width 0, and one value has no
    interval.
    """
    values = rng.normal(size=(1, 9))
    expected = ttest_1samp(values[0], 0).confidence_interval()
    for of in (values, values[0], values.T):
        np.testing.assert_allclose(interval(of), [*expected])
    np.testing.assert_allclose(interval(np.full((3, 5), 7.0)), (7.0, 7.0))
    assert np.isnan(interval(np.ones((1, 1)))).all()
    assert np.isnan(interval(np.array([[1.0, np.nan, 2.0]]))).all()


def test_intervals_depend_on_seeds_and_clients(rng: np.random.Generator) -> None:
    clients = rng.normal(size=(1, 30))
    seeds = np.array([[-5.0], [0.0], [5.0]])
    narrow, wide = interval(np.repeat(clients, 3, axis=0)), interval(clients + seeds)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])


def test_ranks_share_ties_and_follow_the_direction() -> None:
    table = np.array([[90.0, 80.0, 80.0], [0.1, 0.3, 0.2]])
    np.testing.assert_array_equal(ranking.ranks(table, [True, False]), [[1, 2.5, 2.5], [1, 3, 2]])


def test_equal_means_of_scores_in_float32_share_a_rank() -> None:
    """The same number of right rows in total over three seeds, split in three ways; a fourth method has one more."""
    for rows in range(12, 61):
        right = np.array([[rows - 3] * 3, [rows - 3, rows - 1, rows - 5], [rows - 4, rows - 4, rows - 1]])
        equal = (np.float32(100) * right.astype("float32") / np.float32(rows)).astype(float).mean(axis=1)
        scores = np.array([[*equal, equal.max() + 100 / rows / 3]])
        np.testing.assert_array_equal(ranking.ranks(scores, [True]), [[3, 3, 3, 1]])
        np.testing.assert_array_equal(ranking.ranks(scores, [False]), [[2, 2, 2, 4]])


@pytest.mark.parametrize(("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)])
def test_nemenyi_critical_values_of_the_table(methods: int, q: float, rng: np.random.Generator) -> None:
    """Table 5(a) of Demsar (2006)."""
    ranked = ranking.ranking([str(m) for m in range(methods)], rng.normal(size=(14, methods)), [True] * 14)
    assert ranked.critical_difference == pytest.approx(q * np.sqrt(methods * (methods + 1) / (6 * 14)), rel=5e-4)


def test_methods_that_are_tied_everywhere_do_not_differ() -> None:
    ranked = ranking.ranking(list("abc"), np.full((4, 3), 2.0), [True] * 4)
    assert ranked.p == 1.0
    np.testing.assert_array_equal(ranked.ranks, [2, 2, 2])


def test_friedman_by_its_formula(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(9, 4)) + np.arange(4) * 0.5
    ranked = ranking.ranking(list("abcd"), scores, [True] * 9)
    statistic = 12 * 9 / (4 * 5) * (np.sum(ranked.ranks**2) - 4 * 25 / 4)
    from scipy.stats import chi2

    assert ranked.p == pytest.approx(chi2.sf(statistic, 3))


def test_cliques_are_the_longest_runs_within_the_difference() -> None:
    assert cliques_of(np.array([1.0, 1.4, 2.0, 3.5, 3.6]), 1.0) == [(0, 2), (3, 4)]
    assert cliques_of(np.array([1.0, 2.0, 3.0]), 0.5) == []
    assert cliques_of(np.array([1.0, 1.8, 2.6, 3.4]), 1.6) == [(0, 2), (1, 3)]


def test_labels_are_spaced_in_order_and_within_the_axis(rng: np.random.Generator) -> None:
    for _ in range(50):
        positions = rng.uniform(0, 10, size=8)
        placed = space_labels(positions, 0.9, 0, 10)
        assert (np.diff(np.sort(placed)) > 0.9 - 1e-9).all()
        assert (np.argsort(placed) == np.argsort(positions)).all()
        assert placed.min() >= -1e-9
        assert placed.max() <= 10 + 1e-9
    np.testing.assert_allclose(space_labels([1.0, 5.0, 9.0], 1, 0, 10), [1, 5, 9])
