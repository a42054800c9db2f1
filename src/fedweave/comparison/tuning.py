"""Searches of a comparison: the same as in the stage `tune`, on data in memory."""

import contextlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedweave.comparison.plan import Plan
from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import write_json
from fedweave.processes import parallel
from fedweave.search import rates
from fedweave.study import search_spaces
from fedweave.study.spec import STATE


def tune_runs(plan: Plan, folder: Path, show: Callable[[int, int], None]) -> dict[str, dict[str, Any]]:
    """The best values of every run, empty where nothing is searched for; trials in `folder` are not made again.

    Args:
        show: gets how many trials have ended, and how many there are in all.

    Raises:
        BadInput: Optuna is needed and not installed.
    """
    study = plan.study
    if not study.tune.trials:
        return {key: {} for key in study.runs}
    with_optuna = study.tune.sampler != search_spaces.RATES
    search, read_record = _import_search(study.tune.trials) if with_optuna else (rates, rates.search_record)
    keys = [key for key in study.runs if search_spaces.has_search(study, key)]
    inputs = tuple(plan.inputs)

    def root(key: str) -> Path:
        return folder / STATE / plan.hash_code(key)

    counts = {key: search.open_search(study, key, inputs, root(key)).remaining_trials for key in keys}
    total = len(keys) * study.tune.trials

    def receive(message: tuple[str, int]) -> None:
        counts.update([message])
        show(total - sum(counts.values()), total)

    inbox = parallel.Inbox(receive)

    def perform(key: str) -> None:
        search.run_search(study, key, inputs, root(key), lambda remaining: inbox.post((key, remaining)))

    waiting = [key for key, remaining in counts.items() if remaining]
    workers = min(parallel.cores(), study.tune.workers, len(waiting))
    # A forked process cannot use CUDA once it is initialised, for instance by an estimate.
    if workers > 1 and not torch.cuda.is_initialized():
        show(total - sum(counts.values()), total)
        parallel.run_processes(perform, waiting, workers, inbox=inbox)
    records = {}
    for key in keys:
        perform(key)  # the trials that are left if one of the processes died
        with contextlib.redirect_stdout(io.StringIO()):
            records[key] = read_record(search.open_search(study, key, inputs, root(key)))
    best_by_source = {key: record["best"] for key, record in records.items()}
    best = {key: search_spaces.select_values(study, key, best_by_source) for key in study.runs}
    for key, values in best.items():
        _write(folder / "tuned" / study.runs[key].task, key, values, records.get(key))
    return best


def _write(folder: Path, key: str, best: Mapping[str, Any], record: Mapping[str, Any] | None) -> None:
    """Write the best values of a run, and the record of its search if there was one."""
    trials = folder / "trials" / f"{key}.json"
    if record is None:
        trials.unlink(missing_ok=True)  # of an earlier call that had a space
    else:
        write_json(trials, record, indent=2)
    write_json(folder / f"{key}.json", {"run": key, "best": best}, indent=2)


def _import_search(trials: int) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
    """(the module of searches, the record of one of them)."""
    try:
        from fedweave.search import record, search
    except ImportError as error:
        advice = "pip install 'fedweave[search]', or use tune=0"
        raise BadInput(f"tune: {format_count(trials, 'trial')} need Optuna ({error}); {advice}") from error
    return search, record.search_record
