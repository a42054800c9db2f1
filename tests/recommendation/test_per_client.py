"""Verdicts on single clients: differences between two methods on each client's own rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from fedweave.recommendation import choices, per_client
from fedweave.results import holm
from fedweave.runs.predictions import PredictionTable

DRAWS = np.random.default_rng(0)


def build_table(hits: list[np.ndarray], test: bool = True) -> PredictionTable:
    """Predictions of two classes for the rows of every client. `hits` marks rows that a method predicts correctly."""
    right = np.concatenate(hits).astype(int)
    client = np.repeat(np.arange(len(hits)), [len(rows) for rows in hits])
    outputs = np.stack([1.0 - right, right], axis=1)
    return PredictionTable(client, np.arange(len(right)), np.full(len(right), test), np.ones(len(right), int), outputs)


def find_differences(
    monkeypatch: pytest.MonkeyPatch, first: list[list[np.ndarray]], second: list[list[np.ndarray]]
) -> dict[int, per_client.PairedDifference]:
    """Client -> its difference, of methods whose correct rows are given by seed and client."""
    runs: list[Any] = [SimpleNamespace(info={"metric": "accuracy"}, hits=hits) for hits in (first, second)]
    monkeypatch.setattr(per_client, "predictions", lambda run, seed: build_table(run.hits[seed]))
    scores = [pd.DataFrame([[100 * rows.mean() for rows in hits] for hits in run.hits]) for run in runs]
    return dict(per_client._paired_differences(*runs, *scores))


def test_the_interval_of_one_seed_is_that_of_the_mean_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstrap has the standard error of a mean of paired differences. 300 samples give it to some percent."""
    first, second = ([DRAWS.random(80) < share] for share in (0.8, 0.6))
    pair = find_differences(monkeypatch, [first], [second])[0]
    paired = 100.0 * (first[0].astype(float) - second[0])
    assert pair.difference == pytest.approx(paired.mean())
    half_width = 1.96 * paired.std(ddof=1) / np.sqrt(80)
    assert pair.high - pair.difference == pytest.approx(half_width, rel=0.15)


def test_the_spread_over_seeds_widens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a seed, every row of a client has the same difference, so that only the spread of seeds determines the
    interval. Three clients have equal variances, and together add one degree of freedom to the one of each.
    """
    ones, zeros = np.ones(40, bool), np.zeros(40, bool)
    pair = find_differences(monkeypatch, [[ones] * 3, [zeros] * 3], [[zeros] * 3, [zeros] * 3])[0]
    assert pair.difference == 50.0
    assert pair.error == pytest.approx(np.sqrt(np.var([100, 0], ddof=1) / 2))
    assert pair.high - pair.difference == pytest.approx(student.ppf(0.975, 2) * pair.error)


def test_a_few_clients_that_vary_more_between_seeds_gain_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal methods, 20 clients, three seeds. Once, 38 % of such studies called the difference of a client one, as
    all clients were given the same variance.
    """
    draws, false = np.random.default_rng(1), 0
    deviations = np.where(np.arange(20) % 4, 0.05, 0.45)[:, None]
    for _ in range(40):
        runs = [
            [[*(draws.random((20, 40)) < 0.6 + deviations * draws.normal(size=(20, 1)))] for _ in range(3)]
            for _ in range(2)
        ]
        pairs = find_differences(monkeypatch, *runs)
        corrected = holm.adjust([pair.p for pair in pairs.values()])
        found = zip(pairs.values(), corrected, strict=True)
        false += any(per_client._verdict(pair, p, True) != per_client.OPEN for pair, p in found)
    assert false <= 7  # 2 are expected at 5 %; one in a thousand samples has more


@pytest.mark.parametrize(("seeds", "verdict"), [(1, per_client.OPEN), (2, per_client.OPEN), (3, per_client.GAINS)])
def test_one_or_two_seeds_say_nothing_of_a_client(seeds: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its rows are better with one method. Nothing tells whether those of another seed are."""
    parts = {"a": np.ones(80, bool), "local": np.zeros(80, bool)}
    about: dict[str, Any] = {"info": {"metric": "accuracy"}, "client_names": ["x"], "higher_is_better": True}
    runs: Any = {name: SimpleNamespace(name=name, rows=rows, **about) for name, rows in parts.items()}
    monkeypatch.setattr(per_client, "predictions", lambda run, seed: build_table([run.rows]))
    rows = [(name, seed, 0, 100.0 * run.rows.mean()) for name, run in runs.items() for seed in range(seeds)]
    scores = pd.DataFrame(rows, columns=["run", "seed", "client", "value"])
    assert per_client.table(runs, runs["local"], scores)["verdict"].tolist() == [verdict]


@pytest.mark.parametrize(("rows", "decided"), [(1, False), (2, False), (5, False), (6, True), (30, True)])
def test_a_few_rows_that_agree_decide_nothing(rows: int, decided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method is correct on all of them, and the other on none. A sign test decides from six rows on."""
    right, wrong = [[np.ones(rows, bool)]], [[np.zeros(rows, bool)]]
    pair = find_differences(monkeypatch, right, wrong)[0]
    assert pair.p == 2.0 ** (1 - rows)
    assert per_client._verdict(pair, pair.p, True) == (per_client.GAINS if decided else per_client.OPEN)


@pytest.mark.parametrize("rows", [3, 12])
def test_a_client_with_few_validation_rows_uses_the_common_method(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three wrong rows do not exclude a client from the collaboration. Twelve do."""
    right, wrong = np.ones(rows, bool), np.zeros(rows, bool)
    runs: list[Any] = [SimpleNamespace(info={"metric": "accuracy"}, hits=[hits]) for hits in (wrong, right)]
    monkeypatch.setattr(per_client, "predictions", lambda run, seed: build_table(run.hits, test=False))
    monkeypatch.setattr(
        per_client.results, "validation_scores", lambda run: pd.DataFrame([[100 * rows.mean() for rows in run.hits]])
    )
    pairs = per_client.validation_differences(*runs)[None]
    assert per_client.losing_clients(pairs, True) == ([0] if rows == 12 else [])


@pytest.mark.parametrize("seeds", [1, 2])
def test_without_predictions_nothing_is_shown_of_a_client(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much the rows of a client vary is not known then, such as where outputs are too many to be stored."""
    runs: list[Any] = [SimpleNamespace(info={"metric": "accuracy"}) for _ in range(2)]
    monkeypatch.setattr(per_client, "predictions", lambda run, seed: None)
    scores = [pd.DataFrame([[better, 50.0]] * seeds) for better in (51.0, 50.0)]
    pairs = dict(per_client._paired_differences(*runs, *scores))
    assert [per_client._verdict(pair, pair.p, True) for pair in pairs.values()] == [per_client.OPEN] * 2
    assert np.isnan(pairs[0].low)
    assert pairs[0].p == 1.0
    assert not per_client.losing_clients({0: pairs[0]._replace(difference=-1.0)}, True)


def test_one_row_is_no_exact_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the client does not choose another finalist by it."""
    right, wrong = [[np.ones(1, bool), DRAWS.random(80) < 0.6]], [[np.zeros(1, bool), DRAWS.random(80) < 0.6]]
    pairs = find_differences(monkeypatch, right, wrong)
    assert np.isnan(pairs[0].error)
    assert 0 not in choices.choose({"other": pairs}, True, {})


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["higher", "lower"])
def test_clients_that_do_worse_are_those_whose_interval_is_on_the_worse_side(sign: float) -> None:
    """Whose p is small, too: a client with a few rows has an interval without zero by chance."""
    pairs = {client: per_client.t_test(mean, np.array([1.0]), np.array([30])) for client, mean in enumerate((-3, 0, 3))}
    pairs[3] = pairs[0]._replace(p=0.25)
    pairs[4] = pairs[2]._replace(p=0.25)
    assert per_client.losing_clients(pairs, sign > 0) == [0 if sign > 0 else 2]
