"""The choice of a finalist for each client: noise alone makes nobody choose another one, and real differences do."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import results
from fedweave.recommendation import answers, choices, per_client
from fedweave.recommendation.candidates import Candidate
from fedweave.recommendation.finals import FinalComparison
from fedweave.recommendation.per_client import t_test
from tests.fake_results import write_study
from tests.recommendation.test_per_client import build_table


def test_exact_differences_are_kept_and_noise_is_not() -> None:
    exact = np.array([-3.0, 2.0, -1.0, -6.0])
    np.testing.assert_allclose(choices.shrink(exact, np.zeros(4)), exact)
    np.testing.assert_allclose(choices.shrink(exact, np.full(4, 100.0)), exact.mean())
    assert (choices.shrink(np.array([1.0, 2.0, 3.0]), np.full(3, 100.0)) == 0).all()
    assert (choices.shrink(np.zeros(3), np.zeros(3)) == 0).all()


def test_one_client_chooses_what_all_deploy() -> None:
    assert choices.shrink(np.array([5.0]), np.array([0.1])) == 0


@pytest.mark.parametrize(("mean", "between", "error"), [(-2.0, 6.0, 4.0), (-1.0, 2.0, 4.0), (-4.0, 0.0, 4.0)])
def test_choices_gain_on_new_rows(mean: float, between: float, error: float) -> None:
    """Over 2,000 federations with known true differences: as much as the raw differences gain where the truth is larger
    than the noise, and more where it is not. Without any truth, they lose next to nothing.
    """
    draws = np.random.default_rng(7)
    truth = draws.normal(mean, between, (2000, 20))
    seen = truth + draws.normal(0, error, truth.shape)
    shrunk = np.stack([choices.shrink(row, np.full(20, error)) for row in seen])
    gain, raw_gain = (float(np.where(chosen > 0, truth, 0).mean()) for chosen in (shrunk, seen))
    assert gain > (0.98 * raw_gain if between > error else raw_gain)
    assert gain > (0 if between else -0.02)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_each_client_gets_the_best_of_three_methods(higher_is_better: bool) -> None:
    """Where the differences are exact, but for clients that are excluded from a method."""
    sign = 1.0 if higher_is_better else -1.0
    scores = sign * np.array([[0.0, 0.0, 0.0, 0.0], [5.0, -5.0, 5.0, 1.0], [9.0, -9.0, -9.0, 2.0]])
    runs = dict(zip(("common", "first", "second"), scores, strict=True))

    def choose(common: str, excluded: dict[str, list[int]]) -> dict[int, str]:
        others = {name: row - runs[common] for name, row in runs.items() if name != common}
        pairs = {
            name: {i: t_test(float(d), np.zeros(1), np.ones(1)) for i, d in enumerate(row)}
            for name, row in others.items()
        }
        return choices.choose(pairs, higher_is_better, excluded)

    assert choose("common", {"second": [3]}) == {0: "second", 2: "first", 3: "first"}
    assert choose("second", {}).keys() == {1, 2}


def test_what_a_seed_does_to_a_client_does_not_choose_and_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four methods that do not differ, neither on any client. A seed gives a client the same score on validation rows
    and on test rows. Once, 9 of 12 such studies said that choices of single clients are better than one method for all.
    """
    names, seeds, clients = ("local", "ditto", "fedper", "fedrep"), (0, 1, 2), 48
    folder = write_study(tmp_path / "study", methods=dict.fromkeys(names, 0.0), clients=clients, extras=False)
    study = results.load_study(folder)
    table, entered = results.clients(study), {name: Candidate(name, name, name) for name in names}
    hits = build_table([np.ones(12, bool)] * clients, test=False)  # rows without noise
    monkeypatch.setattr(per_client, "predictions", lambda run, seed: hits)
    scores: dict[str, pd.DataFrame] = {}
    monkeypatch.setattr(results, "validation_scores", lambda run: scores[run.name])
    draws, wrong, chosen = np.random.default_rng(5), 0, 0
    for _ in range(12):
        for run in study.runs:
            scores[run.name] = pd.DataFrame(70 + draws.normal(size=(len(seeds), clients)), index=seeds)
        places = table[["run", "seed", "client"]].itertuples(index=False)
        values = [scores[run].loc[seed, client] for run, seed, client in places]
        tests = answers.FinalistTests(FinalComparison(None, study), entered, "local", table.assign(value=values), 4)
        choice, test = tests.choose_for_each(tests.leader)
        chosen += len(choice)
        wrong += test is not None and test.verdict == "better"
    assert chosen > 12
    assert wrong < 3  # a chance of 1 in 500 at a level of 5 %


@pytest.mark.acceptance
def test_a_recommendation_says_who_would_choose_what(tmp_path) -> None:
    """Twelve clients, of which two have labels of their own: by its rows each of these chooses local training."""
    draws = np.random.default_rng(3)
    owner = np.repeat(np.arange(12), 200)
    x = draws.normal(size=(2400, 4)).astype(np.float32)
    y = (x.sum(1) + draws.normal(0, 2, 2400) > 0).astype(int) ^ (owner >= 10)
    federation = fw.Federation.from_arrays(x, y, client=owner)
    options = {"rounds": 40, "settings": 3, "budget": None, "model": "linear"}
    advice = fw.recommend(federation, methods=["fedavg"], out=tmp_path / "out", **options)
    own = {*advice.choices, *advice.local_clients}
    assert advice.method == "local" or {str(name) for name in own} >= {"10", "11"}, str(advice)
    assert "A choice for each client" in str(advice)
    assert fw.Recommendation.load(tmp_path / "out").choices == advice.choices
    scores = advice.comparison.scores()
    gains = [scores.loc[client, name] - scores.loc[client, advice.method] for client, name in advice.choices.items()]
    assert gains
    test = advice.facts["choice_test"]
    assert test["low"] < test["difference"] < test["high"]
    assert test["low"] < sum(gains) / 12 < test["high"]  # the choices of all seeds
