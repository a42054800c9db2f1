"""Stage `tune`: Optuna over the declared spaces of a task's runs, the same budget for every method."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import optuna
import torch
from optuna.trial import FrozenTrial, TrialState

from fedweave.errors import choose, format_count
from fedweave.files import write_atomic
from fedweave.methods import METHODS
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.pipelines.searching import trials
from fedweave.pipelines.searching.search import DONE, Search, initial_points, open_search, run_search
from fedweave.pipelines.stages import params_entries
from fedweave.runs import assembly
from fedweave.runs.parallel import run_processes
from fedweave.study import search_spaces
from fedweave.study.call_cache import cache_calls
from fedweave.study.spec import Study


def main(task: str) -> None:
    """Search for every run of `task`; write the chosen values and the trials.

    results/<study>/tuned/<task>/<run>.json holds {"run", "best"}, which training reads: a longer search without a
    better trial causes no new training. Without trials, or for a method without a space, `best` is empty and training
    takes the declared values. trials/<run>.json holds what `search_record` gives.
    """
    check = params_entries.create_check()
    with cache_calls():  # digests of code are computed once, as the code in memory stays the same
        study = _search(task)
    searched = [params_entries.run_entries(task, study.runs[key].method, key) for key in runs(study, task)]
    check(("tune",), *(name for names in searched for name in names))


def _search(task: str) -> Study:
    study, keys = assembly.load(), run_searches(task)
    records = {key: search_record(open_search(study, key)) for key in keys}
    best = {key: record["best"] for key, record in records.items()}
    for key, record in records.items():
        write_atomic(paths.trials(study.name, task, key), json.dumps(record, indent=2) + "\n")
    for key in runs(study, task):
        if study.tune.trials and key not in keys:
            print(f"{key}: no trial, {_reason(study, key)}", flush=True)
        values = search_spaces.select_values(study, key, best)
        write_atomic(
            paths.tuning_result(study.name, task, key), json.dumps({"run": key, "best": values}, indent=2) + "\n"
        )
    return study


def _reason(study: Study, key: str) -> str:
    """Why a run has no search."""
    if (source := search_spaces.find_source_run(study, key)) != key:
        return f"it takes the values of {source}, from which it differs in the graph alone"
    return f"it keeps its declared values: tune.spaces.{study.runs[key].method} is missing or empty"


def run_searches(task: str) -> list[str]:
    """Bring every search of `task` to its budget, with other processes if there are any; returns the tuned runs.

    Raises:
        BadInput: an unknown task.
    """
    study = assembly.load()
    keys = [key for key in runs(study, task) if study.tune.trials and initial_points(study, key)[0]]
    longest = sorted((open_search(study, key) for key in keys), key=_duration_key, reverse=True)
    unfinished = [search.key for search in longest if search.remaining_trials]
    workers = min(study.tune.workers, len(unfinished))
    if workers > 1:
        torch.set_num_threads(1)  # a fork cannot use the pool of threads of its parent
        run_processes(partial(run_search, study), unfinished, workers, "spawn" if torch.version.cuda else "fork")
        unfinished = [key for key in unfinished if open_search(study, key).remaining_trials]  # whose error now shows
    for key in unfinished:
        run_search(study, key)
    return keys


def _duration_key(search: Search) -> tuple[bool, int]:
    """A key that sorts searches by duration: the longest ones start first, so that no core waits for the last one.

    Rounds over the pooled rows of all clients take longest.
    """
    return METHODS[search.study.runs[search.key].method].pools, search.rounds


def runs(study: Study, task: str) -> list[str]:
    """The runs of `task`.

    Raises:
        BadInput: an unknown task.
    """
    choose(task, study.tasks, "params.yaml: tasks")
    return [key for key, item in study.runs.items() if item.task == task]


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


if __name__ == "__main__":
    run_main(main)
