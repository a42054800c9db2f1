"""Optuna's samplers, with a random start that fits the budget of a search."""

from optuna.samplers import BaseSampler, RandomSampler, TPESampler

from fedweave.study.schema import TuneSpec

LEAST_START, MOST_START = 2, 10  # random trials of TPE; ten are Optuna's own


def make_sampler(tune: TuneSpec, seed: int) -> BaseSampler:
    """The sampler of one trial. A grid goes on at random after every point once (see `search.initial_points`)."""
    if tune.sampler != "tpe":
        return RandomSampler(seed)
    return TPESampler(multivariate=True, n_startup_trials=random_trials(tune.trials), seed=seed)


def random_trials(budget: int) -> int:
    """How many of the first trials of TPE are random, the declared values among them: a third, from 2 to 10.

    Two trials are the fewest that tell a better half from a worse one. With Optuna's own ten, Bergstra et al. (NeurIPS
    2011) would begin after the end of a small search.
    """
    return min(max(budget // 3, LEAST_START), MOST_START)
