"""Search spaces are refused when params.yaml is read, and not when the first trial starts."""

from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from fedweave.errors import BadInput
from fedweave.search import search
from fedweave.study import catalogue, spec, validate
from tests.study.test_bad_input import ROOT, line
from tests.study.test_spec import altered

# path in the file, bad value -> words that the message must contain.
BAD: list[tuple[str, Any, list[str]]] = [
    ("tune/spaces", {"ditto": {"lamm": {"low": 1, "high": 2}}}, ["spaces.ditto", "'lamm'", "did you mean 'lam'"]),
    ("tune/spaces", {"ditto": {"lr": {"low": 1, "high": 2}}}, ["spaces.ditto", "'lr'", "did you mean 'train.lr'"]),
    ("tune/spaces", {"ditto": {"train.rounds": {"low": 1, "high": 2}}}, ["spaces.ditto", "'train.rounds'", "unknown"]),
    ("tune/spaces", {"ditto": {"lam": 3}}, ["spaces.ditto.lam", "3", "low and high", "choices"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1}}}, ["spaces.ditto.lam.high", "missing"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "hihg": 2}}}, ["spaces.ditto.lam.hihg", "did you mean 'high'"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "high": "x"}}}, ["spaces.ditto.lam.high", "'x'", "number"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 3, "high": 2}}}, ["spaces.ditto.lam", "low 3", "high 2", "swap"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 0, "high": 2, "log": True}}}, ["spaces.ditto.lam", "log", "low is 0"]),
    (
        "tune/spaces",
        {"ditto": {"lam": {"low": 1, "high": 2, "log": True, "step": 1}}},
        ["spaces.ditto.lam", "step 1", "log"],
    ),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "high": 2, "step": -1}}}, ["spaces.ditto.lam", "step -1", "above 0"]),
    ("tune/spaces", {"ditto": {"lam": {"low": -1, "high": 2}}}, ["spaces.ditto.lam", "-1", "at least 0"]),
    (
        "tune/spaces",
        {"ditto": {"personal_epochs": {"low": 0.5, "high": 2}}},
        ["spaces.ditto.personal_epochs", "0.5", "whole"],
    ),
    (
        "tune/spaces",
        {"ditto": {"personal_epochs": {"low": 1, "high": 5, "step": 0.5}}},
        ["spaces.ditto.personal_epochs.step", "0.5", "whole"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"lam": {"low": 2, "high": 8, "step": 2}}}},
        ["spaces.ditto.lam", "steps of 2 from 2", "1.0", "runs.digits-ditto", "choices"],
    ),
    ("tune/spaces", {"ditto": {"lam": {"choices": []}}}, ["spaces.ditto.lam.choices", "[]", "at least one"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": [[1]]}}}, ["spaces.ditto.lam.choices", "[[1]]"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": 1}}}, ["spaces.ditto.lam.choices", "1", "list"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": [1, "x"]}}}, ["spaces.ditto.lam", "'x'", "number"]),
    (
        "tune/spaces",
        {"ditto": {"lam": {"low": 1, "high": 2, "choices": [1]}}},
        ["spaces.ditto.lam", "either", "choices"],
    ),
    (
        "tune",
        {"trials": 2, "sampler": "grid", "spaces": {"ditto": {"lam": {"low": 1, "high": 2}}}},
        ["spaces.ditto.lam", "grid", "tpe"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"train.clip": {"low": 1, "high": 2}}}},
        ["train.clip", "None", "runs.digits-ditto"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"train.momentum": {"low": 0.1, "high": 0.9, "log": True}}}},
        ["spaces.ditto.train.momentum", "0.0", "runs.digits-ditto", "without tuning"],
    ),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[str(v)[:70] for _, v, _ in BAD])
def test_bad_spaces_are_refused(path: str, value: Any, words: list[str]) -> None:
    """The line names the entry."""
    with pytest.raises(BadInput) as caught:
        validate.check(spec.parse(altered(path, value)))
    line(caught, words)


def test_a_range_without_trials_need_not_contain_the_declared_value() -> None:
    validate.check(
        spec.parse(altered("tune", {"trials": 0, "spaces": {"ditto": {"train.clip": {"low": 1, "high": 2}}}}))
    )


@pytest.mark.parametrize("name", ["quick", "zoo", "fedaghn/sweep", "shn/search"])
def test_accepted_spaces_can_be_searched(name: str) -> None:
    """This holds for every run of a study with searches."""
    study = validate.check(spec.parse(catalogue.expand(name, ROOT / "studies")))
    assert [key for key in study.runs if not search.distributions(study, key)] == []


def test_a_range_with_a_fractional_step_has_fractions() -> None:
    """Its ends may be integers."""
    content = altered("tune", {"trials": 1, "spaces": {"ditto": {"lam": {"low": 1, "high": 2, "step": 0.5}}}})
    study = spec.parse({**content, "methods": {"ditto": {"lam": 1}}})
    space = search.distributions(study, "digits-ditto")["lam"]
    assert (space.low, space.high, space.step) == (1.0, 2.0, 0.5)


@pytest.mark.parametrize(
    ("name", "ends"), [("train.weight_decay", (0, 1)), ("train.momentum", (0, 0.9)), ("lam", (1, 10))]
)
def test_a_range_of_a_number_has_fractions(name: str, ends: tuple[float, float]) -> None:
    """Where the ends and the declared value are written without a point, too."""
    low, high = ends
    content = altered("tune", {"trials": 1, "spaces": {"ditto": {name: {"low": low, "high": high}}}})
    study = validate.check(spec.parse({**content, "methods": {"ditto": {"lam": 5}}}))
    space = search.distributions(study, "digits-ditto")[name]
    assert isinstance(space, FloatDistribution)
    assert (space.low, space.high, space.step) == (low, high, None)


def test_a_range_of_a_whole_number_has_no_fractions() -> None:
    """It is widened by whole steps, to the declared value."""
    entry = {"low": 4, "high": 8, "step": 2}
    content = altered("tune", {"trials": 1, "spaces": {"ditto": {"personal_epochs": entry}}})
    study = validate.check(spec.parse({**content, "methods": {"ditto": {"personal_epochs": 2}}}))
    space = search.distributions(study, "digits-ditto")["personal_epochs"]
    assert space == IntDistribution(2, 8, step=2)
