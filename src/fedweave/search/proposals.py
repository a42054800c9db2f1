"""Settings for `fedweave recommend`: points of a method's search space that Optuna draws."""

from typing import Any

import optuna
from optuna.distributions import FloatDistribution

from fedweave.search.search import distributions, sampler_seed
from fedweave.study.search_spaces import RATE
from fedweave.study.spec import StudySpec


def points(study: StudySpec, key: str, count: int) -> list[dict[str, Any]]:
    """`count` points of the search space of the run `key`, the same at every call; none for a run without a space.

    The learning rates are at the middles of `count` equal parts of their range, on its own scale. The other settings
    are drawn at random.
    """
    space = distributions(study, key)
    if not space:
        return []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=sampler_seed(key, 0)))
    for rate in _spread(space[RATE], count) if isinstance(space.get(RATE), FloatDistribution) else ():
        search.enqueue_trial({RATE: rate})
    return [search.ask(space).params for _ in range(count)]


def _spread(rates: Any, count: int) -> list[float]:
    """The middles of `count` equal parts of a range."""
    shares = [(2 * i + 1) / (2 * count) for i in range(count)]
    if rates.log:
        return [float(rates.low * (rates.high / rates.low) ** share) for share in shares]
    return [float(rates.low + (rates.high - rates.low) * share) for share in shares]
