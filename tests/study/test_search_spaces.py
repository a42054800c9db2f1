"""Search spaces have what their declaration and the declared value imply."""

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from fedweave.search import search
from fedweave.study import catalogue, spec, validate
from tests.study.test_spec import ROOT, altered


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
