"""Search spaces have what their declaration and the declared value imply."""

import pytest
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

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


@pytest.mark.parametrize(
    ("name", "entry", "declared", "expected"),
    [
        ("lam", {"low": 1, "high": 2, "step": 0.5}, {"lam": 1}, FloatDistribution(1.0, 2.0, step=0.5)),
        ("lam", {"low": 1, "high": 10}, {"lam": 5}, FloatDistribution(1.0, 10.0)),
        ("train.weight_decay", {"low": 0, "high": 1}, {}, FloatDistribution(0.0, 1.0)),
        ("train.momentum", {"low": 0, "high": 0.9}, {}, FloatDistribution(0.0, 0.9)),
        ("personal_epochs", {"low": 4, "high": 8, "step": 2}, {"personal_epochs": 2}, IntDistribution(2, 8, step=2)),
    ],
)
def test_a_range_has_fractions_where_the_setting_has(
    name: str, entry: dict[str, float], declared: dict[str, int], expected: BaseDistribution
) -> None:
    """Where the ends and the declared value are written without a point, too. A range is widened by whole steps, to the
    declared value.
    """
    content = altered("tune", {"trials": 1, "spaces": {"ditto": {name: entry}}})
    study = validate.check(spec.parse({**content, "methods": {"ditto": declared}}))
    assert search.distributions(study, "digits-ditto")[name] == expected
