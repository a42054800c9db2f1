"""Champion against challenger: the chance of a false promotion holds over all looks, and real gains are found."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal, skew, ttest_1samp
from scipy.stats import t as t_distribution

from benchmarks import promotions
from benchmarks.promotions import Site, bounds
from fedweave.errors import BadInput
from fedweave.results.sequential import Challenge, ChallengePlan, ClientDifference, ClientSum, look, student
from fedweave.tensors.random_streams import stream

DOCS = Path(__file__).resolve().parents[2] / "docs"


def deliveries(count: int, clients: int, gain: float, seed: int = 0) -> list[dict[str, ClientDifference]]:
    """Means of ten rows of normal differences, with a deviation of 5 points and equal clients."""
    draws = gain + 5 * stream(seed).standard_normal((count, clients, 10))
    return [
        {f"c{i}": ClientDifference(float(one.mean()), 10, float(one.var(ddof=1))) for i, one in enumerate(night)}
        for night in draws
    ]


def follow(nights: list[dict[str, ClientDifference]], plan: ChallengePlan, margin: float = 0.0) -> Challenge:
    """The state when the challenge is over."""
    challenge = Challenge(plan)
    for night in nights:
        if not challenge.is_over:
            challenge = look(challenge, night, margin)
    return challenge


def test_bounds_spend_exactly_the_chance_of_a_challenger() -> None:
    """Random walks of 20 looks cross the bounds as often as they may."""
    plan = ChallengePlan(20, 60, 0.3)
    looks = np.arange(1, 21)
    walks = np.cumsum(stream(1).standard_normal((40_000, 20)), 1) / np.sqrt(looks)
    crossed = (walks >= -ndtri(bounds(plan))).any(1).mean()
    assert crossed == pytest.approx(plan.share, abs=4 * (0.1 * 0.9 / 40_000) ** 0.5)
    assert plan.share == pytest.approx(0.1)


def test_bounds_spend_their_chance_however_many_rows_come() -> None:
    """The statistics of looks are normal, with the correlation of sums of rows: SciPy has the chance of a crossing."""
    plan, challenge, counts = ChallengePlan(5, 5, 0.2), Challenge(ChallengePlan(5, 5, 0.2)), [10, 40, 5, 60]
    for count in counts:
        challenge = look(challenge, {f"c{i}": ClientDifference((-1.0) ** i, count, 25.0) for i in range(8)})
    bounds, rows = np.array([(-ndtri(one.bound), one.rows) for one in challenge.looks]).T
    assert [*rows] == [*(8 * np.cumsum(counts))]
    correlation = np.sqrt(np.minimum.outer(rows, rows) / np.maximum.outer(rows, rows))
    for k in range(1, 5):
        crossed = 1 - multivariate_normal(cov=correlation[:k, :k], seed=0).cdf(bounds[:k])
        assert crossed == pytest.approx(plan.level * np.log(1 + (np.e - 1) * k / 5), abs=1e-4)


def test_one_look_is_one_test() -> None:
    plan = ChallengePlan(1, 1, 0.05)
    assert bounds(plan) == pytest.approx([0.05], rel=1e-4)


def test_a_client_is_the_sum_of_its_rows() -> None:
    """Mean and variance are those of all rows together, in whatever deliveries they come."""
    rows = stream(2).standard_normal(40)
    one = ClientSum()
    for part in np.split(rows, [3, 10, 11, 30]):
        one = one.add(ClientDifference(part.mean(), len(part), part.var(ddof=1) if len(part) > 1 else None))
    assert (one.rows, one.difference) == (40, pytest.approx(rows.mean()))
    assert one.row_variance == pytest.approx(rows.var(ddof=1) / 40)


def test_the_variance_of_rows_is_found_between_deliveries_where_it_is_not_given() -> None:
    means = 5 * stream(3).standard_normal(2000) / 10**0.5
    one = ClientSum()
    for mean in means:
        one = one.add(ClientDifference(mean, 10))
    assert one.row_variance * 20_000 == pytest.approx(25, rel=0.1)


def test_the_simulation_looks_as_the_library_does() -> None:
    """The same p values and bounds, look by look."""
    nights = deliveries(12, 8, 0.3)
    plan = ChallengePlan(12, 365)
    challenge = follow(nights, plan, 0.5)
    assert challenge.is_over
    assert challenge.verdict == "open"
    sums: dict[str, ClientSum] = {}
    expected = bounds(plan)
    for number, night in enumerate(nights):
        sums = {name: sums.get(name, ClientSum()).add(one) for name, one in night.items()}
        _, better, worse, near = student(
            np.array([one.difference for one in sums.values()]),
            np.array([one.row_variance for one in sums.values()]),
            0.5,
        )
        seen = challenge.looks[number]
        assert (seen.p_better, seen.p_worse, seen.p_equivalent) == pytest.approx((better, worse, near))
        assert seen.bound == pytest.approx(expected[number], rel=1e-6)
    assert challenge.looks[-1].spent == pytest.approx(plan.share)


@pytest.mark.parametrize(
    ("gain", "margin", "verdict"), [(2.0, 1.0, "better"), (-2.0, 1.0, "worse"), (0.0, 2.0, "equivalent")]
)
def test_verdicts(gain: float, margin: float, verdict: str) -> None:
    challenge = follow(deliveries(60, 12, gain), ChallengePlan(60, 365), margin)
    assert challenge.verdict == verdict
    assert len(challenge.looks) < 60
    sentence = challenge.describe("accuracy")
    assert re.fullmatch(
        rf"{verdict.capitalize()}: [+−]?\d\.\d\d points over 12 clients after \d+ deliver\w+ \(p .*\)\.", sentence
    )


def test_fewer_than_six_clients_have_no_verdict() -> None:
    challenge = follow(deliveries(20, 5, 50.0), ChallengePlan(20, 365))
    assert challenge.verdict == "open"
    assert challenge.describe("accuracy").endswith("it takes 6 clients or more.")


def test_a_client_that_joins_late_does_not_hide_the_others() -> None:
    """It counts with a tenth of the rows of the median client."""
    first = deliveries(15, 8, 0.4)
    late = {**deliveries(1, 8, 0.4, 1)[0], "new": ClientDifference(-500.0, 10, 25.0)}
    challenge = follow([*first, late], ChallengePlan(90, 365))
    assert challenge.looks[-1].clients == 8
    assert challenge.sums["new"].rows == 10


@pytest.mark.parametrize(("rows", "clients"), [(9, 8), (10, 9)])
def test_a_client_counts_with_a_tenth_of_the_usual_rows(rows: int, clients: int) -> None:
    night = {f"c{i}": ClientDifference(i / 8, 100, 25.0) for i in range(8)} | {"new": ClientDifference(0.0, rows, 25.0)}
    assert look(Challenge(), night).looks[-1].clients == clients


@pytest.mark.parametrize("sign", [1, -1])
def test_p_values_are_those_of_student_and_of_hall(sign: int) -> None:
    """Where clients gain more than others lose they are Student's; where they lose more, t is that of Hall (1992)."""
    differences = sign * np.array([-0.4, 0.1, 0.2, 0.3, 0.5, 2.5])
    mean, better, worse, near = student(differences, np.zeros(6), 1.5)

    def hall(values: np.ndarray) -> float:
        t, skewness = ttest_1samp(values, 0).statistic, skew(values)
        return float(
            t_distribution.sf(t + skewness / 3 / 6**0.5 * t**2 + skewness**2 / 27 / 6 * t**3 + skewness / 6**1.5, 5)
        )

    def plain(values: np.ndarray) -> float:
        return float(ttest_1samp(values, 0, alternative="greater").pvalue)

    up, down = (plain, hall) if sign == 1 else (hall, plain)
    assert mean == pytest.approx(differences.mean())
    assert (better, worse) == (pytest.approx(up(differences)), pytest.approx(down(-differences)))
    assert near == pytest.approx(max(up(1.5 + differences), down(1.5 - differences)))


def test_clients_that_agree_have_the_p_of_chance() -> None:
    """Six of six: one in 64, in one direction only; nothing is equivalent."""
    assert student(np.full(6, 0.25), np.zeros(6), 1.0) == (0.25, 1 / 64, 1.0, 1.0)


def test_a_look_without_new_rows_spends_nothing() -> None:
    nights = deliveries(2, 8, 0.1)
    challenge = follow([nights[0], {}, nights[1]], ChallengePlan(90, 365))
    assert [one.spent for one in challenge.looks] == sorted(one.spent for one in challenge.looks)
    assert challenge.looks[1].spent == challenge.looks[0].spent
    assert challenge.looks[1].bound == 0
    direct = follow(nights, ChallengePlan(90, 365))
    assert challenge.looks[2].bound > direct.looks[1].bound


def test_models_with_equal_answers_stay_open() -> None:
    """With few rows, models that differ can give equal answers."""
    equal = {f"c{i}": ClientDifference(0.0, 5, 0.0) for i in range(48)}
    assert follow([equal] * 3, ChallengePlan(90, 365), 1.0).verdict == "open"


def test_a_large_gain_is_found_although_clients_are_skewed() -> None:
    """The correction for skewness grows with the gain where it is not monotone."""
    differences = np.array([5.0, 5.1, 5.2, 5.1, 5.2, 4.0, 5.0, 5.1])
    sizes = np.linspace(0.1, 40, 200)
    p = student(differences[None] - differences.mean() + sizes[:, None], np.zeros((200, 8)))[1]
    assert (np.diff(p) <= 0).all()
    assert p[-1] < 1e-6
    assert student(-differences, np.zeros(8))[2] == student(differences, np.zeros(8))[1]


def test_challengers_of_a_year() -> None:
    """Four of 90 deliveries each that begin as far apart, also if one is given up early. A fifth waits for the year."""
    plan = ChallengePlan()
    assert (plan.challengers, plan.share) == (4, 0.0125)
    assert plan.next_start([], 7) == 7
    assert plan.next_start([0], 10) == 90
    assert plan.next_start([0, 90, 180], 300) == 300
    assert plan.next_start([0, 90, 180, 270], 280) == 365  # not 360
    assert plan.next_start([0, 90, 180, 270, 365], 370) == 455
    assert plan.next_start([0, 90, 180, 270], 400) == 400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patience": 0}, "patience: 0 is not between 1 and per_year, 365"),
        ({"patience": 366}, "patience: 366 is not"),
        ({"level": 1.0}, "level: 1.0 is not between 0 and 1"),
    ],
)
def test_plans_that_make_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(ChallengePlan(), **change)


@pytest.mark.parametrize(
    "new", [ClientDifference(float("nan"), 3), ClientDifference(1.0, 0), ClientDifference(1.0, 2, -1.0)]
)
def test_differences_that_make_no_sense(new: ClientDifference) -> None:
    with pytest.raises(BadInput, match=r"client a: .* is no finite difference of one or more rows"):
        look(Challenge(), {"a": new})


def test_a_challenge_that_is_over_takes_no_look() -> None:
    with pytest.raises(BadInput, match="challenge: it is over"):
        look(follow(deliveries(1, 6, 0.0), ChallengePlan(1, 365)), deliveries(1, 6, 0.0)[0])


@pytest.mark.parametrize("cell", [Site("normal", 6, 0.2, 50), Site("binary", 10, 0.0, 5), Site("skewed", 10, 1.0, 5)])
def test_a_year_without_a_difference_rarely_promotes(cell: Site) -> None:
    """Of 250 years at a level of 5 %, 24 or more have a chance of 1 in 1,000. A nightly test promotes more often."""
    shares = promotions.false_promotions(cell, 250)
    assert shares["promotions"] * 250 < 24
    assert shares["every night at 5 %"] > 0.3


def test_effects_of_clients_make_a_test_of_rows_promote() -> None:
    shares = promotions.false_promotions(Site("normal", 10, 1.0, 5), 100)
    assert shares["rows alone"] > 0.5
    assert shares["promotions"] < 0.15


def test_rows_alone_are_the_least_favourable_case() -> None:
    """Effects of clients correlate the looks, so that fewer walks cross."""
    generator = stream(5)
    plan = ChallengePlan(20, 60, 0.3)
    noise = np.cumsum(generator.standard_normal((20_000, 20)), 1) / np.arange(1, 21)
    effects = 0.5 * generator.standard_normal((20_000, 1))
    deviation = np.sqrt(0.25 + 1 / np.arange(1, 21))
    assert (ndtr(-(noise + effects) / deviation) <= bounds(plan)).any(1).mean() < 0.09
