"""One search: its journal, and the trials that processes claim from it.

Only validation values are used. Any number of processes may work on a search, on any host that shares the project's
folder. Each process claims a trial before it trains it, and a claim ends with its process, so that no trial is lost or
run twice. The settings of trial n depend on n and on the trials before it, so that a single process gets the same
result whether or not it was killed in between.
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

from fedweave.errors import BadInput, Diverged
from fedweave.files.atomic import check_writable, read
from fedweave.runs import repetition, tasks
from fedweave.runs.dependencies import inputs_digest, run_digest
from fedweave.runs.inputs import load_inputs
from fedweave.search import trials
from fedweave.study import objects, search_spaces
from fedweave.study.schema import TuneSpec
from fedweave.study.spec import STATE, StudySpec

DONE = (TrialState.COMPLETE, TrialState.PRUNED)
LEAST_START, MOST_START = 2, 10  # random trials of TPE; ten are Optuna's own
PAUSE = 0.5  # seconds between two queries about trials that other processes train


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
        """Release the lock."""
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
        """Keep other processes from claiming a trial during the block."""
        fcntl.lockf(self._handle, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, 0)

    def claim(self, number: int) -> None:
        """Claim trial `number` for this process."""
        fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 + number)

    def release(self, number: int) -> None:
        """Give up the claim of trial `number`."""
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
        study, key: the study and the name of the run.
        optuna_study: the journal as a study of Optuna.
        inputs: those of `repetition.prepare`.
        rounds: of a repetition of the run, all stages of its method together.
    """

    study: StudySpec
    key: str
    optuna_study: optuna.Study
    inputs: tuple[Any, ...]
    rounds: int

    @property
    def remaining_trials(self) -> int:
        """The number of trials that have not finished, started or not."""
        return max(0, self.study.tune.trials - len(self.optuna_study.get_trials(deepcopy=False, states=DONE)))


def open_search(study: StudySpec, key: str, inputs: tuple[Any, ...] | None = None, root: Path = STATE) -> Search:
    """The search of the run `key` in its journal below `root`, which is created if it does not exist.

    Args:
        inputs: data set, partition and maker of models in memory; by default what the earlier stages wrote.
    """
    warnings.simplefilter("ignore", ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    run, path = study.run(key), journal_path(study, key, root)
    check_writable(path.parent)
    dataset, partition, *model = inputs or load_inputs(run)
    task = tasks.build_task(run, dataset, partition, model=model[0] if model else None)
    stages = objects.build_method(run, task).stages(run.train.rounds)
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
    """The direction of each objective; fewer bytes are better."""
    best_direction = StudyDirection.MAXIMIZE if higher_is_better else StudyDirection.MINIMIZE
    return [best_direction if name == "score" else StudyDirection.MINIMIZE for name in tune.objectives]


def journal_path(study: StudySpec, key: str, root: Path = STATE) -> Path:
    """The path of the journal: outside of the stage's outputs, which DVC deletes before it runs a stage."""
    return root / "tune" / study.name / f"{key}.journal"


def open_storage(path: Path) -> JournalStorage:
    """The journal at `path`.

    Raises:
        BadInput: it is damaged, or cannot be written.
    """
    hint = "move it away, and its trials are made again: dvc repro tune"
    return read(path, lambda file: JournalStorage(JournalFileBackend(str(file), KernelLock(str(file)))), hint)


def digest(study: StudySpec, key: str, stored: bool = True) -> str:
    """A hash of everything that the values of the search depend on.

    A search is continued as long as its hash is the same.

    Args:
        study, key: the study and the name of the run.
        stored: whether earlier stages wrote data set and partition. Where they are in memory, the caller keeps
            searches of different data in different folders.
    """
    run, tune = study.run(key), study.tune
    space = {name: repr(entry) for name, entry in distributions(study, key).items()}
    inputs = inputs_digest(run) if stored else inputs_digest(run, None)
    content = [run.fingerprint(), run_digest(run), inputs, tune.share, tune.seeds, tune.sampler, space]
    content += [tune.objectives] if len(tune.objectives) > 1 else []
    if tune.sampler == "tpe" and (start := random_trials(tune.trials)) != MOST_START:
        content.append(start)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def run_search(
    study: StudySpec,
    key: str,
    inputs: tuple[Any, ...] | None = None,
    root: Path = STATE,
    show: Callable[[int], None] = lambda left: None,
) -> None:
    """Bring the search of the run `key` to its budget, together with other processes; arguments as in `open_search`.

    Args:
        show: gets the number of trials that are left, after each.
    """
    torch.set_num_threads(1)
    study.load_code()
    search = open_search(study, key, inputs, root)
    claims = TrialClaims(journal_path(study, key, root).with_suffix(".claims"))
    total = _prepare_trial(search, {}).rounds
    pruner = MedianPruner(n_startup_trials=4, n_warmup_steps=total // 3)
    search.optuna_study.pruner = pruner if trials.prunes(study.tune) else NopPruner()
    while search.remaining_trials:
        trial = _claim_trial(search, claims)
        if trial is None:
            time.sleep(PAUSE)
            continue
        try:
            search.optuna_study.tell(trial, trials.evaluate(_prepare_trial(search, trial.params), study.tune, trial))
        except (optuna.TrialPruned, Diverged, BadInput) as error:
            if isinstance(error, BadInput) and trial.params in initial_points(study, key):
                raise  # values that somebody declared, and not a draw that these data do not allow
            search.optuna_study.tell(trial, state=TrialState.PRUNED)
        claims.release(trial.number)
        show(search.remaining_trials)


def _claim_trial(search: Search, claims: TrialClaims) -> optuna.Trial | None:
    """The next trial; None if other processes train all remaining ones."""
    optuna_study = search.optuna_study
    with claims.lock():
        # Checked every time: a process that was killed while it queued them has queued only the first few.
        queued = [trial.system_attrs.get("fixed_params") for trial in optuna_study.get_trials(deepcopy=False)]
        for point in initial_points(search.study, search.key):
            if point not in queued:
                optuna_study.enqueue_trial(point)
        in_training = 0
        for trial in optuna_study.get_trials(states=(TrialState.RUNNING,)):
            if claims.is_claimed(trial.number):
                in_training += 1
                continue
            # A queued trial that was killed before it got its values still has the values of the queue.
            optuna_study.enqueue_trial({**trial.system_attrs.get("fixed_params", {}), **trial.params})
            optuna_study.tell(trial.number, state=TrialState.FAIL)
        if in_training >= search.remaining_trials:
            return None
        tune = search.study.tune
        seed = sampler_seed(search.key, tune.trials - search.remaining_trials + in_training)
        optuna_study.sampler = _make_sampler(tune, seed)
        new_trial = optuna_study.ask(distributions(search.study, search.key))
        claims.claim(new_trial.number)
        return new_trial


def _make_sampler(tune: TuneSpec, seed: int) -> BaseSampler:
    """The sampler of one trial. A grid goes on at random after every point once (see `initial_points`)."""
    if tune.sampler != "tpe":
        return RandomSampler(seed)
    return TPESampler(multivariate=True, n_startup_trials=random_trials(tune.trials), seed=seed)


def random_trials(budget: int) -> int:
    """How many of the first trials of TPE are random, the declared values among them: a third, from 2 to 10.

    Two trials are the fewest that tell a better half from a worse one. With Optuna's own ten, Bergstra et al. (NeurIPS
    2011) would begin after the end of a small search.
    """
    return min(max(budget // 3, LEAST_START), MOST_START)


def sampler_seed(key: str, trial: int) -> int:
    """The sampler's seed for a trial of the run `key`, in [0, 2^32), so that searches of two runs draw other points."""
    return int.from_bytes(hashlib.sha256(f"{key} {trial}".encode()).digest()[:4])


def _prepare_trial(search: Search, params: Mapping[str, Any]) -> repetition.PreparedRun:
    """The prepared run of a trial with the settings `params`; clients that join late do so after the same share."""
    train, share = search.study.run(search.key).train, search.study.tune.share
    length = {"train.rounds": math.ceil(share * train.rounds)}
    length |= {"train.join_round": math.ceil(share * train.join_round)} if train.join_round else {}
    return repetition.prepare(search.study.run(search.key, params, length), *search.inputs)


def initial_points(study: StudySpec, key: str) -> list[dict[str, Any]]:
    """The first points of a search: the declared one, and for a grid all others."""
    declared = search_spaces.declared_values(study, key)
    if study.tune.sampler != "grid":
        return [declared]
    choices = {
        name: entry.choices
        for name, entry in distributions(study, key).items()
        if isinstance(entry, CategoricalDistribution)
    }
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return [declared, *(point for point in points if point != declared)]


def distributions(study: StudySpec, key: str) -> dict[str, BaseDistribution]:
    """The search space of a run: the declared ranges, widened to hold the values that the run has without tuning."""
    values, method = search_spaces.declared_values(study, key), study.runs[key].method
    return {
        name: _choices(entry, values[name])
        if "choices" in entry
        else _range(entry, values[name], search_spaces.takes_whole_numbers(method, name))
        for name, entry in search_spaces.entries(study, key).items()
    }


def _choices(entry: Mapping[str, Any], value: Any) -> BaseDistribution:
    """The choices, and `value`."""
    return CategoricalDistribution(list(dict.fromkeys([*entry["choices"], value])))


def _range(entry: Mapping[str, Any], value: Any, is_whole: bool) -> BaseDistribution:
    """A range {low, high, log, step}, widened to hold `value`."""
    ends = {"low": min(entry["low"], value), "high": max(entry["high"], value)}
    return (IntDistribution if is_whole else FloatDistribution)(**{**entry, **ends})
