"""The parts of a recommendation: budgets, the race's decisions, groups, paired differences. Nothing is trained here."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import recommend_truth as truth
from fedweave.errors import BadInput
from fedweave.recommendation import budget, race
from fedweave.recommendation.candidates import Candidate, entries
from fedweave.recommendation.costs import Costs, Schedule, scheduled
from fedweave.recommendation.groups import agreement, groups, modularity, partition
from fedweave.recommendation.per_client import paired

DRAWS = np.random.default_rng(0)
OTHERS = ("ditto", "fedper", "pfedgraph", "heurfedamp", "fedprox", "fedrep")
START = DRAWS.bit_generator.state


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Whichever tests ran before."""
    DRAWS.bit_generator.state = START


@pytest.mark.parametrize(("value", "expected"), [("90s", 90), ("1.5 h", 5400), ("2h 30min", 9000), (7, 7), ("12", 12)])
def test_budgets_of_time(value: object, expected: float) -> None:
    assert budget.seconds(value) == expected


@pytest.mark.parametrize("value", ["soon", "10 parsec", "", -1, True, "0.2s", ["10min"], "10min or so"])
def test_no_budgets_of_time(value: object) -> None:
    with pytest.raises(BadInput, match=r"^budget: "):
        budget.seconds(value)


def test_budgets_of_traffic() -> None:
    assert (budget.size("2KiB"), budget.size(None)) == (2048, math.inf)
    with pytest.raises(BadInput, match="traffic: '3 miles' is no size"):
        budget.size("3 miles")


def test_controls_are_always_there() -> None:
    """Once each, also where the user lists some; a control on pooled rows cannot race."""
    assert [one.method for one in entries(["ditto", "fedavg"]).values()] == ["local", "fedavg_ft", "ditto", "fedavg"]
    with pytest.raises(BadInput, match="'central' is a control that is always there in the end"):
        entries(["central"])


def candidates(settings: int = 1) -> list[Candidate]:
    """Controls and six other methods."""
    return [
        Candidate(name if i == 0 else f"{name}-s{i + 1}", name, name)
        for name in ("local", "fedavg", "fedavg_ft", *OTHERS)
        for i in range(settings)
    ]


def judged(levels: dict[str, float], settings: int = 1, noise: float = 1.0, higher: bool = True) -> dict[str, str]:
    """Outcomes for scores of two seeds and twelve clients around a level by candidate."""
    named = candidates(settings)
    client = DRAWS.normal(0, 10, 12)
    scores = {c.name: levels.get(c.name, 50.0) + client + DRAWS.normal(0, noise, (2, 12)) for c in named}
    means = {name: float(values.mean()) for name, values in scores.items()}
    return race.outcomes(named, scores, means, higher, set())


def test_a_method_that_is_significantly_worse_drops_out_and_a_control_stays() -> None:
    """The spread between clients, ten times the difference, is paired away."""
    outcome = judged({"fedper": 40.0, "local": 20.0})
    assert outcome["fedper"] == race.WORSE
    assert outcome["local"] == race.GOES_ON


def test_for_errors_smaller_is_better() -> None:
    outcome = judged({"fedper": 60.0, "ditto": 40.0}, higher=False)
    assert (outcome["ditto"], outcome["fedper"]) == (race.GOES_ON, race.WORSE)


def test_the_better_half_goes_on() -> None:
    """Of six methods that do not differ significantly three are left; of three, all."""
    outcome = judged({name: 50 + i / 100 for i, name in enumerate(OTHERS)}, noise=5.0)
    assert sum(outcome[name] == race.GOES_ON for name in OTHERS) == 3
    assert {outcome[name] for name in OTHERS} == {race.GOES_ON, race.HALF}


def test_the_better_half_of_the_settings_goes_on() -> None:
    """Also of a control; the best setting of a method is what is compared with other methods."""
    outcome = judged({"ditto-s2": 70.0, "local-s3": 60.0}, settings=3)
    assert outcome["ditto-s2"] == outcome["local-s3"] == race.GOES_ON
    assert [outcome[f"local{end}"] for end in ("", "-s2")].count(race.SETTINGS) == 1
    assert sum(outcome[f"pfedgraph{end}"] == race.GOES_ON for end in ("", "-s2", "-s3")) == 0


def test_traffic_and_divergence() -> None:
    """Above the budget a method drops out and a control does not; what diverged is out in any case."""
    named = candidates()
    scores = {one.name: np.full((2, 12), 50.0) for one in named if one.name not in ("fedrep", "local")}
    means = dict.fromkeys(scores, 50.0)
    outcome = race.outcomes(named, scores, means, True, {"ditto", "fedavg"})
    assert outcome["ditto"] == race.TRAFFIC
    assert outcome["fedavg"] == race.GOES_ON
    assert outcome["fedrep"] == outcome["local"] == race.DIVERGED


def test_the_best_candidate_stands_for_its_method() -> None:
    table = pd.DataFrame({"candidate": ["ditto-s2", "local", "ditto"]})
    running = [Candidate("ditto", "ditto", "ditto"), Candidate("ditto-s2", "ditto", "ditto", {"lam": 2.0}),
               Candidate("local", "local", "local")]  # fmt: skip
    assert race.best_of_each(running, table) == [
        Candidate("ditto", "ditto", "ditto", {"lam": 2.0}), Candidate("local", "local", "local")
    ]  # fmt: skip


def costs(second: float = 0.1) -> Costs:
    """Every method costs the same."""
    return Costs({one.name: one for one in candidates()}, {one.name: second for one in candidates()}, 2)


def test_a_smaller_budget_means_fewer_settings_then_fewer_rounds() -> None:
    wanted = Schedule(3, 50, (0, 1, 2))
    full = costs().total(wanted)
    assert scheduled(costs(), wanted, math.inf) == wanted
    few = scheduled(costs(), wanted, full)
    assert (few.settings, few.rounds) == (2, 50)
    short = scheduled(costs(), wanted, full / 4)
    assert short.settings == 1
    assert 5 <= short.rounds < 50
    for schedule, limit in ((few, full), (short, full / 4)):
        assert costs().total(schedule) <= limit
    with pytest.raises(BadInput, match=r"budget: 3 s is too little; 9 methods need at least \d+ s here"):
        scheduled(costs(), wanted, 3)


def blocks(sizes: list[int], between: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A graph of groups with weight 1 within them, shuffled, and the group of each client."""
    group = DRAWS.permutation(np.repeat(np.arange(len(sizes)), sizes))
    weights = np.where(group[:, None] == group, 1.0, between)
    return weights / weights.sum(1, keepdims=True), group


@pytest.mark.parametrize(("sizes", "between"), [([6, 6], 0.0), ([5, 7], 0.3), ([4, 4, 4], 0.2), ([3, 9], 0.1)])
def test_planted_groups_are_found(sizes: list[int], between: float) -> None:
    weights, group = blocks(sizes, between)
    graphs = [weights * (1 + 0.05 * DRAWS.normal(size=weights.shape)) for _ in range(3)]
    members = groups(graphs)
    assert members is not None
    assert agreement(members, group) == 1.0


def test_no_groups_are_invented() -> None:
    """Equal weights, weights with noise, seeds that disagree, clients that learn from themselves: no groups."""
    even = np.full((12, 12), 1 / 12)
    assert groups([even] * 3) is None
    assert groups([even * (1 + 0.2 * DRAWS.normal(size=even.shape)) for _ in range(3)]) is None
    assert groups([blocks([6, 6])[0] for _ in range(4)]) is None
    assert groups([0.99 * np.eye(12) + 0.01 * blocks([6, 6])[0]] * 2) is None


def test_modularity_is_that_of_newman() -> None:
    """Two pairs without a link: 1/2; everybody in one group: 0."""
    affinity = np.kron(np.eye(2), [[0.0, 1.0], [1.0, 0.0]])
    assert modularity(affinity, np.array([0, 0, 1, 1])) == pytest.approx(0.5)
    assert modularity(affinity, np.zeros(4)) == pytest.approx(0.0)
    assert partition(affinity)[0].tolist() == [0, 0, 1, 1]


def test_intervals_of_a_client_cover() -> None:
    """Of 600 clients without a difference, about 5 % have an interval that leaves out zero."""
    spread = 1.0
    hits = [paired(DRAWS.normal(0, spread), spread) for _ in range(600)]
    assert 0.02 < np.mean([one.low * one.high > 0 for one in hits]) < 0.09
    assert 0.02 < np.mean([one.p < 0.05 for one in hits]) < 0.09


def test_the_guide_has_the_rates_of_the_file() -> None:
    """`python -m benchmarks.recommend_truth` goes on with the file; the table of the guide is made from it."""
    folder = Path(__file__).parents[2] / "docs" / "guides"
    rows = truth.finished(folder / "recommend_truth.csv")
    assert {row["case"] for row in rows} == {*truth.CASES}
    assert truth.table(rows) in (folder / "recommend.md").read_text(encoding="utf-8")


def test_a_client_without_any_spread() -> None:
    assert paired(0.0, 0.0) == (0.0, 0.0, 0.0, 1.0)
    assert paired(3.0, 0.0) == (3.0, 3.0, 3.0, 0.0)
