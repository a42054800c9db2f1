"""The parts of a recommendation, without training: budgets, the decisions of a race, groups, paired differences."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from benchmarks import recommend_truth as truth
from fedweave import results
from fedweave.errors import BadInput
from fedweave.recommendation import answers, budget, page, race, result, sentences
from fedweave.recommendation.candidates import Candidate, entries
from fedweave.recommendation.costs import Costs, Schedule, fit_schedule
from fedweave.recommendation.finals import FinalComparison
from fedweave.recommendation.groups import groups, modularity, partition
from fedweave.recommendation.per_client import COLUMNS, t_test
from fedweave.results import statistics
from tests.fake_results import write_study

DRAWS = np.random.default_rng(0)
OTHERS = ("ditto", "fedper", "pfedgraph", "heurfedamp", "fedprox", "fedrep")


@pytest.mark.parametrize(("value", "expected"), [("90s", 90), ("1.5 h", 5400), ("2h 30min", 9000), (7, 7), ("12", 12)])
def test_budgets_of_time(value: object, expected: float) -> None:
    assert budget.seconds(value) == expected


@pytest.mark.parametrize("value", ["soon", "10 parsec", "", -1, True, "0.2s", ["10min"], "10min or so"])
def test_invalid_budgets_of_time_are_refused(value: object) -> None:
    with pytest.raises(BadInput, match=r"^budget: "):
        budget.seconds(value)


def test_budgets_of_traffic() -> None:
    assert (budget.size("2KiB"), budget.size(None)) == (2048, math.inf)
    with pytest.raises(BadInput, match="traffic: '3 miles' is not a size"):
        budget.size("3 miles")


def test_controls_are_always_candidates() -> None:
    """Once each, even if the user names some. A control on pooled rows cannot race."""
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


def judge(levels: dict[str, float], settings: int = 1, higher: bool = True) -> dict[str, str]:
    """Outcomes for a score of each candidate, 50 where `levels` has none."""
    named = candidates(settings)
    return race.outcomes(named, {one.name: levels.get(one.name, 50.0) for one in named}, higher, set())


def test_a_control_stays_and_a_method_in_the_worse_half_drops_out() -> None:
    """For errors smaller is better."""
    others = {name: 50.0 + place for place, name in enumerate(OTHERS)}
    outcome = judge(others | {"local": 20.0})
    assert (outcome[OTHERS[-1]], outcome["local"]) == (race.GOES_ON, race.GOES_ON)
    assert judge(others, higher=False)[OTHERS[-1]] == race.HALF


def test_the_better_half_continues() -> None:
    """Of six methods three remain."""
    outcome = judge({name: 50 + i / 100 for i, name in enumerate(OTHERS)})
    assert sum(outcome[name] == race.GOES_ON for name in OTHERS) == 3
    assert {outcome[name] for name in OTHERS} == {race.GOES_ON, race.HALF}


def test_of_many_methods_a_half_continues() -> None:
    """Of ten, the five with the best means remain. Controls do not count."""
    others = [Candidate(f"m{i}", f"m{i}", f"m{i}") for i in range(10)]
    named = [one for one in candidates() if one.method not in OTHERS] + others
    means = {one.name: float(DRAWS.normal(50, 5)) for one in named}
    outcome = race.outcomes(named, means, True, set())
    ranked = sorted((one.name for one in others), key=lambda name: -means[name])
    assert [outcome[name] for name in ranked] == [race.GOES_ON] * 5 + [race.HALF] * 5


def test_the_better_half_of_the_settings_continues() -> None:
    """This holds for controls too. The best setting of a method is compared with other methods."""
    outcome = judge({"ditto-s2": 70.0, "local-s3": 60.0}, settings=3)
    assert outcome["ditto-s2"] == outcome["local-s3"] == race.GOES_ON
    assert [outcome[f"local{end}"] for end in ("", "-s2")].count(race.SETTINGS) == 1
    assert sum(outcome[f"fedrep{end}"] == race.GOES_ON for end in ("", "-s2", "-s3")) == 0


def test_methods_above_the_budget_of_traffic_and_diverged_ones_drop_out() -> None:
    """A control above the budget remains. A diverged candidate always drops out."""
    named = candidates()
    means = {one.name: 50.0 for one in named if one.name not in ("fedrep", "local")}
    outcome = race.outcomes(named, means, True, {"ditto", "fedavg"})
    assert outcome["ditto"] == race.TRAFFIC
    assert outcome["fedavg"] == race.GOES_ON
    assert outcome["fedrep"] == outcome["local"] == race.DIVERGED


def test_the_table_of_a_rung_has_the_best_first_and_the_diverged_last(tmp_path: Path) -> None:
    """A candidate that diverged with some seed has no score, for any scores of its other seeds. The order of the others
    is correct.
    """
    skill = {"fedper": 9.0, "ditto": 3.0, "fedavg": 6.0, "fedprox": -3.0, "local": 0.0}
    folder = write_study(tmp_path / "results" / "race", methods=skill, seeds=(0, 1), extras=False)
    for name, seeds in {"fedper": [0], "fedavg": [0, 1]}.items():
        file = folder / "runs" / f"blobs-{name}" / "evaluations.parquet"
        table = pd.read_parquet(file)
        table.loc[table["seed"].isin(seeds), "value"] = np.nan
        table.to_parquet(file, index=False)
    named = [Candidate(name, name, name) for name in skill]
    run = race.Race(None, {}, {"rounds": 20}, tmp_path)
    _, table = run._evaluate_rung(1, 20, named, results.load_study(folder))
    assert table["candidate"].tolist()[:3] == ["ditto", "local", "fedprox"]
    assert table.set_index("candidate")["outcome"][["fedper", "fedavg"]].tolist() == [race.DIVERGED] * 2


def test_the_traffic_of_all_rounds_follows_from_that_of_a_rung(tmp_path: Path) -> None:
    """20 of 80 rounds of the twelve clients' models of 1234 numbers, both ways."""
    folder = write_study(tmp_path / "results" / "race", methods={"local": 0.0, "ditto": 3.0}, seeds=(0,), extras=False)
    study, named = results.load_study(folder), [Candidate(name, name, name) for name in ("local", "ditto", "shn")]
    sent = 2 * 12 * 4936 * 20
    for limit, outcome in ((4.01 * sent, race.GOES_ON), (3.99 * sent, race.TRAFFIC)):
        _, table = race.Race(None, {}, {"rounds": 80}, tmp_path, limit)._evaluate_rung(1, 20, named, study)
        table = table.set_index("candidate")
        assert table["outcome"].to_dict() == {"local": race.GOES_ON, "ditto": outcome, "shn": race.DIVERGED}
        assert table["mib"].tolist() == [*[pytest.approx(sent / 2**20)] * 2, pytest.approx(math.nan, nan_ok=True)]
        seconds = pd.read_csv(folder / "runs" / "blobs-ditto" / "rounds.csv")["seconds"].sum()
        assert table["seconds"]["ditto"] == pytest.approx(seconds)


def test_the_best_candidate_represents_its_method() -> None:
    table = pd.DataFrame({"candidate": ["ditto-s2", "local", "ditto"]})
    plain, other = Candidate("ditto", "ditto", "ditto"), Candidate("ditto-s2", "ditto", "ditto", {"lam": 2.0})
    local = Candidate("local", "local", "local")
    assert race.best_candidates([plain, other, local], table) == [replace(other, name="ditto"), local]


def test_finalists_are_corrected_for_all_methods_of_the_race(tmp_path: Path) -> None:
    """The clients of the tests chose the finalists, so that three of twelve are not three of three."""
    skill = {"local": 0.0, "ditto": 1.5, "fedavg": 0.7, "fedper": 1.0}
    study = results.load_study(write_study(tmp_path / "results" / "final", methods=skill, extras=False))
    named = {name: Candidate(name, name, name) for name in skill}
    common = FinalComparison(None, study), named, "local", results.clients(study)
    of_three, of_twelve = (answers.FinalistTests(*common, entered).tests_against_local for entered in (4, 13))
    few, many = (np.array([test.p_adjusted for test in tests.values()]) for tests in (of_three, of_twelve))
    # Step by step, 12, 11 and 10 of twelve tests are left, and 3, 2 and 1 of three.
    expected = np.maximum.accumulate(np.sort(few) * np.array([12 / 3, 11 / 2, 10 / 1]))
    np.testing.assert_allclose(np.sort(many), np.minimum(expected, 1.0))
    assert few.min() < 0.25


def board(**methods: tuple[str, float, str, int]) -> pd.DataFrame:
    """A board from (verdict, score above Local, verdict against Local, bytes) of every method, and Local itself."""
    rows = {"local": ("worse", math.nan, "", 0), **methods}
    columns = ("verdict", "over_local", "verdict_local", "bytes")
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return table.rename_axis("method").reset_index().assign(models=1, seconds=1.0)


@pytest.mark.parametrize("higher", [True, False])
def test_the_recommended_method_is_better_than_local_by_its_own_test(higher: bool) -> None:
    """A method that is cheap, but open or below Local, is not recommended because the leader is better."""
    sign = 1 if higher else -1
    made = board(
        pfedgraph=("leads", 5.0 * sign, "better", 9),
        fedavg=("open", 1.0 * sign, "equivalent", 1),
        fedavg_ft=("equivalent", -0.5 * sign, "equivalent", 2),
        fedper=("equivalent", 3.0 * sign, "worse", 3),
        ditto=("equivalent", 3.0 * sign, "open", 4),
        fedprox=("better", 6.0 * sign, "better", 5),
    )
    assert answers.deployable_methods(made, "local", higher)["method"].tolist() == ["pfedgraph", "ditto", "fedprox"]
    assert answers.cheapest_method(answers.deployable_methods(made, "local", higher)) == "ditto"


@pytest.mark.parametrize(
    ("leader", "other", "kind"),
    [("open", "better", "personal"), ("worse", "better", "personal"), ("open", "open", "local"), ("", "", "local")],
)
def test_another_method_that_is_better_than_local_is_not_hidden(leader: str, other: str, kind: str) -> None:
    """The best method by validation is not shown to be better than Local, but another one is."""
    made = board(pfedgraph=("leads", 1.0, leader or "no verdict", 9), ditto=("open", 2.0, other or "no verdict", 4))
    made = made.assign(label=made["method"].str.title(), settings="", test=1.0, validation=1.0)
    verdicts = {"pfedgraph": leader, "ditto": other}
    tests = {
        name: statistics.TestedPair(name, "local", 2.0, 1.0, 3.0, 1.0, 0.01, 0.02, 1.0, verdict, "seeds and clients")
        for name, verdict in verdicts.items()
    }
    selected = answers.paying_method(made) or "local"
    assert selected == ("ditto" if kind == "personal" else "local")
    advice = answers.Answers(kind, selected, made, pd.DataFrame(), tests, "pfedgraph", "local", "1 point")
    texts = sentences.deployment(advice), sentences.collaboration_benefit(advice, "accuracy")
    if kind == "personal":
        assert texts[0] == "A personal model for each client, trained with Ditto."
        assert texts[1].startswith("Yes. Ditto against Local: accuracy 2.00 points higher (95 % interval 1.00 to ")
        assert texts[1].endswith(", corrected p = 0.02). Pfedgraph, best on validation rows, is not shown to be.")
    else:
        end = "no method is shown to be better." if leader else "no verdict on other methods is possible."
        assert texts[0].endswith(end)
        assert not texts[1].startswith("Yes")


def test_under_trained_methods_answer_nothing() -> None:
    made = board(ditto=("leads", 1.0, "better", 4)).assign(label="Ditto", settings="", test=1.0, validation=1.0)
    made = made.assign(seconds=1.0, mib=1.0, server_mib=1.0, client_mib=1.0, bytes=1, models=2)
    test = statistics.TestedPair("ditto", "local", 2.0, 1.0, 3.0, 1.0, 0.01, 0.02, 1.0, "better", "seeds and clients")
    clients = pd.DataFrame(columns=COLUMNS)
    advice = answers.Answers("personal", "ditto", made, clients, {"ditto": test}, "ditto", "local", "1 point")
    few: tuple[Any, ...] = ("accuracy", True, pd.DataFrame(columns=["share"]), [0.0, 0.0, 0.0])
    texts = dict(sentences.lines(advice, *few, "", "train longer"))
    assert texts["Deploy"] == "Nothing yet, as the methods are under-trained."
    assert texts["Best"] == "Ditto is best on validation rows."
    assert texts["Does collaboration pay?"] == "Under-trained: no statement about collaboration: train longer."
    gains = {"For each client", "A choice for each client", "Equivalent to the best", "Cost"}
    assert not gains & {*texts}  # nothing is deployed yet


def test_an_open_comparison_says_what_would_decide_it() -> None:
    """It is not taken for equality: the margin and the seeds that are needed are named."""
    made = board(ditto=("leads", 1.0, "open", 4)).assign(label="Ditto", settings="")
    for needed, end in ((9.0, " 9 seeds would decide at the variance seen."), (math.nan, "; more clients may.")):
        numbers = (1.0, -1.0, 3.0, 1.0, 0.3, 0.3, 0.5)
        test = statistics.TestedPair("ditto", "local", *numbers, "open", "seeds and clients", needed)
        advice = answers.Answers("local", "local", made, pd.DataFrame(), {"ditto": test}, "ditto", "local", "1 point")
        text = sentences.collaboration_benefit(advice, "accuracy")
        start = "Open: neither a difference nor equivalence within 1 point is shown. Ditto against Local"
        assert text.startswith(start)
        assert text.endswith(end)


def costs(second: float = 0.1) -> Costs:
    """Every method costs the same."""
    return Costs({one.name: one for one in candidates()}, {one.name: second for one in candidates()}, 2)


def test_a_smaller_budget_means_fewer_settings_then_fewer_rounds() -> None:
    requested = Schedule(3, 50, (0, 1, 2))
    full = costs().total_seconds(requested)
    assert fit_schedule(costs(), requested, math.inf) == requested
    few = fit_schedule(costs(), requested, full)
    assert (few.settings, few.rounds) == (2, 50)
    short = fit_schedule(costs(), requested, full / 4)
    assert short.settings == 1
    assert 5 <= short.rounds < 50
    for schedule, limit in ((few, full), (short, full / 4)):
        assert costs().total_seconds(schedule) <= limit
    with pytest.raises(BadInput, match=r"budget: 3 s is too little; 9 methods need at least \d+ s here"):
        fit_schedule(costs(), requested, 3)


def test_the_estimate_of_a_schedule_equals_a_calculation_by_hand() -> None:
    """Methods take 1 to 9 s for a round. The schedule has two rungs, the last comparison and the learning curve."""
    named = {one.name: one for one in candidates()}
    seconds = dict(zip(named, range(1, 10), strict=True))
    unequal = Costs(named, seconds, 2)
    overhead = 0.4
    first = 4 * (sum(seconds.values()) * 2 + 9 * overhead)  # four candidates of all nine methods, two rounds
    second = 2 * (sum([1, 2, 3, 9, 8, 7]) * 4 + 6 * overhead)  # the controls and the slower half, four rounds
    controls, slowest, pooled, other_graphs, curve = 1 + 2 + 3, 9 + 8 + 7, 3, 2 * 9, 2 * 9
    last = (controls + slowest + pooled + other_graphs + curve) * 8 * 2 + (3 + 3 + 1 + 2 + 2) * overhead  # two groups
    last += 2 * pooled * 8  # five rates of the pooled model: a quarter of the rounds, and three of them to half
    schedule = Schedule(4, 8, (0, 1, 2))
    assert unequal.total_seconds(schedule) == pytest.approx(first + second + last)
    drawn_settings = Costs(named, seconds, 2, search=0)
    assert drawn_settings.total_seconds(schedule) == pytest.approx(first + second + last - 2 * pooled * 8)
    listed_backwards = Costs(dict(reversed(named.items())), seconds, 2)
    assert listed_backwards.total_seconds(schedule) == pytest.approx(first + second + last)


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
    assert adjusted_rand_score(group, members) == 1.0


def test_no_groups_are_found_in_graphs_without_groups() -> None:
    """Equal weights, weights with noise, seeds that disagree, and clients that learn from themselves."""
    even = np.full((12, 12), 1 / 12)
    assert groups([even] * 3) is None
    assert groups([even * (1 + 0.2 * DRAWS.normal(size=even.shape)) for _ in range(3)]) is None
    assert groups([blocks([6, 6])[0] for _ in range(4)]) is None
    assert groups([0.99 * np.eye(12) + 0.01 * blocks([6, 6])[0]] * 2) is None
    strong, weak = (blocks([6, 6])[0] for _ in range(2))  # the mean has the groups of the first seed only
    assert groups([strong]) is not None
    assert groups([4 * strong, weak]) is None


def test_modularity_is_that_of_newman() -> None:
    """Two pairs without a link: 1/2. One group of all: 0."""
    affinity = np.kron(np.eye(2), [[0.0, 1.0], [1.0, 0.0]])
    assert modularity(affinity, np.array([0, 0, 1, 1])) == pytest.approx(0.5)
    assert modularity(affinity, np.zeros(4)) == pytest.approx(0.0)
    assert partition(affinity)[0].tolist() == [0, 0, 1, 1]


def test_intervals_of_a_client_have_their_coverage() -> None:
    """Of 600 clients without a difference, about 5 % have an interval that excludes zero."""
    spread = 1.0
    hits = [t_test(DRAWS.normal(0, spread), np.array([spread**2]), np.array([1e6])) for _ in range(600)]
    assert 0.02 < np.mean([one.low * one.high > 0 for one in hits]) < 0.09
    assert 0.02 < np.mean([one.p < 0.05 for one in hits]) < 0.09


def test_the_guide_has_the_rates_of_the_file() -> None:
    """`python -m benchmarks.recommend_truth` extends the file. The table of the guide is made from it."""
    folder = Path(__file__).parents[2] / "docs" / "guides"
    rows = truth.finished(folder / "recommend_truth.csv")
    assert {row["case"] for row in rows} == {*truth.CASES}
    assert truth.table(rows) in (folder / "recommend.md").read_text(encoding="utf-8")


def test_a_client_without_spread_has_an_interval_of_width_zero() -> None:
    none = np.zeros(1), np.ones(1)
    assert t_test(0.0, *none) == (0.0, 0.0, 0.0, 1.0, 0.0)
    assert t_test(3.0, *none) == (3.0, 3.0, 3.0, 0.0, 0.0)


def test_names_of_clients_are_read_unchanged(tmp_path: Path) -> None:
    """This includes names that look like numbers, or like a missing value. A damaged file is reported."""
    names = ["001", "NA", "None", "1e3"]
    graph = pd.DataFrame(DRAWS.uniform(size=(4, 4)), index=names, columns=names)
    file = tmp_path / "graph.csv"
    file.write_text(graph.to_csv(lineterminator="\n"))
    pd.testing.assert_frame_equal(result._read_graph(file), graph, check_exact=True)
    for text in (file.read_text()[:-9], "", ",a,b\na,1,2\n", ",a,b\na,1,2\nb,1,x\n"):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"graph\.csv: damaged"):
            result._read_graph(file)


def test_an_interrupted_call_leaves_no_answers_of_an_earlier_one(tmp_path: Path) -> None:
    """A call that ends while it writes leaves no answers, and so no recommendation."""
    facts = tmp_path / result.FOLDER / result.FACTS
    facts.parent.mkdir()
    facts.write_text("{}")
    with pytest.raises(AttributeError):  # there are no tables to write
        result.write(tmp_path, None, [], pd.DataFrame(), pd.DataFrame(), {})
    assert not facts.exists()


def test_names_are_not_read_as_markup_in_a_notebook(tmp_path: Path) -> None:
    lines = [["For each client", "<b>Ann</b> & Bob lose"]]
    empty = pd.DataFrame()
    advice = result.Recommendation(tmp_path, {"lines": lines, "notes": []}, empty, empty, empty, empty)
    assert "<td>&lt;b&gt;Ann&lt;/b&gt; &amp; Bob lose</td>" in advice._repr_html_()


def test_a_candidate_that_diverged_is_shown_without_numbers() -> None:
    row = {"settings": "", "validation": math.nan, "seconds": math.nan, "mib": math.nan, "outcome": race.DIVERGED}
    assert "nan" not in " ".join(map(str, page._format_candidate(row, "accuracy").values()))


def test_an_interval_with_zero_leaves_open_whether_more_would_help() -> None:
    """That no help is shown is no sign that there is none."""
    for slope, higher, said in (
        ((-8.0, -18.0, 2.0), False, "It is open whether more rounds would help: in the last third"),
        ((-8.0, -18.0, -1.0), False, "More rounds may help: "),
        ((-8.0, -18.0, -1.0), True, "More rounds would not help: "),
        ((8.0, 1.0, 18.0), False, "More rounds would not help: "),
    ):
        assert sentences.more_rounds(slope, "mse", higher).startswith(said)


def test_one_client_with_one_seed_has_no_interval() -> None:
    """A dash in place of each end would say nothing."""
    gain = {"share": [0.5], "gain": [1.5], "gain_low": [math.nan], "gain_high": [math.nan]}
    text = sentences.more_data(pd.DataFrame(gain), "accuracy", True)
    assert text.endswith("all training rows against half of them: accuracy 1.50 points higher (no interval).")
    table = pd.DataFrame({**gain, "gain_low": [-1.0], "gain_high": [4.0]})
    interval = "(95 % interval 1.00 points lower to 4.00 points higher)."
    assert interval in sentences.more_data(table, "accuracy", True)
