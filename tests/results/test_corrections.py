"""The joint test and its model, each compared with its definition, a known truth or a limit."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import norm, ttest_1samp
from scipy.stats import t as student

from benchmarks.verdicts import Cell, name_methods
from fedweave.errors import BadInput
from fedweave.metrics import Margin
from fedweave.results import paired_model, ranking, statistics
from fedweave.results.marks import CONTROLS
from fedweave.results.paired_tests import PairedTests
from fedweave.results.repetitions import interval, mean_squares


@pytest.fixture
def rng() -> np.random.Generator:
    """The draws of a test do not depend on earlier tests."""
    return np.random.default_rng(6)


def every_pair(methods: int) -> np.ndarray:
    return np.array(list(combinations(range(methods), 2)))


def test_the_mean_squares_of_pairs_are_those_of_their_differences(rng: np.random.Generator) -> None:
    """All pairs are computed at once, from products of the methods' cells."""
    values = Cell(0.5, 4, 7, 5).study(rng)
    model = paired_model.fit(values, every_pair(5))
    for k, (a, b) in enumerate(model.pairs):
        difference = values[a] - values[b]
        of_seeds, of_clients = difference.mean(1), difference.mean(0)
        cells = difference - of_seeds[:, None] - of_clients + difference.mean()
        assert model.mean[k] == pytest.approx(difference.mean())
        assert model.own_between_seeds[k] == pytest.approx(7 * of_seeds.var(ddof=1))
        assert model.between_clients[k] == pytest.approx(4 * of_clients.var(ddof=1))
        assert model.rest[k] == pytest.approx((cells**2).sum() / 18)
    assert model.prior_between_seeds == pytest.approx(model.own_between_seeds.mean())
    weight = model.prior_freedom / (model.prior_freedom + 3)
    expected = weight * model.prior_between_seeds + (1 - weight) * model.own_between_seeds
    np.testing.assert_allclose(model.between_seeds, expected)


def test_one_pair_alone_is_the_mixed_model(rng: np.random.Generator) -> None:
    """With two methods nothing moderates: p is that of the quasi-F test with Satterthwaite's degrees of freedom."""
    tested = 0
    for _ in range(20):
        first, second = Cell(0.7, 4, 9, 2).study(rng)
        of_seeds, of_clients, of_cells = mean_squares(first - second)
        (test,) = statistics.compare_pairs({"a": first, "b": second}, [("a", "b")], True)
        if of_seeds < of_cells:  # a component of variance is negative and counts as zero
            continue
        total = of_seeds + of_clients - of_cells
        freedom = total**2 / (of_seeds**2 / 3 + of_clients**2 / 8 + of_cells**2 / 24)
        margin = student.ppf(0.975, freedom) * np.sqrt(total / 36)
        assert test.p == pytest.approx(2 * student.sf(abs(test.difference) / np.sqrt(total / 36), freedom))
        np.testing.assert_allclose((test.low, test.high), (test.difference - margin, test.difference + margin))
        tested += 1
    assert tested >= 10


def test_a_mean_square_near_the_rest_has_the_freedom_of_its_parts(rng: np.random.Generator) -> None:
    """What is subtracted may leave hardly anything, of which Satterthwaite's rule alone says less than one degree."""
    values = rng.normal(size=(5, 3, 20)) + 0.02 * rng.normal(size=(5, 3, 1))
    model = paired_model.fit(values, np.array([[i, j] for i in range(5) for j in range(i)]))
    assert (model.error_freedom >= min(model.freedom, 19)).all()
    assert (model.error_freedom > model.freedom).any()


def test_the_degrees_of_freedom_are_those_of_the_simulated_error(rng: np.random.Generator) -> None:
    """2 E² / Var of the variance that t divides by, over draws of the mean squares behind it."""
    model = paired_model.fit(Cell(0.7, 4, 9, 5).study(rng), every_pair(5))

    def mean_square(expected: np.ndarray, freedom: int) -> np.ndarray:
        return expected * rng.chisquare(freedom, size=(20_000, len(expected))) / freedom

    pool = mean_square(np.full(10, model.prior_between_seeds), model.prior_known)
    # The sum of a pair's own mean square and of the pool, whose weights are those of `fit`.
    own = mean_square(model.between_seeds, model.freedom) + (pool - model.prior_between_seeds) * (
        model.prior_freedom / model.freedom
    )
    variance = mean_square(model.between_clients, 8) + own - mean_square(model.rest, 24)
    simulated = 2 * (model.between_clients + model.between_seeds - model.rest) ** 2 / variance.var(0)
    regular = (model.seed_excess > 0) & (simulated > min(model.freedom, 8))
    assert regular.sum() > 5
    np.testing.assert_allclose(model.error_freedom[regular], simulated[regular], rtol=0.06)


def test_statistics_of_pairs_are_compared_as_normal_quantiles(rng: np.random.Generator) -> None:
    """A pair of six degrees of freedom has a large t by chance more often than one of nineteen."""
    model = paired_model.fit(Cell(0.1, 3, 20, 6).study(rng), every_pair(6))
    freedom = model.error_freedom
    assert freedom.min() < 6
    assert freedom.max() > 18
    for t in (-3.0, 1.0, 2.5, 6.0):
        shown = PairedTests(model)._joint._normalise(np.full(15, t))
        np.testing.assert_allclose(shown, -norm.isf(student.cdf(t, freedom)), rtol=0.01)


def test_without_seeds_the_correction_is_the_maximum_over_all_flips(rng: np.random.Generator) -> None:
    """By the definition: the largest |t| among the tests not yet rejected, over every way to change clients' signs."""
    scores = rng.normal(np.array([0.0, 1.0, 1.6, 0.3])[:, None], 1, size=(4, 7))
    values = dict(zip("abcd", scores[:, None], strict=True))
    pairs = [("a", "b"), ("a", "c"), ("a", "d"), ("c", "d")]
    differences = np.stack([values[a][0] - values[b][0] for a, b in pairs], 1)
    student_t = lambda d: np.abs(d.mean(0) / d.std(0, ddof=1))  # noqa: E731
    seen = student_t(differences)
    expected, floor = np.empty(4), 0.0
    order = np.argsort(-seen)
    for place, k in enumerate(order):
        left = order[place:]
        hits = [
            student_t(np.array(signs)[:, None] * differences[:, left]).max() >= seen[k] - 1e-9
            for signs in product((-1, 1), repeat=7)
        ]
        expected[k] = floor = max(floor, float(np.mean(hits)))
    tests = statistics.compare_pairs(values, pairs, True, fixed=True)
    np.testing.assert_allclose([c.p_adjusted for c in tests], np.maximum(expected, [c.p for c in tests]))
    assert (expected > [c.p for c in tests]).any()


def test_a_smaller_statistic_never_has_the_smaller_corrected_p(rng: np.random.Generator) -> None:
    """Statistics of pairs are compared on the scale of a normal variable."""
    values = Cell(0.3, 2, 8, 6).study(rng)
    values[2] += 2
    test = PairedTests(paired_model.fit(values, every_pair(6)))
    size = test._joint._normalise(np.abs(test.model.statistic))
    corrected = test._joint.adjust(np.abs(test.model.statistic), np.zeros(15))
    assert (np.diff(corrected[np.argsort(-size)]) >= 0).all()


def test_from_three_seeds_on_no_correction_is_larger_than_that_of_holm(rng: np.random.Generator) -> None:
    """By the definition of Holm (1979), for differences and for equivalence; of two seeds p does not hold alone."""
    capped, margins = {}, np.full(10, 3.0)
    for seeds in (2, 3, 10):
        values = Cell(0.3, seeds, 8, 5).study(rng)
        values[2] += 4
        test = PairedTests(paired_model.fit(values, every_pair(5)))
        model, size = test.model, np.abs(test.model.statistic)
        beyond, side = (margins - np.abs(model.mean)) / model.error, np.where(model.mean >= 0, 1.0, -1.0)
        joint = (np.maximum(test.p, test._joint.adjust(size, np.zeros(10))), test._joint.adjust(beyond, side))
        alone = (test.p, student.sf(beyond, model.error_freedom))
        for drawn, p, corrected in zip(joint, alone, (test.p_adjusted, test.p_equivalent(margins)), strict=True):
            order = np.argsort(p)
            steps = np.minimum(1, np.maximum.accumulate(np.arange(10, 0, -1) * p[order]))
            limit = steps[np.argsort(order)] if seeds > 2 else np.ones(10)
            np.testing.assert_allclose(corrected, np.minimum(drawn, limit))
            capped[seeds] = capped.get(seeds, 0) + (limit < drawn).sum()
    assert capped[3] > capped[2] == 0


def test_a_smaller_family_corrects_less(rng: np.random.Generator) -> None:
    scores = Cell(0.2, 3, 12, 10).study(rng)
    values = dict(zip((*CONTROLS, *"abcdefgh"), scores + np.linspace(0, 2, 10)[:, None, None], strict=True))
    every = {frozenset((c.method, c.other)): c for c in statistics.compare_all_pairs(values, True)}
    controls = statistics.compare_to_controls(values, CONTROLS, True)
    differences = [every[frozenset((c.method, c.other))].p_adjusted - c.p_adjusted for c in controls]
    assert min(differences) > -0.01  # the correction is by random draws
    assert max(differences) > 0.01


def test_p_has_no_floor_where_clients_are_many(rng: np.random.Generator) -> None:
    """A correction over hundreds of tests of many tasks must be able to find something."""
    values = Cell(0.05, 5, 100, 4).study(rng)
    values[0] += 5
    tests = statistics.compare_all_pairs(dict(zip("abcd", values, strict=True)), True)
    assert max(c.p for c in tests if c.method == "a") < 1e-6


def test_the_error_with_more_seeds_approaches_that_over_clients(rng: np.random.Generator) -> None:
    values = Cell(0.5, 3, 10, 4).study(rng)
    model = paired_model.fit(values, every_pair(4))
    error = model.error_with(np.array([3.0, 6.0, 1e9]))
    positive = model.between_clients > model.rest
    assert positive.any()
    np.testing.assert_allclose(error[0, positive], model.error[positive])
    assert (error[1] < error[0]).all()
    of_clients = np.sqrt((model.between_clients - model.rest) / 3 / 10)
    np.testing.assert_allclose(error[2, positive], of_clients[positive], rtol=1e-3)


# Where a test over clients alone, or one without moderation, made a false claim in a fifth to four fifths of studies,
# and corners of the grid.
CELLS = [
    Cell(0.2, 2, 100, 6),
    Cell(0.35, 3, 100, 6, variances="factor 4"),
    Cell(0.7, 2, 20, 12, "heavy tails"),
    Cell(0.0, 3, 10, 12, "skewed", "factor 4"),
    Cell(0.1, 5, 6, 6, "skewed"),
]


@pytest.mark.parametrize("cell", CELLS)
def test_at_most_a_twentieth_of_studies_makes_a_false_claim(cell: Cell, rng: np.random.Generator) -> None:
    """Methods that do not differ. Nine in 120 studies, or more, have a chance of 1 in 7 at a level of 5 %; fifteen of
    1 in 1,000. The whole grid is `python -m benchmarks.verdicts`.
    """
    wrong = {"pairs": 0, "controls": 0}
    for _ in range(120):
        values = dict(zip(name_methods(cell.methods), cell.study(rng), strict=True))
        wrong["pairs"] += any(c.better for c in statistics.compare_all_pairs(values, True, draws=500))
        wrong["controls"] += any(c.better for c in statistics.compare_to_controls(values, CONTROLS, True, draws=500))
    assert max(wrong.values()) < 15


def test_real_differences_are_found(rng: np.random.Generator) -> None:
    """A gain of 1.2 standard deviations of a client's differences, three seeds, twenty clients: in 86 % of studies."""
    found = 0
    for _ in range(100):
        scores = Cell(0.2, 3, 20, 6).study(rng)
        scores[2] += 1.2 * (2 + 2 / 3) ** 0.5
        values = dict(zip((*CONTROLS, *"abcd"), scores, strict=True))
        tests = statistics.compare_to_controls(values, CONTROLS, True, draws=500)
        found += any((c.method, c.other, c.verdict) == ("a", "Local", "better") for c in tests)
    assert found >= 74  # three standard errors below 86


def test_a_difference_of_the_margin_is_rarely_called_equivalent(rng: np.random.Generator) -> None:
    wrong = right = 0
    for _ in range(100):
        scores = Cell(0.1, 5, 48, 6).study(rng)
        scores[::2] += 1.5
        pairs = statistics.compare_all_pairs(dict(zip("abcdef", scores, strict=True)), True, Margin(points=1.5), 500)
        apart = ["ace".find(c.method) * "ace".find(c.other) < 0 for c in pairs]
        wrong += any(c.verdict == "equivalent" for c, is_apart in zip(pairs, apart, strict=True) if is_apart)
        right += sum(c.verdict == "equivalent" for c, is_apart in zip(pairs, apart, strict=True) if not is_apart)
    assert wrong < 13  # of 100 studies: a chance of 1 in 1,000 at a level of 5 %
    assert right > 100  # of 600 pairs


def test_the_interval_of_a_mean_by_sums_over_cells(rng: np.random.Generator) -> None:
    for seeds_matter, clients_matter in ((1.0, 1.0), (3.0, 0.0), (0.0, 3.0), (0.0, 0.0)) * 5:
        effects = seeds_matter * rng.normal(size=(4, 1)) + clients_matter * rng.normal(size=(1, 7))
        values = effects + rng.normal(size=(4, 7))
        of_seeds, of_clients, grand = values.mean(1), values.mean(0), values.mean()
        cells = sum((values[s, c] - of_seeds[s] - of_clients[c] + grand) ** 2 for s in range(4) for c in range(7)) / 18
        excess = max(7 * of_seeds.var(ddof=1) - 2 / 3 * cells, 0)
        squares = student.ppf(0.975, 6) ** 2 * 4 * of_clients.var(ddof=1) + student.ppf(0.975, 3) ** 2 * excess
        margin = np.sqrt(squares / 28)
        np.testing.assert_allclose(interval(values), (grand - margin, grand + margin))


@pytest.mark.parametrize("scores", [np.ones((1, 4)), np.ones((9, 2)), np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])])
def test_one_task_two_methods_or_an_empty_cell_cannot_be_ranked(scores: np.ndarray) -> None:
    names = [str(place) for place in range(scores.shape[1])]
    with pytest.raises(BadInput, match="2 x 3 finite cells"):
        ranking.ranking(names, scores, [True] * len(scores))


def test_a_margin_in_percent_is_as_uncertain_as_the_mean_it_is_of(rng: np.random.Generator) -> None:
    """Errors of six clients that differ more than their mean is large. Once 21 % of such studies called two methods
    equivalent whose errors differ by the margin.
    """
    wrong = right = 0
    for _ in range(150):
        scores = Cell(0.1, 10, 6, 4).study(rng) * rng.exponential(size=6) ** 2
        scores[::2] *= 1.05
        pairs = statistics.compare_all_pairs(dict(zip("abcd", scores, strict=True)), False, Margin(share=0.05), 500)
        wrong += any(c.verdict == "equivalent" for c in pairs if {c.method, c.other} not in ({*"ac"}, {*"bd"}))
        right += sum(c.verdict == "equivalent" for c in pairs if {c.method, c.other} in ({*"ac"}, {*"bd"}))
    assert wrong < 18  # a chance of 1 in 1,000 at a level of 5 %
    assert right > 15  # of 300 pairs


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_at_the_edge_of_a_margin_in_percent_is_students_test(sign: float, order: str, rng: np.random.Generator) -> None:
    """Of two fixed models: is one mean less than 1.05 times the other? So it is for negative scores, and either way."""
    low = sign * rng.exponential(10, size=60)
    values = {"a": 1.01 * low + rng.normal(0, 0.1, size=60), "b": low}
    (test,) = statistics.compare_pairs(values, [(order[0], order[1])], False, Margin(share=0.05), fixed=True)
    large, small = sorted(values.values(), key=lambda scores: abs(scores.mean()))[::-1]
    expected = ttest_1samp(sign * (large - 1.05 * small), 0, alternative="less").pvalue
    assert test.p_equivalent == pytest.approx(expected, abs=0.015)


def draw_copies(rng: np.random.Generator, random: bool) -> np.ndarray:
    """Scores [6, 3, 48] of a method and five others: copies of one training, or methods without randomness."""
    values = Cell(0.7, 3, 48, 6).study(rng)
    if random:
        values[:-1] = values[0]
    else:
        values[:-1] = values[:-1].mean(1, keepdims=True)
    return values


def test_copies_of_one_training_say_no_more_of_seeds_than_one(rng: np.random.Generator) -> None:
    """Their equal mean squares were taken for variances that five methods confirm.

    Also where each copy is a constant better than the next.
    """
    for random, step in ((True, 0.0), (True, 0.5), (False, 0.0)):
        values = draw_copies(rng, random) + step * np.arange(6)[:, None, None]
        model = paired_model.fit(values, every_pair(6))
        assert model.sources == 2
        assert model.prior_freedom == 0
        np.testing.assert_allclose(model.between_seeds[model.varies], model.own_between_seeds[model.varies])


def test_copies_of_one_training_make_no_false_claims(rng: np.random.Generator) -> None:
    """Methods without randomness beside a single one. Once 13 % of such studies made a false claim of that."""
    names, false = name_methods(6), 0
    for _ in range(200):
        values = dict(zip(names, draw_copies(rng, False), strict=True))
        tests = statistics.compare_pairs(values, [(name, names[-1]) for name in names[:-1]], True, draws=500)
        false += any(test.better for test in tests)
    assert false <= 20  # 10 are expected at 5 %; one in a thousand samples has more


def test_two_methods_with_three_seeds_make_few_false_claims(rng: np.random.Generator) -> None:
    """p of Student's distribution alone is below 0.05 in 8 % of such studies."""
    cell, names = Cell(0.35, 3, 100, 2), name_methods(2)
    tests = [
        statistics.compare_all_pairs(dict(zip(names, cell.study(rng), strict=True)), True, draws=500)[0]
        for _ in range(1500)
    ]
    assert sum(bool(test.better) for test in tests) <= 103  # 75 are expected at 5 %; one in a thousand has more


@pytest.mark.parametrize("gain", [0.0, 2.0])
def test_finalists_that_the_same_clients_chose_make_few_false_claims(gain: float, rng: np.random.Generator) -> None:
    """The best five of sixty equal methods suit these clients by chance, on other rows and with other seeds, too; also
    beside one that is better than all of them.
    """
    false, names = np.zeros(2), ["Local", *"abcde"]
    for _ in range(300):
        of_clients = rng.normal(size=(61, 1, 48))  # of a method, on all rows of a client and with all seeds
        of_clients[1] += gain
        before, after = (of_clients + 0.5 * rng.normal(size=(61, 5, 48)) for _ in range(2))
        finalists = [0, *(1 + np.argsort(-before[1:].mean((1, 2)))[:5])]
        values, pairs = dict(zip(names, after[finalists], strict=True)), [(name, "Local") for name in "abcde"]
        for i, chosen_from in enumerate((0, 60)):
            tests = statistics.compare_pairs(values, pairs, True, draws=500, chosen_from=chosen_from)
            equal = [test for test, number in zip(tests, finalists[1:], strict=True) if not gain or number > 1]
            false[i] += any(test.better for test in equal)
    assert false[1] <= 28 < false[0]  # 15 are expected at 5 %; one in a thousand samples has more than 28
