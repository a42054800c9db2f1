"""One search: its journal, and the trials that processes claim from it.

Only validation values are used. Any number of processes may work on a search, on any host that shares the project's
folder: each claims a trial before it trains it, and a claim ends with its process, so no trial is lost or run twice.
What trial n tries depends on n and on the trials before it; so a single process gets the same result whether it was
killed in between or not.
"""

import fcntl
import hashlib
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import TrialState

from fedweave.errors import Diverged
from fedweave.files import check_writable, read
from fedweave.pipelines import paths
from fedweave.pipelines.searching import trials
from fedweave.runs import assembly, repetition, tasks
from fedweave.runs.dependencies import inputs_digest, run_digest
from fedweave.study import plugins, search_spaces
from fedweave.study.schema import TuneSpec
from fedweave.study.spec import Study

SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": partial(TPESampler, multivariate=True),
    "random": RandomSampler,
    "grid": RandomSampler,  # after every point once, see `initial_points`
}
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
PAUSE = 0.5  # seconds between looks at trials that others are training


class KernelLock(JournalFileOpenLock):
    """A lock on the journal that ends with its holder: Optuna's own locks are files that remain after a kill."""

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


class TrialClaims:
    """Which process trains which trial: one byte of a file per trial, locked by the process until it ends.

    POSIX ties such locks to process and file: keep one `TrialClaims` per file and process, and open the
    file nowhere else.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else looks for a trial meanwhile."""
        fcntl.lockf(self._handle, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, 0)

    def claim(self, number: int) -> None:
        """Trial `number` is this process's."""
        fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + number)

    def release(self, number: int) -> None:
        """Trial `number` is nobody's."""
        fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, 1 + number)

    def is_claimed(self, number: int) -> bool:
        """Whether another process is training trial `number`."""
        try:
            self.claim(number)
        except (BlockingIOError, PermissionError):
            return True
        self.release(number)
        return False


class Search(NamedTuple):
    """The search of one run in its journal.

    Attributes:
        inputs: those of `repetition.prepare`.
        rounds: of a repetition of the run, all stages of its method together.
    """

    study: Study
    key: str
    opened: optuna.Study
    inputs: tuple[Any, ...]
    rounds: int

    @property
    def remaining_trials(self) -> int:
        """Trials that are still to be made or to be finished."""
        return max(0, self.study.tune.trials - len(self.opened.get_trials(deepcopy=False, states=DONE)))


def open_search(study: Study, key: str, inputs: tuple[Any, ...] | None = None, root: Path = paths.STATE) -> Search:
    """The search of the run `key` in its journal below `root`, begun where it is not there yet.

    Args:
        inputs: data set, partition and maker of models in memory; by default what the earlier stages wrote.
    """
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    run, path = study.run(key), journal_path(study, key, root)
    check_writable(path.parent)
    dataset, partition, *model = inputs or assembly.load_inputs(run)
    task = tasks.build_task(run, dataset, partition, model=model[0] if model else None)
    stages = assembly.build_method(run, task).stages(run.train.rounds)
    return Search(
        study,
        key,
        optuna.create_study(
            storage=open_storage(path),
            study_name=digest(study, key, stored=inputs is None),
            directions=directions(study.tune, task.score_metric.higher_is_better),
            load_if_exists=True,
        ),
        (dataset, partition, *model),
        sum(stage.rounds for stage in stages),
    )


def directions(tune: TuneSpec, higher_is_better: bool) -> list[StudyDirection]:
    """More or less, for each objective: fewer bytes are better."""
    more = StudyDirection.MAXIMIZE if higher_is_better else StudyDirection.MINIMIZE
    return [more if name == "score" else StudyDirection.MINIMIZE for name in tune.objectives]


def journal_path(study: Study, key: str, root: Path = paths.STATE) -> Path:
    """Path of the search: outside the stage's outputs, which DVC deletes before it runs a stage."""
    return root / "tune" / study.name / f"{key}.journal"


def open_storage(path: Path) -> JournalStorage:
    """The journal at `path`.

    Raises:
        BadInput: it is damaged, or cannot be written.
    """
    again = "move it away, and its trials are made again: dvc repro tune"
    return read(path, lambda file: JournalStorage(JournalFileBackend(str(file), KernelLock(str(file)))), again)


def digest(study: Study, key: str, stored: bool = True) -> str:
    """A hash of everything that the values of the search depend on: a search is reused exactly while the hash is the
    same.

    Args:
        stored: whether the earlier stages wrote data set and partition; who has them in memory keeps searches of other
            data elsewhere.
    """
    run, tune = study.run(key), study.tune
    space = {name: repr(entry) for name, entry in distributions(study, key).items()}
    read_files = inputs_digest(run) if stored else inputs_digest(run, None)
    subject = [run.fingerprint(), run_digest(run), read_files, tune.share, tune.seeds, tune.sampler, space]
    subject += [tune.objectives] if len(tune.objectives) > 1 else []
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def run_search(
    study: Study,
    key: str,
    inputs: tuple[Any, ...] | None = None,
    root: Path = paths.STATE,
    show: Callable[[int], None] = lambda left: None,
) -> None:
    """Bring the search of the run `key` to its budget, together with other processes; arguments as in `open_search`.

    Args:
        show: gets the number of trials that are left, after each.
    """
    torch.set_num_threads(1)
    plugins.load(study.uses)  # a process that is started anew has none
    search = open_search(study, key, inputs, root)
    claims = TrialClaims(journal_path(study, key, root).with_suffix(".claims"))
    total = _prepare_trial(search, {}).rounds
    by_rounds = MedianPruner(n_startup_trials=4, n_warmup_steps=total // 3)
    search.opened.pruner = by_rounds if trials.prunes(study.tune) else NopPruner()
    while search.remaining_trials:
        trial = _claim_trial(search, claims)
        if trial is None:
            time.sleep(PAUSE)
            continue
        try:
            search.opened.tell(trial, trials.evaluate(_prepare_trial(search, trial.params), study.tune, trial))
        except (optuna.TrialPruned, Diverged):
            search.opened.tell(trial, state=TrialState.PRUNED)
        claims.release(trial.number)
        show(search.remaining_trials)


def _claim_trial(search: Search, claims: TrialClaims) -> optuna.Trial | None:
    """The next trial; None where others are training all that are left."""
    opened = search.opened
    with claims.lock():
        # Checked every time: a process killed while queueing has queued only the first few.
        queued = [trial.system_attrs.get("fixed_params") for trial in opened.get_trials(deepcopy=False)]
        for point in initial_points(search.study, search.key):
            if point not in queued:
                opened.enqueue_trial(point)
        training = 0
        for trial in opened.get_trials(states=(TrialState.RUNNING,)):
            if claims.is_claimed(trial.number):
                training += 1
                continue
            # A queued trial that was killed before it had its values still knows what it was queued with.
            opened.enqueue_trial({**trial.system_attrs.get("fixed_params", {}), **trial.params})
            opened.tell(trial.number, state=TrialState.FAIL)
        if training >= search.remaining_trials:
            return None
        tune = search.study.tune
        opened.sampler = SAMPLERS[tune.sampler](
            seed=sampler_seed(search.key, tune.trials - search.remaining_trials + training)
        )
        claimed = opened.ask(distributions(search.study, search.key))
        claims.claim(claimed.number)
        return claimed


def sampler_seed(key: str, trial: int) -> int:
    """The sampler's seed for a trial of the run `key`, in [0, 2^32): two searches do not draw the same points."""
    return int.from_bytes(hashlib.sha256(f"{key} {trial}".encode()).digest()[:4])


def _prepare_trial(search: Search, params: Mapping[str, Any]) -> repetition.PreparedRun:
    """The objects of a trial with `params`."""
    rounds = math.ceil(search.study.tune.share * search.study.run(search.key).train.rounds)
    return repetition.prepare(search.study.run(search.key, params, {"train.rounds": rounds}), *search.inputs)


def initial_points(study: Study, key: str) -> list[dict[str, Any]]:
    """The points that a search begins with: the declared one, and for a grid all others."""
    begun = search_spaces.declared_values(study, key)
    if study.tune.sampler != "grid":
        return [begun]
    choices = {
        name: entry.choices
        for name, entry in distributions(study, key).items()
        if isinstance(entry, CategoricalDistribution)
    }
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return [begun, *(point for point in points if point != begun)]


def distributions(study: Study, key: str) -> dict[str, BaseDistribution]:
    """The search space of a run: what is declared, and the value that the run has without tuning."""
    values = search_spaces.declared_values(study, key)
    return {name: _distribution(entry, values[name]) for name, entry in search_spaces.entries(study, key).items()}


def _distribution(entry: Mapping[str, Any], value: Any) -> BaseDistribution:
    """A range {low, high, log, step} or {choices}, widened to hold `value`."""
    if "choices" in entry:
        return CategoricalDistribution(list(dict.fromkeys([*entry["choices"], value])))
    ends = {"low": min(entry["low"], value), "high": max(entry["high"], value)}
    whole = all(isinstance(number, int) for number in (*ends.values(), entry.get("step", 1)))
    return (IntDistribution if whole else FloatDistribution)(**{**entry, **ends})
