"""Tests and intervals compared with enumeration, hand calculation, published tables and simulation."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_1samp, wilcoxon

from fedweave.errors import BadInput
from fedweave.plots import cliques_of, space_labels
from fedweave.results import statistics


@pytest.fixture
def rng() -> np.random.Generator:
    """The draws of a test do not depend on earlier tests."""
    return np.random.default_rng(1)


def test_signed_rank_is_the_exact_test_over_all_sign_flips(rng: np.random.Generator) -> None:
    for _ in range(10):
        a, b = rng.normal(size=(2, 8))
        difference = a - b
        rank = np.argsort(np.argsort(np.abs(difference))) + 1
        sums = np.array([np.dot(rank, signs) for signs in product((0, 1), repeat=8)])
        seen = np.dot(rank, difference > 0)
        tail = min(np.mean(sums <= seen), np.mean(sums >= seen))
        assert statistics.signed_rank(a, b) == pytest.approx(min(1.0, 2 * tail))


def test_signed_rank_on_means_over_seeds_equals_scipy(rng: np.random.Generator) -> None:
    first, second = rng.normal(0.3, 1, size=(3, 40)), rng.normal(size=(3, 40))
    (test,) = statistics.compare_pairs({"a": first, "b": second}, [("a", "b")], higher_is_better=True)
    assert test.p == pytest.approx(wilcoxon(first.mean(0), second.mean(0)).pvalue, rel=1e-12)
    assert test.p == test.p_adjusted
    assert test.difference == pytest.approx((first - second).mean())


def test_equal_scores_give_a_p_of_one_and_nan_gives_nan() -> None:
    assert statistics.signed_rank(np.ones(9), np.ones(9)) == 1.0
    assert np.isnan(statistics.signed_rank(np.array([1.0, np.nan]), np.zeros(2)))


def test_rounding_errors_do_not_break_ties(rng: np.random.Generator) -> None:
    seeds = rng.normal(size=(5, 20))
    first, second = 1e-3 * (0.5 + seeds.mean(0)), 1e-3 * (0.5 + seeds[::-1].mean(0))
    assert (first != second).any()
    assert statistics.signed_rank(first, second) == 1.0
    assert statistics.signed_rank(first, second + 1e-6) < 1e-4


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(statistics.holm([0.6, 0.5]), [1.0, 1.0])
    np.testing.assert_allclose(statistics.holm([0.01, np.nan, 0.02]), [0.02, np.nan, 0.02])


def many(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Raw and corrected p of a leader against the methods that are `differences` [N, K] below it."""
    values = {"leader": np.zeros((1, len(differences)))} | {
        f"m{k}": -column[None] for k, column in enumerate(differences.T)
    }
    tests = statistics.compare_pairs(values, [("leader", name) for name in values if name != "leader"], True)
    return np.array([c.p for c in tests]), np.array([c.p_adjusted for c in tests])


def test_step_down_is_the_maximum_over_all_sign_flips(rng: np.random.Generator) -> None:
    """By the definition: the largest statistic among the tests not yet rejected, over every way to change the signs of
    clients.
    """
    differences = rng.normal(0.6, 1, size=(6, 4))
    student = lambda d: np.abs(d.mean(0) / d.std(0, ddof=1))  # noqa: E731
    seen = student(differences)
    order = np.argsort(-seen)
    expected, floor = np.empty(4), 0.0
    for place, k in enumerate(order):
        left = order[place:]
        hits = [
            student(np.array(signs)[:, None] * differences[:, left]).max() >= seen[k] - 1e-9
            for signs in product((-1, 1), repeat=6)
        ]
        expected[k] = floor = max(floor, float(np.mean(hits)))
    np.testing.assert_allclose(statistics.step_down(differences), expected)


@pytest.mark.parametrize("clients", [10, 20])  # all flips, and drawn ones
def test_corrected_tests_keep_the_family_wise_error(clients: int, rng: np.random.Generator) -> None:
    """Six methods that do not differ, all compared with the same one."""
    wrong = 0
    for _ in range(300):
        control, *others = rng.normal(size=(7, clients))
        wrong += (statistics.step_down(np.stack([control - other for other in others], 1)) < 0.05).any()
    assert wrong / 300 < 0.09  # 0.05 and three standard errors


def test_corrected_p_is_between_the_raw_one_and_holms(rng: np.random.Generator) -> None:
    """Ten clients: thirty methods are below the leader for every client, and differ significantly from it.

    Holm's 30 · 2 / 1024 could never show that.
    """
    differences = np.abs(rng.normal(5, 1, size=(10, 30)))
    p, adjusted = many(differences)
    np.testing.assert_allclose(p, 2 / 1024)
    np.testing.assert_allclose(adjusted, 2 / 1024)
    assert (statistics.holm(p) > 0.05).all()
    p, adjusted = many(rng.normal(0.5, 1, size=(10, 30)))
    assert (adjusted >= p).all()
    assert adjusted.mean() < statistics.holm(p).mean()


def test_a_diverged_method_has_no_p(rng: np.random.Generator) -> None:
    differences = rng.normal(1, 1, size=(8, 3))
    broken = np.column_stack([differences, np.full(8, np.nan)])
    np.testing.assert_array_equal(statistics.step_down(broken), [*statistics.step_down(differences), np.nan])
    assert np.isnan(statistics.step_down(broken[:, 3:])).all()


def test_a_method_is_better_only_by_its_test(rng: np.random.Generator) -> None:
    base = rng.normal(70, 8, size=(3, 12))
    values = {"good": base + 3, "plain": base, "twin": base + rng.normal(0, 0.5, size=base.shape)}
    pairs = {(c.method, c.other): c for c in statistics.compare_all_pairs(values, higher_is_better=True)}
    assert pairs["good", "plain"].better == "good"
    assert pairs["plain", "twin"].better == ""
    assert pairs["good", "plain"].low > 0
    assert statistics.compare_pairs(values, [("good", "plain")], higher_is_better=False)[0].better == "plain"
    leading = statistics.leader_comparisons(list(pairs.values()), statistics.leader(values, True))
    assert [(c.method, c.other, c.better) for c in leading] == [("good", "plain", "good"), ("good", "twin", "good")]
    turned = statistics.leader_comparisons(list(pairs.values()), "plain")[0]
    assert (turned.method, turned.other, turned.better) == ("plain", "good", "good")
    assert turned.difference == -pairs["good", "plain"].difference
    assert (turned.low, turned.high) == (-pairs["good", "plain"].high, -pairs["good", "plain"].low)


def test_the_best_of_equal_methods_is_rarely_called_better(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight methods that do not differ: the leader, chosen on the same scores, is better than another method in at most
    a twentieth of studies. This holds even if no interval includes zero.
    """
    monkeypatch.setattr(statistics, "interval", lambda paired: (1.0, 2.0))
    wrong = 0
    for _ in range(300):
        scores = rng.normal(size=10)[None, None] + rng.normal(size=(8, 3, 10))
        values = {f"m{i}": of for i, of in enumerate(scores)}
        pairs = statistics.compare_all_pairs(values, True)
        wrong += any(c.better for c in statistics.leader_comparisons(pairs, statistics.leader(values, True)))
    assert (
        0 < wrong / 300 < 0.09
    )  # 0.05 and three standard errors; corrected over the leader's tests alone 0.1 and more


def test_no_method_is_better_if_its_ranks_are_worse() -> None:
    """Slightly worse for ninety clients and much better for ten: p is tiny, but the test is in the other direction."""
    gain = np.concatenate([np.linspace(-0.15, -0.05, 90), np.full(10, 30.0)])
    (test,) = statistics.compare_pairs({"a": 50 + gain[None], "b": np.full((1, 100), 50.0)}, [("a", "b")], True)
    assert test.p < 1e-6 < test.low
    assert test.better == ""


def test_a_gain_with_only_one_of_two_seeds_is_not_better(rng: np.random.Generator) -> None:
    """Every client gains on average, but only because of one seed. The interval over seeds includes zero."""
    base = rng.normal(70, 1, size=(2, 30))
    other = base + np.array([[9.0], [-2.0]]) + rng.normal(0, 0.1, size=(2, 30))
    (test,) = statistics.compare_pairs({"a": other, "b": base}, [("a", "b")], True)
    assert test.p_adjusted < 1e-6
    assert test.low < 0 < test.high
    assert test.better == ""


def test_too_few_clients_can_never_be_significant() -> None:
    values = {"a": np.full((3, 5), 9.0) + np.arange(5), "b": np.zeros((3, 5))}
    assert statistics.compare_all_pairs(values, True)[0].better == ""


def test_leader_skips_methods_without_a_score() -> None:
    values = {"broken": np.full((1, 4), np.nan), "a": np.ones((1, 4)), "b": np.full((1, 4), 2.0)}
    assert statistics.leader(values, True) == "b"
    assert statistics.leader(values, False) == "a"
    assert statistics.leader({"broken": values["broken"]}, True) is None
    assert {c.other: c.better for c in statistics.leader_comparisons(statistics.compare_all_pairs(values, True), "b")}[
        "broken"
    ] == ""
    assert statistics.leader_comparisons(statistics.compare_all_pairs(values, True), None) == []


def test_different_clients_cannot_be_paired() -> None:
    with pytest.raises(BadInput, match="pass the common ones"):
        statistics.compare_pairs({"a": np.ones((1, 4)), "b": np.ones((1, 5))}, [("a", "b")], True)


@pytest.mark.parametrize(
    ("seeds", "clients", "of_seeds", "of_rest"),
    [(1, 6, 0.0, 0.0), (5, 6, 0.0, 0.2), (5, 10, 0.1, 0.5), (3, 20, 0.5, 0.5), (5, 48, 0.5, 0.5), (3, 20, 0.0, 1.0)],
)
def test_intervals_contain_the_true_mean(
    seeds: int, clients: int, of_seeds: float, of_rest: float, rng: np.random.Generator
) -> None:
    """In 95 % of studies, for any variances of seeds and of single cells. The variance of clients is 1."""
    count, shape = 1000, (seeds, clients)
    hits = 0
    for _ in range(count):
        effects = rng.normal(0, of_seeds**0.5, size=(seeds, 1)) + rng.normal(size=(1, clients))
        low, high = statistics.interval(effects + rng.normal(0, of_rest**0.5, size=shape))
        hits += low <= 0 <= high
    assert 0.925 < hits / count < 0.98


def test_intervals_of_one_seed_or_client_are_students(rng: np.random.Generator) -> None:
    """One seed: Student's t over clients. One client: over seeds. Equal values have width 0, and one value has no
    interval.
    """
    values = rng.normal(size=(1, 9))
    expected = ttest_1samp(values[0], 0).confidence_interval()
    for of in (values, values[0], values.T):
        np.testing.assert_allclose(statistics.interval(of), [*expected])
    np.testing.assert_allclose(statistics.interval(np.full((3, 5), 7.0)), (7.0, 7.0))
    assert np.isnan(statistics.interval(np.ones((1, 1)))).all()
    assert np.isnan(statistics.interval(np.array([[1.0, np.nan, 2.0]]))).all()


def test_an_interval_excludes_zero_if_its_test_is_significant(rng: np.random.Generator) -> None:
    """`mixed` and `interval` use one model."""
    for _ in range(200):
        values = rng.normal(0.6, 1, size=(1, 8)) + rng.normal(0, 0.5, size=(3, 8))
        low, high = statistics.interval(values)
        assert (low * high > 0) == (statistics.mixed_model_test(values, np.zeros((3, 8))) < 0.05)


def test_intervals_depend_on_seeds_and_clients(rng: np.random.Generator) -> None:
    clients = rng.normal(size=(1, 30))
    seeds = np.array([[-5.0], [0.0], [5.0]])
    narrow, wide = statistics.interval(np.repeat(clients, 3, axis=0)), statistics.interval(clients + seeds)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])


def test_ranks_share_ties_and_follow_the_direction() -> None:
    table = np.array([[90.0, 80.0, 80.0], [0.1, 0.3, 0.2]])
    np.testing.assert_array_equal(statistics.ranks(table, [True, False]), [[1, 2.5, 2.5], [1, 3, 2]])


@pytest.mark.parametrize(("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)])
def test_nemenyi_critical_values_of_the_table(methods: int, q: float, rng: np.random.Generator) -> None:
    """Table 5(a) of Demsar (2006)."""
    ranking = statistics.ranking([str(m) for m in range(methods)], rng.normal(size=(14, methods)), [True] * 14)
    assert ranking.critical_difference == pytest.approx(q * np.sqrt(methods * (methods + 1) / (6 * 14)), rel=5e-4)


def test_our_tests_equal_scipys(rng: np.random.Generator) -> None:
    """This includes ties."""
    from scipy.stats import friedmanchisquare, studentized_range, ttest_rel

    for count in (3, 7, 31):
        assert statistics.studentized_range(count) == pytest.approx(
            studentized_range.ppf(0.95, count, np.inf), rel=1e-6
        )
        scores = rng.integers(0, 4, size=(12, count))
        assert statistics.friedman(statistics.ranks(scores, [True] * 12)) == pytest.approx(
            friedmanchisquare(*scores.T).pvalue
        )
    assert statistics.friedman(np.full((4, 3), 2.0)) == 1.0
    first, second = rng.normal(0.5, 1, size=(5, 8)), rng.normal(size=(5, 8))
    assert statistics.t_test_over_seeds(first, second) == pytest.approx(ttest_rel(first.mean(1), second.mean(1)).pvalue)


def test_seeds_are_tested_in_addition_to_clients_and_corrected(rng: np.random.Generator) -> None:
    """One seed gives no p, and neither does a difference that is equal for all seeds. A difference that varies between
    seeds is undecided, although all clients agree.
    """
    base = rng.normal(70, 8, size=(4, 12))
    noisy = base + np.array([1.0, 9.0, 2.0, 1.0])[:, None]
    pairs = statistics.compare_all_pairs({"a": base + 2, "b": base, "c": noisy}, higher_is_better=True)
    by_pair = {(c.method, c.other): c for c in pairs}
    assert np.isnan(by_pair["a", "b"].p_seeds)
    assert by_pair["b", "c"].p_seeds > 0.1
    assert (by_pair["a", "b"].better, by_pair["a", "b"].undecided) == ("a", False)
    assert by_pair["b", "c"].p_adjusted < 0.05
    assert (by_pair["b", "c"].better, by_pair["b", "c"].undecided) == ("", True)
    np.testing.assert_allclose([c.p_seeds_adjusted for c in pairs], statistics.holm([c.p_seeds for c in pairs]))
    assert np.isnan(statistics.compare_all_pairs({"a": base[:1], "b": noisy[:1]}, True)[0].p_seeds)


def test_friedman_by_its_formula(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(9, 4)) + np.arange(4) * 0.5
    ranking = statistics.ranking(list("abcd"), scores, [True] * 9)
    statistic = 12 * 9 / (4 * 5) * (np.sum(ranking.ranks**2) - 4 * 25 / 4)
    from scipy.stats import chi2

    assert ranking.p == pytest.approx(chi2.sf(statistic, 3))
    with pytest.raises(BadInput, match="2 x 3 finite cells"):
        statistics.ranking(["a", "b"], scores[:, :2], [True] * 9)


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
