"""Stage `tune`: Optuna over the declared spaces of a task's runs, the same budget for every method."""

import json
from functools import partial

import torch

from fedweave.errors import choose
from fedweave.files.atomic import write_atomic
from fedweave.methods import METHODS
from fedweave.processes.parallel import run_processes
from fedweave.search.record import search_record
from fedweave.search.search import Search, initial_points, open_search, run_search
from fedweave.study import search_spaces, validate
from fedweave.study.call_cache import cache_calls
from fedweave.study.spec import StudySpec

from .. import paths
from ..processes import run_main
from . import params_entries


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


def _search(task: str) -> StudySpec:
    study, keys = validate.load(), run_searches(task)
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


def _reason(study: StudySpec, key: str) -> str:
    """Why a run has no search."""
    if (source := search_spaces.find_source_run(study, key)) != key:
        return f"it takes the values of {source}, from which it differs in the graph alone"
    return f"it keeps its declared values: tune.spaces.{study.runs[key].method} is missing or empty"


def run_searches(task: str) -> list[str]:
    """Bring every search of `task` to its budget, with other processes if there are any; returns the tuned runs.

    Raises:
        BadInput: an unknown task.
    """
    study = validate.load()
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


def runs(study: StudySpec, task: str) -> list[str]:
    """The runs of `task`.

    Raises:
        BadInput: an unknown task.
    """
    choose(task, study.tasks, "params.yaml: tasks")
    return [key for key, item in study.runs.items() if item.task == task]


if __name__ == "__main__":
    run_main(main)
