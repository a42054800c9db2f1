"""Stage `tune`: Optuna over the declared spaces of a task's runs, the same budget for every method.

Only validation values are looked at. The journal of a search lies outside the stage's outputs, under a name that
hashes everything its values depend on: a search that was killed goes on, one that nothing touched is read, not run.
"""

import fcntl
import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from fedweave import assemble, experiment
from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput, Diverged, choose
from fedweave.files import write_atomic
from fedweave.methods import METHODS
from fedweave.spec import Study
from pipelines import paths
from pipelines.processes import die_with_parent, stage

SAMPLERS: dict[str, Callable[..., BaseSampler]] = {"tpe": partial(TPESampler, multivariate=True), "random": RandomSampler}
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class KernelLock(JournalFileOpenLock):
    """A lock on the journal that ends with its holder: Optuna's own are files, and one left by a kill stops the next search."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path

    def acquire(self) -> bool:
        """Wait until nobody else holds the journal."""
        self._handle = os.open(self._path, os.O_RDWR)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Let the next one have it."""
        os.close(self._handle)


def main(task: str) -> None:
    """Search for every run of `task` and write results/<study>/tuned/<task>/<run>.json.

    Without trials, or for a method without a space, `best` is empty and training takes the declared values.
    """
    study = assemble.load()
    choose(task, study.tasks, "params.yaml: tasks")
    keys = [key for key, item in study.runs.items() if item.task == task]
    searched = {key: _open(study, key) for key in keys if study.tune.trials and spaces(study, key)}
    unfinished = [key for key, opened in searched.items() if _left(study, opened)]
    workers = min(study.tune.workers, len(unfinished))
    if workers > 1:
        with ProcessPoolExecutor(workers, get_context("spawn"), _stay_with, (os.getpid(),)) as pool:
            list(pool.map(partial(search, study), unfinished))
    else:
        for key in unfinished:
            search(study, key)
    for key in keys:
        found = summary(study, key, searched[key]) if key in searched else {"run": key, "best": {}, "trials": []}
        write_atomic(paths.tuned(study.name, task, key), json.dumps(found, indent=2) + "\n")


def _stay_with(parent: int) -> None:
    """Let this worker end with `parent`, which may have ended while the worker was starting."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def search(study: Study, key: str) -> None:
    """Bring the search of one run to its full budget, in its journal."""
    torch.set_num_threads(1)
    opened = _open(study, key)
    _take_up(opened, declared(study, key))
    opened.sampler = SAMPLERS[study.tune.sampler](seed=_left(study, opened))
    inputs = assemble.load_inputs(study.run(key))
    while _left(study, opened):
        trial = opened.ask(spaces(study, key))
        try:
            opened.tell(trial, _value(study, key, inputs, trial))
        except optuna.TrialPruned:
            opened.tell(trial, state=TrialState.PRUNED)


def summary(study: Study, key: str, opened: optuna.Study) -> dict[str, Any]:
    """A finished search as data: {"run", "best", "trials": [{"params", "value"}], "budget"}; pruned ones have no value."""
    done = opened.get_trials(states=DONE)
    values = [trial.value if trial.state == TrialState.COMPLETE else None for trial in done]
    best = opened.best_params if any(value is not None for value in values) else {}
    print(f"{key}: {len(done)} trials, best {opened.best_value if best else '-'} with {best}", flush=True)
    trials = [{"params": trial.params, "value": value} for trial, value in zip(done, values, strict=True)]
    budget = {"trials": study.tune.trials, "share": study.tune.share, "seeds": study.tune.seeds}
    return {"run": key, "best": best, "trials": trials, "budget": budget}


def declared(study: Study, key: str) -> dict[str, Any]:
    """The values that a run has without tuning, for the parameters of its space: always the first trial."""
    run = study.run(key)
    fields = METHODS[run.method].__dataclass_fields__
    space = study.tune.spaces.get(run.method) or {}
    own = {name: run.options.get(name, getattr(fields.get(name), "default", None)) for name in space}
    return own | {name: getattr(run.train, name.removeprefix("train.")) for name in space if name.startswith("train.")}


def spaces(study: Study, key: str) -> dict[str, BaseDistribution]:
    """The search space of a run: what is declared, and the value that the run has without tuning.

    Raises:
        BadInput: an entry that is neither a range nor a choice.
    """
    method, values = study.runs[key].method, declared(study, key)
    entries = (study.tune.spaces.get(method) or {}).items()
    return {name: _distribution(entry, values[name], f"tune.spaces.{method}.{name}") for name, entry in entries}


def _distribution(entry: Any, value: Any, where: str) -> BaseDistribution:
    """A range {low, high, log, step} or {choices}, widened to hold `value`."""
    try:
        if "choices" in entry:
            return CategoricalDistribution(list(dict.fromkeys([*entry["choices"], value])))
        ends = {"low": min(entry["low"], value), "high": max(entry["high"], value)}
        whole = all(isinstance(end, int) for end in ends.values())
        return (IntDistribution if whole else FloatDistribution)(**{**entry, **ends})
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"params.yaml: {where}: {entry!r} is no range around {value!r}: low, high, log, step; or choices") from error


def _open(study: Study, key: str) -> optuna.Study:
    """The journal of this search, found again by all that its values depend on."""
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    run, tune = study.run(key), study.tune
    space = {name: repr(entry) for name, entry in spaces(study, key).items()}
    subject = [run.fingerprint(), paths.code_digest(run.method), tune.share, tune.seeds, tune.sampler, space]
    digest = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]
    journal = paths.STATE / "tune" / study.name / f"{key}.journal"
    journal.parent.mkdir(parents=True, exist_ok=True)
    dataset, partition = assemble.load_inputs(run)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal), KernelLock(str(journal)))),
        study_name=digest,
        direction="maximize" if assemble.build_task(run, dataset, partition).higher_is_better else "minimize",
        pruner=MedianPruner(n_startup_trials=4, n_warmup_steps=_rounds(study, key) // 3),
        load_if_exists=True,
    )


def _left(study: Study, opened: optuna.Study) -> int:
    """Trials that are still to be made."""
    return max(0, study.tune.trials - len(opened.get_trials(deepcopy=False, states=DONE)))


def _take_up(opened: optuna.Study, first: Mapping[str, Any]) -> None:
    """Queue the declared values, and what a killed search had begun: no trial is lost, none is made twice."""
    if not opened.trials:
        opened.enqueue_trial(dict(first))
    for trial in opened.get_trials(states=(TrialState.RUNNING,)):
        # A queued trial that was killed before it had its values still knows what it was queued with.
        opened.enqueue_trial({**trial.system_attrs.get("fixed_params", {}), **trial.params})
        opened.tell(trial.number, state=TrialState.FAIL)


def _rounds(study: Study, key: str) -> int:
    """Rounds of a trial."""
    return math.ceil(study.tune.share * study.run(key).train.rounds)


def _value(study: Study, key: str, inputs: tuple[Dataset, Partition], trial: optuna.Trial) -> float:
    """Mean over seeds of the best validation value of a run with the trial's values; pruned by rounds."""
    run = study.run(key, trial.params, {"train.rounds": _rounds(study, key)})
    bench = experiment.prepare(run, *inputs)
    try:
        bests = [_best(bench, seed, number * run.train.rounds, trial) for number, seed in enumerate(study.tune.seeds)]
    except Diverged as error:
        raise optuna.TrialPruned(str(error)) from error
    return sum(bests) / len(bests)


def _best(bench: experiment.Bench, seed: int, offset: int, trial: optuna.Trial) -> float:
    """The best validation value of one repetition."""
    better = max if bench.method.task.higher_is_better else min
    best: float | None = None
    for report in experiment.repeat(bench, seed):
        if report.scores:
            value = float(report.scores[assemble.point(bench.run)]["val"].nanmean())
            best = value if best is None else better(best, value)
            trial.report(best, offset + report.round)
        if trial.should_prune():
            raise optuna.TrialPruned
    assert best is not None  # the last round is always evaluated
    return best


if __name__ == "__main__":
    stage(main)
