"""Partial pooling: equal to statsmodels, to closed forms and to numerical integration."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor

import fedweave as fw
from fedweave.client.regression import RowRegression
from fedweave.engine.clients import Clients, pad_rows
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.errors import BadInput
from fedweave.families.mixed_classes import client_terms, find_mode
from fedweave.families.mixed_effects import Rows, count_columns, split_point, unpack
from fedweave.families.mixed_numbers import find_mode as predict_numbers
from fedweave.families.mixed_numbers import fit, gram, repair
from fedweave.methods import METHODS
from fedweave.models import build

NAME = "partial_pooling"
Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def iris() -> Data:
    """Width of petals by their length; a client is a species."""
    table = load_iris()
    return table.data[:, 2:3], table.data[:, 3], table.target


def wine() -> Data:
    """Alcohol by four other substances; a client is a cultivar."""
    table = load_wine()
    return table.data[:, 1:5], table.data[:, 0], table.target


def diabetes() -> Data:
    """Progression by three measurements; a client is an age. Ages are alike."""
    table = load_diabetes()
    return 10 * table.data[:, 2:5], table.target, np.unique(table.data[:, 0].round(2), return_inverse=True)[1]


def sloped() -> Data:
    """Twelve clients with lines of their own."""
    rng = np.random.default_rng(7)
    group, x = np.repeat(np.arange(12), 8), rng.normal(size=96)
    own = rng.normal(size=(12, 2)) @ np.array([[0.8, 0.3], [0.0, 0.5]])
    return x[:, None], 1 + 2 * x + own[group, 0] + own[group, 1] * x + 0.6 * rng.normal(size=96), group


# What statsmodels 0.15.0 gives: MixedLM(y, X, groups, exog_re).fit(method="powell", reml=..., xtol=1e-10, ftol=1e-14).
# (data, slopes, restricted, β, covariance of the random effects, variance of the rows, effects of the first client)
STATSMODELS: list[tuple[Callable[[], Data], str, bool, list[float], list[list[float]], float, list[float]]] = [
    (
        iris,
        "none",
        True,
        [0.2886164698863797, 0.2423408364680669],
        [[0.15980401111812612]],
        0.03228474134298062,
        [-0.3953214598205912],
    ),
    (
        iris,
        "none",
        False,
        [0.2618682988038129, 0.24945849774599776],
        [[0.09555308514456498]],
        0.032119335364395145,
        [-0.37803515814741867],
    ),
    (
        wine,
        "none",
        True,
        [13.417283458788765, 0.01668904722560024, -0.1935312329101523, -0.002455146299026572, 0.001092954860600398],
        [[0.5582267276607792]],
        0.2650800917977276,
        [0.6891983078402977],
    ),
    (
        diabetes,
        "none",
        True,
        [152.13348416387055, 78.07471490327528, 39.319454776581246, 5.290591020052133],
        [[3.609181361048774e-07]],
        3608.559076856294,
        [1.7499615883370092e-08],
    ),
    (
        sloped,
        "correlated",
        True,
        [0.7010117748476924, 1.8887622216003386],
        [[0.42909544697278656, 0.20080713424386293], [0.20080713424386293, 0.2995862472051568]],
        0.33152277173649375,
        [-0.9268830625895237, 0.07144572198710698],
    ),
]


def clients_of(data: Data) -> list[Rows]:
    x, y, group = data
    x = np.column_stack([np.ones(len(y)), x])
    return [
        Rows(
            torch.tensor(x[group == k]), torch.tensor(y[group == k])[None], torch.ones(int((group == k).sum())).double()
        )
        for k in range(group.max() + 1)
    ]


@pytest.mark.parametrize(("make", "slopes", "restricted", "coef", "covariance", "noise", "effects"), STATSMODELS)
def test_numbers_are_those_of_statsmodels(
    make: Callable[[], Data],
    slopes: str,
    restricted: bool,
    coef: list[float],
    covariance: list[list[float]],
    noise: float,
    effects: list[float],
) -> None:
    clients = clients_of(make())
    point, variance = fit(torch.stack([gram(rows) for rows in clients]), slopes, restricted)
    beta, factor = split_point(point[None], slopes)
    np.testing.assert_allclose(beta[0], coef, rtol=1e-4)
    assert float(variance) == pytest.approx(noise, rel=1e-4)
    np.testing.assert_allclose(variance * factor[0] @ factor[0].T, covariance, rtol=1e-4, atol=1e-6 * noise)
    deviations = (factor @ predict_numbers(clients[0], beta, factor)[..., None])[0, :, 0]
    np.testing.assert_allclose(deviations, effects, rtol=1e-4, atol=1e-6 * noise**0.5)


def test_numbers_of_balanced_clients_have_the_closed_form() -> None:
    """σ² is the mean square within clients, and n τ² + σ² the one between them (REML, only an intercept)."""
    y = np.random.default_rng(3).normal(size=(6, 5)) + np.arange(6)[:, None]
    rows = [Rows(torch.ones(5, 1).double(), torch.tensor(part)[None], torch.ones(5).double()) for part in y]
    point, noise = fit(torch.stack([gram(part) for part in rows]))
    within, between = y.var(1, ddof=1).mean(), 5 * y.mean(1).var(ddof=1)
    assert float(noise) == pytest.approx(within, rel=1e-9)
    assert float(noise * point[1] ** 2) == pytest.approx((between - within) / 5, rel=1e-9)
    assert float(point[0]) == pytest.approx(y.mean(), rel=1e-9)
    mode = predict_numbers(rows[0], point[None, :1], point[1].reshape(1, 1, 1))
    shrunk = (1 - within / between) * (y[0].mean() - y.mean())
    assert float(point[1] * mode) == pytest.approx(shrunk, rel=1e-9)


def test_a_column_twice_changes_no_prediction() -> None:
    x, y, group = wine()
    grams = [
        torch.stack([gram(r) for r in clients_of((part, y, group))]) for part in (x, np.column_stack([x, x[:, :1]]))
    ]
    (once, noise), (twice, other) = (fit(part) for part in grams)
    assert float(other) == pytest.approx(float(noise), rel=1e-6)
    np.testing.assert_allclose(twice[1] + twice[5], once[1], rtol=1e-6)


def test_sums_that_noise_made_impossible_become_the_nearest_possible_ones() -> None:
    """Of the eigenvalues 3 and -1 the first remains, in the direction (1, 1). Possible sums keep their bits."""
    noisy = torch.tensor([[[1.0, 2.0], [2.0, 1.0]], [[3.0, 1.0], [1.0, 2.0]]]).double()
    torch.testing.assert_close(repair(noisy), torch.stack([torch.full((2, 2), 1.5).double(), noisy[1]]))
    assert torch.equal(repair(noisy[1:]), noisy[1:])


def test_fewer_rows_than_columns_have_a_ridge_of_one_unless_another_is_given() -> None:
    rng = np.random.default_rng(2)
    rows = clients_of((rng.normal(size=(6, 8)), rng.normal(size=6), np.arange(6) % 2))
    grams = torch.stack([gram(part) for part in rows])
    none, one, ten = (fit(grams, ridge=ridge)[0] for ridge in (0.0, 1.0, 10.0))
    assert torch.equal(none, one)
    assert ten[1:9].norm() < 0.5 * one[1:9].norm()


@pytest.mark.parametrize("slopes", ["none", "independent", "correlated"])
def test_a_point_says_how_many_columns_it_has(slopes: str) -> None:
    for columns in (1, 2, 7, 12):
        effects = 1 if slopes == "none" else columns
        entries = effects * (effects + 1) // 2 if slopes == "correlated" else effects
        assert count_columns(columns + entries, slopes) == columns


def some_classes(rows: int, seed: int = 0) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Rows of two classes, X and y."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, 2))])
    y = (rng.random(rows) < expit(x @ [-0.4, 1.0, -0.7] + 0.8 * rng.normal())).astype(float)
    return Rows(torch.tensor(x), torch.tensor(y)[None], torch.ones(rows).double()), x, y


def integrate(x: np.ndarray, y: np.ndarray, coef: np.ndarray, scale: float) -> float:
    """The log-likelihood of a client by numerical integration over its random intercept."""

    def exponent(u: float) -> float:
        logits = x @ coef + scale * u
        return float(np.sum(y * logits - np.logaddexp(0, logits)) - u * u / 2)

    top = max(exponent(u) for u in np.linspace(-6, 6, 241))
    return float(np.log(quad(lambda u: np.exp(exponent(u) - top), -10, 10, limit=200)[0]) + top - np.log(2 * np.pi) / 2)


@pytest.mark.parametrize("rows", [8, 30, 100])
def test_classes_are_close_to_numerical_integration(rows: int) -> None:
    """The error of Laplace's approximation falls as 1 / rows; without random effects there is none."""
    client, x, y = some_classes(rows)
    coef = np.array([-0.4, 1.0, -0.7])
    for scale in (0.0, 0.3, 1.0):
        parts = torch.tensor(coef)[None], torch.full((1, 1, 1), scale).double()
        value = -float(client_terms(client, *parts, find_mode(client, *parts), "none")["value"])
        exact = integrate(x, y, coef, scale)
        assert value == pytest.approx(exact, abs=0.4 / rows if scale else 1e-9)


@pytest.mark.parametrize("slopes", ["none", "independent", "correlated"])
def test_terms_of_classes_are_derivatives(slopes: str) -> None:
    """The gradient, and in the Hessian the rows of Λ; the rest of the Hessian is an approximation."""
    client, _, _ = some_classes(25)
    effects = 1 if slopes == "none" else 3
    entries = effects * (effects + 1) // 2 if slopes == "correlated" else effects
    point = torch.cat([torch.tensor([-0.4, 1.0, -0.7]), 0.2 + 0.1 * torch.arange(entries)]).double()[None]

    def terms(point: Tensor) -> Any:
        parts = split_point(point, slopes)
        return client_terms(client, *parts, find_mode(client, *parts), slopes)

    here, step = terms(point), 1e-5
    for k, direction in enumerate(step * torch.eye(3 + entries).double()):
        above, below = terms(point + direction), terms(point - direction)
        slope = (above["value"] - below["value"]) / (2 * step)
        assert float(here["gradient"][0, k]) == pytest.approx(float(slope), abs=1e-6)
        row = (above["gradient"] - below["gradient"])[0] / (2 * step)
        exact = slice(None) if k >= 3 else slice(3, None)
        torch.testing.assert_close(unpack(here["hessian"])[0, k, exact], row[exact], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(unpack(here["hessian"])[0, k], row, atol=0.5, rtol=0.2)


def federation(x: np.ndarray, group: np.ndarray, shared: dict[str, Tensor], own: dict[str, Tensor]) -> Clients:
    """All rows are for training and for the test."""
    rows = pad_rows([np.flatnonzero(group == k) for k in range(group.max() + 1)])
    tensors = {"x": torch.tensor(x).double(), **shared}
    return Clients(tensors, own, rows, rows, rows, torch.arange(len(rows)))


def fit_rounds(federation: Clients, task: Any, rounds: int, participation: float = 1.0, **settings: Any) -> Any:
    method = METHODS[NAME](task=task, solver=tiny.SOLVERS["nodes"], training=tiny.TRAINING["nodes"], **settings)
    return list(run(method, federation, Settings(rounds, 1, participation, rounds), Batched()))


def test_rounds_of_numbers_give_the_same_model_in_one() -> None:
    """The first round has it all, and later ones send nothing."""
    x, y, group = wine()
    clients = int(group.max()) + 1
    own = {"offset": torch.zeros(clients, 1).double(), "unit": torch.ones(clients, 1).double()}
    task = RowRegression(lambda: build("linear", (4,), 1), torch.float64)
    reports = fit_rounds(federation(x, group, {"targets": torch.tensor(y)[:, None]}, own), task, 2)
    direct, _ = fit(torch.stack([gram(rows) for rows in clients_of((x, y, group))]))
    for report in reports:
        torch.testing.assert_close(report.state.server["point"][0], direct, rtol=1e-7, atol=1e-9)
    assert [(r.bytes_down, r.bytes_up) for r in reports] == [(8 * clients * 6, 8 * clients * 21), (0, 0)]


def test_a_class_of_weight_two_counts_as_its_rows_twice() -> None:
    parts = [some_classes(20, seed)[1:] for seed in range(3)]
    x, y = np.concatenate([x[:, 1:] for x, _ in parts]), np.concatenate([y for _, y in parts])
    group = np.repeat(np.arange(3), 20)
    task = type(tiny.rows_task())(lambda: build("linear", (2,), 2), torch.float64)
    clients = federation(x, group, {"y": torch.tensor(y).long()}, {})
    weighted = replace(clients, own={"class_weight": torch.tensor([[1.0, 2.0]]).double().expand(3, 2)})
    rows = [np.concatenate([own, own[y[own] == 1]]) for own in (np.flatnonzero(group == k) for k in range(3))]
    plain, once, twice = (
        fit_rounds(rows_of, task, 2)[-1].state.server["point"]
        for rows_of in (clients, weighted, replace(clients, train=pad_rows(rows)))
    )
    torch.testing.assert_close(once, twice, rtol=1e-9, atol=1e-12)
    assert (once - plain).abs().max() > 0.1


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_rounds_of_classes_reach_the_optimum(participation: float) -> None:
    """The gradient is 0 after some rounds, also where half of the clients take part, and integrals agree."""
    parts = [some_classes(20, seed)[1:] for seed in range(8)]
    x, y = np.concatenate([x[:, 1:] for x, _ in parts]), np.concatenate([y for _, y in parts])
    group = np.repeat(np.arange(8), 20)
    task = tiny.rows_task()
    task = type(task)(lambda: build("linear", (2,), 2), torch.float64)
    clients = federation(x, group, {"y": torch.tensor(y).long()}, {})
    report = fit_rounds(clients, task, 15 if participation == 1 else 60, participation)[-1]
    point = report.state.server["point"]
    parts_of = split_point(point, "none")
    gradients = [
        client_terms(rows, *parts_of, find_mode(rows, *parts_of), "none")["gradient"][0]
        for rows in (some_classes(20, seed)[0] for seed in range(8))
    ]
    assert float(sum(gradients).abs().max()) < 1e-5

    def negative(values: np.ndarray) -> float:
        return -sum(integrate(x, y, values[:3], values[3]) for x, y in parts)

    if participation == 1:
        best = minimize(negative, point[0].numpy(), method="Nelder-Mead", options={"xatol": 0.01, "fatol": 1e-3})
        np.testing.assert_allclose(point[0].abs(), np.abs(best.x), atol=0.05)


@pytest.mark.parametrize("classes", [2, 3])
def test_predictions_are_the_probabilities_of_the_classes(classes: int) -> None:
    """As of one logistic regression for each class against the others, where clients do not differ."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 2)).astype(np.float32)
    slopes = np.array([[0.0, 1.5, -1.5], [0.0, -1.0, 1.0]])[:, :classes]
    y = (rng.random((4000, 1)) > softmax(x @ slopes, axis=1).cumsum(1)).sum(1)
    rows = fw.Federation.from_arrays(x, y, client=np.arange(4000) % 4, normalize="none")
    done = fw.fit("partial_pooling", rows, model="linear", metric="log_loss", rounds=8, seed=0, progress=False)
    expected = OneVsRestClassifier(LogisticRegression()).fit(x, y).predict_proba(x[:200])
    np.testing.assert_allclose(done.predict_proba(x[:200], client=1), expected, atol=0.08)


def test_separated_classes_need_a_ridge_to_have_an_optimum() -> None:
    task, clients = (make() for make in tiny.TASKS["rows"])
    sizes = [
        float(fit_rounds(clients, task, rounds, ridge=ridge)[-1].state.server["point"][:, 1:7].norm())
        for ridge in (0.0, 1.0)
        for rounds in (10, 20)
    ]
    assert sizes[1] > 1.3 * sizes[0]
    assert sizes[3] == pytest.approx(sizes[2], rel=1e-4)


def test_too_many_columns_are_refused_before_the_first_round() -> None:
    task, clients = tiny.rows_task(), tiny.rows_federation((20,))
    method = tiny.method(NAME, task, "rows", slopes="correlated")
    with pytest.raises(BadInput, match=r"slopes: correlated, with 21 columns .* more than 12; set slopes to none"):
        next(run(method, clients, Settings(1), Loop()))


def test_a_search_goes_on_where_it_draws_slopes_that_the_columns_do_not_allow() -> None:
    """Slopes of 70 columns have too many effects. Declared values are still refused."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(240, 70)).astype("float32")
    rows = fw.Federation.from_arrays(
        x, x[:, 0] + draws.normal(size=240), client=np.arange(240) % 4, target="numbers", normalize="none"
    )
    settings = {"rounds": 1, "seeds": 1, "progress": False, "central": False}
    compared = fw.compare(rows, ["partial_pooling"], tune=6, **settings)
    assert np.isfinite(compared.leaderboard()["mean"]).all()
    with pytest.raises(BadInput, match="slopes: independent, with 71 columns"):
        fw.compare(rows, [fw.methods.PartialPooling(slopes="independent")], tune=0, **settings)
