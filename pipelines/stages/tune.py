"""Stage `tune`: a search for each of a task's runs, by Optuna or of learning rates, with the same budget for all."""

from functools import partial
from typing import Any

import torch

from fedweave.errors import choose
from fedweave.files.atomic import write_json
from fedweave.methods import METHODS
from fedweave.processes.parallel import run_processes
from fedweave.search import rates, record, search
from fedweave.study import search_spaces, validate
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
    study = _search(task)
    searched = [params_entries.run_entries(task, study.runs[key].method, key) for key in runs(study, task)]
    check(("tune",), *(name for names in searched for name in names))


def _search(task: str) -> StudySpec:
    study, keys = validate.load(), run_searches(task)
    records = {key: search_record(study, key) for key in keys}
    best = {key: stored["best"] for key, stored in records.items()}
    for key, stored in records.items():
        write_json(paths.trials(study.name, task, key), stored, indent=2)
    for key in runs(study, task):
        if study.tune.trials and key not in keys:
            print(f"{key}: no trial, {_reason(study, key)}", flush=True)
        values = search_spaces.select_values(study, key, best)
        write_json(paths.tuning_result(study.name, task, key), {"run": key, "best": values}, indent=2)
    return study


def search_record(study: StudySpec, key: str) -> dict[str, Any]:
    """The finished search of a run as data."""
    if study.tune.sampler == search_spaces.RATES:
        return rates.search_record(rates.open_search(study, key))
    return record.search_record(search.open_search(study, key))


def _reason(study: StudySpec, key: str) -> str:
    """Why a run has no search."""
    if (source := search_spaces.find_source_run(study, key)) != key:
        return f"it takes the values of {source}, from which it differs in the graph alone"
    return f"it keeps its declared values: tune.spaces.{study.runs[key].method} is missing or empty"


def run_searches(task: str) -> list[str]:
    """Bring every search of `task` to its budget, with other processes if there are any; returns the tuned runs."""
    study = validate.load()
    kind: Any = rates if study.tune.sampler == search_spaces.RATES else search
    keys = [key for key in runs(study, task) if search_spaces.has_search(study, key)]
    longest = sorted((kind.open_search(study, key) for key in keys), key=_duration_key, reverse=True)
    unfinished = [one.key for one in longest if one.remaining_trials]
    workers = min(study.tune.workers, len(unfinished))
    if workers > 1:
        torch.set_num_threads(1)  # a fork cannot use the pool of threads of its parent
        run_processes(partial(kind.run_search, study), unfinished, workers, "spawn" if torch.version.cuda else "fork")
        unfinished = [
            key for key in unfinished if kind.open_search(study, key).remaining_trials
        ]  # whose error now shows
    for key in unfinished:
        kind.run_search(study, key)
    return keys


def _duration_key(one: search.Search | rates.RateSearch) -> tuple[bool, int]:
    """A key that sorts searches by duration: the longest ones start first, so that no core waits for the last one.

    Rounds over the pooled rows of all clients take longest.
    """
    return METHODS[one.study.runs[one.key].method].pools, one.rounds


def runs(study: StudySpec, task: str) -> list[str]:
    """The runs of `task`; an unknown one is refused."""
    choose(task, study.tasks, "params.yaml: tasks")
    return [key for key, item in study.runs.items() if item.task == task]


if __name__ == "__main__":
    run_main(main)
