"""Corrections over tests and the model behind intervals, each compared with its definition or a simpler test."""

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from fedweave.errors import BadInput
from fedweave.results import statistics
from fedweave.results.repetitions import estimate_mean, mixed_model_test, t_test_over_seeds


@pytest.fixture
def rng() -> np.random.Generator:
    """The draws of a test do not depend on earlier tests."""
    return np.random.default_rng(6)


def test_a_client_without_a_score_removes_only_its_column_from_the_correction(rng: np.random.Generator) -> None:
    differences = rng.normal(1, 1, size=(8, 4))
    broken = differences.copy()
    broken[2, 1] = np.nan
    expected = np.insert(statistics.step_down(np.delete(differences, 1, axis=1)), 1, np.nan)
    np.testing.assert_array_equal(statistics.step_down(broken), expected)


def test_a_smaller_difference_never_has_the_smaller_corrected_p(rng: np.random.Generator) -> None:
    raised = 0
    for _ in range(100):
        differences = rng.normal(0.5, 1, size=(6, 5))
        p = statistics.step_down(differences)
        order = np.argsort(-np.abs(differences.sum(0)) / np.linalg.norm(differences, axis=0))
        assert (np.diff(p[order]) >= 0).all()
        alone = statistics.step_down(differences[:, order[1:]])
        raised += bool((p[order[1:]] > alone).any())
    assert raised  # the first test, which is not rejected, also keeps the others from rejection


def test_random_flips_include_the_observed_signs() -> None:
    """So no p is zero: clients that all agree have one in ten thousand."""
    p = statistics.step_down(np.ones((40, 1)))
    np.testing.assert_allclose(p, 1 / statistics.RANDOM_FLIPS)


def test_a_corrected_p_is_never_below_that_of_the_signed_rank_test(rng: np.random.Generator) -> None:
    lower = 0
    for _ in range(50):
        gains = rng.normal(0.5, 1, size=(2, 7))
        values = {"base": np.zeros((1, 7)), "a": gains[:1], "b": gains[1:]}
        tests = statistics.compare_pairs(values, [("a", "base"), ("b", "base")], True)
        by_flips = statistics.step_down(gains.T)
        for test, flipped in zip(tests, by_flips, strict=True):
            assert test.p_adjusted == max(test.p, flipped)
            lower += flipped < test.p
    assert lower


def test_over_splits_every_test_is_the_mixed_one_with_holms_correction(rng: np.random.Generator) -> None:
    values = {name: rng.normal(gain, 1, size=(4, 6)) for name, gain in (("a", 1.0), ("b", 0.4), ("c", 0.0))}
    tests = statistics.compare_all_pairs(values, True, splits=True)
    raw = [mixed_model_test(values[c.method], values[c.other]) for c in tests]
    assert [c.p for c in tests] == raw
    np.testing.assert_array_equal([c.p_adjusted for c in tests], statistics.holm(raw))
    assert all(c.p_adjusted > c.p for c in tests if c.p < max(raw))


def test_equal_methods_are_neither_better_nor_undecided() -> None:
    """Their interval is [0, 0], which includes zero."""
    values = {"a": np.arange(24.0).reshape(3, 8), "b": np.arange(24.0).reshape(3, 8)}
    for splits in (False, True):
        (test,) = statistics.compare_all_pairs(values, True, splits)
        assert (test.low, test.high, test.p, test.p_adjusted, test.p_seeds) == (0.0, 0.0, 1.0, 1.0, 1.0)
        assert (test.better, test.undecided) == ("", False)


def test_without_a_test_nothing_is_undecided(rng: np.random.Generator) -> None:
    """One client on several splits: the interval over splits excludes zero, and there is no test that disagrees."""
    values = {"a": 9 + rng.normal(size=(5, 1)), "b": np.zeros((5, 1))}
    (test,) = statistics.compare_all_pairs(values, True, splits=True)
    assert test.low > 0
    assert np.isnan(test.p_adjusted)
    assert (test.better, test.undecided) == ("", False)


def test_methods_with_other_numbers_of_seeds_have_an_interval_over_clients(rng: np.random.Generator) -> None:
    first, second = rng.normal(1, 1, size=(3, 9)), rng.normal(size=(2, 9))
    (test,) = statistics.compare_pairs({"a": first, "b": second}, [("a", "b")], True)
    expected = ttest_1samp(first.mean(0) - second.mean(0), 0).confidence_interval()
    np.testing.assert_allclose((test.low, test.high), [*expected])


@pytest.mark.parametrize("values", [np.ones((1, 5)), np.ones((5, 1))])
def test_the_mixed_test_needs_several_seeds_and_clients(values: np.ndarray) -> None:
    assert np.isnan(mixed_model_test(values, 0 * values))


def test_equal_means_of_seeds_do_not_differ() -> None:
    assert t_test_over_seeds(np.ones((3, 4)), np.ones((3, 4))) == 1.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 87.53, 1e6])
def test_a_spread_of_rounding_gives_no_p_over_seeds(scale: float) -> None:
    """Two methods that ignore the seed have the same difference with every seed, but for the last digits. Rounding in
    float32 is as little information. A difference of that size is none at all.
    """
    scores = scale * np.array([[0.7, 0.1, 0.9, 0.3]] * 3)
    noise = scale * 2.0**-24 * np.array([1.0, -1.0, 0.0])[:, None]
    for second in (scores - 0.11 * scale, scores - 0.11 * scale + noise, scores.astype(np.float32) - 0.11 * scale):
        assert np.isnan(t_test_over_seeds(scores, second))
    assert np.isnan(mixed_model_test(scores, scores - 0.11 * scale))
    assert t_test_over_seeds(scores, scores + noise) == 1.0
    assert mixed_model_test(scores, scores + noise) == 1.0


@pytest.mark.parametrize("spread", [1e-5, 1e-3, 0.1])
def test_a_spread_above_rounding_is_that_of_students_test(spread: float) -> None:
    first = np.array([[0.7, 0.1, 0.9, 0.3]] * 3)
    second = first - 0.11 + spread * np.array([1.0, -1.0, 0.5])[:, None]
    expected = ttest_1samp(first.mean(1) - second.mean(1), 0).pvalue
    assert t_test_over_seeds(first, second) == pytest.approx(expected, rel=1e-6)


def test_pairs_without_a_p_over_seeds_do_not_change_the_correction_of_others(rng: np.random.Generator) -> None:
    base = rng.normal(70, 8, size=(3, 8))
    values = {"a": base, "b": base + 2, "c": base + np.array([1.0, 4.0, 2.0])[:, None]}
    by_pair = {(c.method, c.other): c for c in statistics.compare_all_pairs(values, True)}
    assert np.isnan(by_pair["a", "b"].p_seeds_adjusted)
    two = [by_pair["a", "c"], by_pair["b", "c"]]
    np.testing.assert_array_equal([c.p_seeds_adjusted for c in two], statistics.holm([c.p_seeds for c in two]))


def test_the_error_of_a_mean_by_sums_over_cells(rng: np.random.Generator) -> None:
    """Satterthwaite's degrees of freedom. If a component is negative, only the larger of the two variances counts."""
    seen = set()
    for seeds_matter, clients_matter in ((1.0, 1.0), (3.0, 0.0), (0.0, 3.0), (0.0, 0.0)) * 10:
        effects = seeds_matter * rng.normal(size=(4, 1)) + clients_matter * rng.normal(size=(1, 7))
        values = effects + rng.normal(size=(4, 7))
        of_seeds, of_clients = values.mean(1), values.mean(0)
        rest = sum(
            (values[s, c] - of_seeds[s] - of_clients[c] + values.mean()) ** 2 for s in range(4) for c in range(7)
        )
        mean_squares = [7 * of_seeds.var(ddof=1), 4 * of_clients.var(ddof=1), rest / 18]
        estimate = estimate_mean(values)
        if mean_squares[2] <= min(mean_squares[:2]):
            total = mean_squares[0] + mean_squares[1] - mean_squares[2]
            freedom = total**2 / sum(m**2 / f for m, f in zip(mean_squares, (3, 6, 18), strict=True))
            np.testing.assert_allclose(estimate, (values.mean(), np.sqrt(total / 28), freedom))
            seen.add("both")
        else:
            alone = of_seeds if mean_squares[0] > mean_squares[1] else of_clients
            error = alone.std(ddof=1) / np.sqrt(len(alone))
            np.testing.assert_allclose(estimate, (values.mean(), error, len(alone) - 1))
            seen.add("seeds" if alone is of_seeds else "clients")
        margin = student.ppf(0.975, estimate.freedom) * estimate.error
        np.testing.assert_allclose(statistics.interval(values), (values.mean() - margin, values.mean() + margin))
    assert seen == {"both", "seeds", "clients"}


@pytest.mark.parametrize("scores", [np.ones((1, 4)), np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])])
def test_one_task_or_an_empty_cell_cannot_be_ranked(scores: np.ndarray) -> None:
    names = [str(place) for place in range(scores.shape[1])]
    with pytest.raises(BadInput, match="2 x 3 finite cells"):
        statistics.ranking(names, scores, [True] * len(scores))


def test_over_splits_the_mean_decides() -> None:
    """Slightly worse in ninety columns, much better in ten: the test is of the mean, and not of ranks."""
    gain = np.concatenate([np.linspace(-0.15, -0.05, 90), np.full(10, 30.0)])
    values = {"a": 50 + np.tile(gain, (4, 1)), "b": np.full((4, 100), 50.0)}
    for higher, winner in ((True, "a"), (False, "b")):
        (test,) = statistics.compare_all_pairs(values, higher, splits=True)
        assert test.p_adjusted < 0.05
        assert 0 < test.low < test.high
        assert (test.better, test.undecided) == (winner, False)
