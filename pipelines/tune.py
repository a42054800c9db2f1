"""Stage `tune`: Optuna over the declared spaces of a task's runs, the same budget for every method.

Only validation values are looked at. The journal of a search lies outside the stage's outputs, under a name that
hashes everything its values depend on: a search that was killed goes on, one that nothing touched is read, not run.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fedweave import assemble, experiment
from fedweave.errors import BadInput, choose
from fedweave.files import write_atomic
from fedweave.methods import METHODS
from fedweave.spec import Run, Study
from pipelines import paths
from pipelines.processes import die_with_parent, stage

SAMPLERS = {"tpe": partial(TPESampler, multivariate=True), "random": RandomSampler}
DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def main(task: str) -> None:
    """Search for every run of `task` and write results/<study>/tuned/<task>/<run>.json.

    Without trials, or for a method without a space, `best` is empty and training takes the declared values.
    """
    study = assemble.load()
    choose(task, study.tasks, "params.yaml: tasks")
    found = {k: {"run": k, "best": {}, "trials": []} for k, item in study.runs.items() if item.task == task}
    searched = [key for key in found if study.tune.trials and spaces(study, key)]
    if searched:
        workers = min(study.tune.workers, len(searched))
        with ProcessPoolExecutor(workers, get_context("spawn"), die_with_parent) as pool:
            found |= zip(searched, pool.map(partial(search, study), searched), strict=True)
    for key, result in found.items():
        write_atomic(paths.tuned(study.name, task, key), json.dumps(result, indent=2) + "\n")


def search(study: Study, key: str) -> dict[str, Any]:
    """Bring the search of one run to its full budget: {"run", "best", "trials": [{"params", "value"}], "budget"}."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = _open(study, key)
    _take_up(opened, _declared(study.run(key), spaces(study, key)))
    done = [trial for trial in opened.trials if trial.state in DONE]
    opened.sampler = SAMPLERS[study.tune.sampler](seed=len(done))
    opened.optimize(partial(_objective, study, key), n_trials=study.tune.trials - len(done), catch=experiment.Diverged)
    done = [trial for trial in opened.trials if trial.state in DONE]
    complete = any(trial.state == TrialState.COMPLETE for trial in done)
    best = opened.best_params if complete else {}
    print(f"{key}: {len(done)} trials, best {opened.best_value if complete else '-'} with {best}", flush=True)
    trials = [{"params": t.params, "value": t.value if t.state == TrialState.COMPLETE else None} for t in done]
    budget = {"trials": study.tune.trials, "rounds": study.tune.rounds, "seeds": study.tune.seeds}
    return {"run": key, "best": best, "trials": trials, "budget": budget}


def spaces(study: Study, key: str) -> dict[str, BaseDistribution]:
    """The declared search space of a run.

    Raises:
        BadInput: an entry that is neither a range nor a choice.
    """
    method = study.runs[key].method
    declared = study.tune.spaces.get(method) or {}
    return {name: _distribution(entry, f"tune.spaces.{method}.{name}") for name, entry in declared.items()}


def _distribution(entry: Any, where: str) -> BaseDistribution:
    if isinstance(entry, list) or (isinstance(entry, Mapping) and "choices" in entry):
        return CategoricalDistribution(entry if isinstance(entry, list) else entry["choices"])
    try:
        whole = all(isinstance(entry[end], int) for end in ("low", "high"))
        return (IntDistribution if whole else FloatDistribution)(**entry)
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"params.yaml: {where}: {entry!r} is no range: low, high, log, step, or choices") from error


def _declared(run: Run, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """The values that the run has without tuning, for the parameters of its space: always the first trial."""
    fields = METHODS[run.method].__dataclass_fields__
    known = {name: run.options.get(name, getattr(fields.get(name), "default", None)) for name in space}
    return known | {name: getattr(run.train, name[6:]) for name in space if name.startswith("train.")}


def _open(study: Study, key: str) -> optuna.Study:
    """The journal of this search, found again by all that its values depend on."""
    run, tune = study.run(key), study.tune
    space = {name: repr(entry) for name, entry in spaces(study, key).items()}
    subject = [run.fingerprint(), paths.code_digest(run.method), tune.rounds, tune.seeds, tune.sampler, space]
    digest = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]
    journal = paths.STATE / "tune" / study.name / f"{key}.journal"
    journal.parent.mkdir(parents=True, exist_ok=True)
    bench = experiment.prepare(run, *assemble.load_inputs(run))
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name=digest,
        direction="maximize" if bench.method.task.higher_is_better else "minimize",
        pruner=MedianPruner(n_startup_trials=4, n_warmup_steps=(tune.rounds or run.train.rounds) // 3),
        load_if_exists=True,
    )


def _take_up(opened: optuna.Study, declared: Mapping[str, Any]) -> None:
    """Queue the declared values, and what a killed search had begun: no trial is lost, none is made twice."""
    if not opened.trials:
        opened.enqueue_trial(dict(declared))
    for trial in opened.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        opened.enqueue_trial(trial.params)
        opened._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def _objective(study: Study, key: str, trial: optuna.Trial) -> float:
    """Mean over seeds of the best validation value of a run with the trial's values; pruned by rounds."""
    values = {name: trial._suggest(name, entry) for name, entry in spaces(study, key).items()}
    rounds = {"train.rounds": study.tune.rounds} if study.tune.rounds else {}
    run = study.run(key, values, rounds)
    bench = experiment.prepare(run, *assemble.load_inputs(run))
    better = max if bench.method.task.higher_is_better else min
    bests: list[float] = []
    for seed in study.tune.seeds:
        scores = []
        for report in experiment.repeat(bench, seed):
            if report.scores:
                scores.append(float(report.scores[assemble.point(run)]["val"].nanmean()))
                trial.report(better(scores), len(bests) * run.train.rounds + report.round)
            if trial.should_prune():
                raise optuna.TrialPruned
        bests.append(better(scores))
    return sum(bests) / len(bests)


if __name__ == "__main__":
    stage(main)
