"""A finished search as data, which the table of trials and the page show."""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from fedweave.errors import format_count
from fedweave.search import trials
from fedweave.search.search import DONE, Search
from fedweave.study import search_spaces


def search_record(search: Search) -> dict[str, Any]:
    """A finished search as data.

    "best" has the parameters of the trial that `choose_trial` takes, "importance" the share of the variance of scores
    that each parameter explains (fANOVA; empty for few trials), and "trials" all trials in the order of their ends. A
    pruned trial has no "value", but its last score as "reached". With two objectives each trial also has "bytes".
    """
    tune, optuna_study = search.study.tune, search.optuna_study
    ended = sorted(optuna_study.get_trials(states=DONE), key=lambda trial: str(trial.datetime_complete))[: tune.trials]
    finished = [trial for trial in ended if trial.state == TrialState.COMPLETE]
    best = trials.choose_trial(optuna_study, finished) if finished else None
    print(f"{search.key}: {format_count(len(ended), 'trial')}, {_describe_best(best)}", flush=True)
    return {
        "run": search.key,
        "best": best.params if best else {},
        "budget": tune.budget,
        "spaces": search_spaces.describe_search(search.study, search.key),
        "maximize": optuna_study.directions[0] == optuna.study.StudyDirection.MAXIMIZE,
        "importance": _importance(optuna_study) if trials.are_enough(finished) else {},
        "trials": [_trial_record(trial, tune.objectives) for trial in ended],
    }


def _describe_best(best: FrozenTrial | None) -> str:
    """The score and the settings of the trial that was chosen, rounded for people."""
    if best is None:
        return "none of them finished"
    words = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in best.params.items())
    return f"best {best.values[0]:.4g} with {', '.join(words)}"


def _trial_record(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, Any]:
    assert trial.datetime_start is not None
    assert trial.duration is not None
    steps = trial.intermediate_values or {
        int(step): value for step, value in trial.user_attrs.get(trials.CURVE, {}).items()
    }
    values = trial.values if trial.state == TrialState.COMPLETE else [None] * len(objectives)
    last = max(steps, default=None)
    return {
        "params": trial.params,
        "value": values[0],
        **dict(zip(objectives[1:], values[1:], strict=True)),
        "reached": None if last is None else steps[last],
        "rounds": last,
        "curve": {str(step): value for step, value in sorted(steps.items())},
        "started": trial.datetime_start.timestamp(),
        "seconds": trial.duration.total_seconds(),
    }


def _importance(optuna_study: optuna.Study) -> dict[str, float]:
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    score = (lambda trial: trial.values[0]) if len(optuna_study.directions) > 1 else None
    importances = get_param_importances(optuna_study, evaluator=FanovaImportanceEvaluator(seed=0), target=score)
    return {name: round(float(share), 6) for name, share in importances.items()}
