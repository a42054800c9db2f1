"""The search of the learning rate alone, `sampler: rates`: a grid that is halved once. It needs no Optuna.

All values train half of a trial's rounds, and the better half of them goes on to the end (successive halving, Jamieson
and Talwalkar, AISTATS 2016). Of the values that are not worse than the best one by more than a standard error over
clients, the one nearest to the declared value is taken: small validation sets do not tell such values apart, and a
value that chance chose would differ between methods. Only validation scores are read.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedweave.engine.records import Report
from fedweave.errors import Diverged, format_count
from fedweave.files.atomic import check_writable, write_json
from fedweave.runs import repetition
from fedweave.runs.build import PreparedRun
from fedweave.runs.dependencies import inputs_digest, run_digest
from fedweave.runs.inputs import load_inputs
from fedweave.search.scores import choose_first, reported_scores
from fedweave.study import search_spaces
from fedweave.study.search_spaces import RATE
from fedweave.study.spec import STATE, StudySpec


class RateSearch(NamedTuple):
    """The search of one run.

    Attributes:
        study, key: the study and the name of the run.
        inputs: those of `repetition.prepare`.
        file: with the record of the search, once it has ended.
    """

    study: StudySpec
    key: str
    inputs: tuple[Any, ...]
    file: Path

    @property
    def rounds(self) -> int:
        """Rounds of a repetition of the run."""
        return self.study.run(self.key).train.rounds

    @property
    def remaining_trials(self) -> int:
        """The number of values whose training has not ended."""
        return 0 if self.file.is_file() else self.study.tune.trials


def open_search(study: StudySpec, key: str, inputs: tuple[Any, ...] | None = None, root: Path = STATE) -> RateSearch:
    """The search of the run `key`; arguments as of `search.open_search`. Another search has another file."""
    run = study.run(key)
    stored = inputs_digest(run) if inputs is None else inputs_digest(run, None)
    content = [run.fingerprint(), run_digest(run), stored, study.tune.budget, search_spaces.entries(study, key)]
    code = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    folder = root / "tune" / study.name
    check_writable(folder)
    return RateSearch(study, key, inputs or tuple(load_inputs(run)), folder / f"{key}-{code}.json")


def search_record(search: RateSearch) -> dict[str, Any]:
    """The finished search as data, with the same entries as a record of Optuna's search."""
    record: dict[str, Any] = json.loads(search.file.read_text(encoding="utf-8"))
    print(
        f"{search.key}: {format_count(search.study.tune.trials, 'learning rate')}, {record['best'][RATE]:.4g} is taken"
    )
    return record


def run_search(
    study: StudySpec,
    key: str,
    inputs: tuple[Any, ...] | None = None,
    root: Path = STATE,
    show: Callable[[int], None] = lambda left: None,
) -> None:
    """Search for the learning rate of the run `key`, unless this was done before; arguments as in `open_search`.

    Args:
        show: gets the number of values that are left, after each.
    """
    torch.set_num_threads(1)
    study.load_code()
    search = open_search(study, key, inputs, root)
    if search.remaining_trials:
        write_json(search.file, _search(search, show), indent=2)


class _Trial:
    """The training of one value with every tuning seed, which can go on where it stopped."""

    def __init__(self, search: RateSearch, value: float) -> None:
        self.value, self.started, self.seconds = value, time.time(), 0.0
        self.prepared: PreparedRun = repetition.prepare(search.study.run(search.key, {RATE: value}), *search.inputs)
        self.reports: list[Any] = [repetition.iterate_reports(self.prepared, seed) for seed in search.study.tune.seeds]
        self.rows: list[list[list[float]]] = [[] for _ in self.reports]
        self.score, self.clients, self.curve, self.round = math.nan, list[list[float]](), dict[int, float](), 0

    def train(self, rounds: int) -> None:
        """Go on to the first evaluation at `rounds` or later; a training that diverges has no score."""
        start = time.perf_counter()
        try:
            for reports, rows in zip(self.reports, self.rows, strict=True):
                self._train_seed(reports, rows, rounds)
        except Diverged:
            self.score = math.nan
        else:
            scored = [reported_scores(self.prepared, rows) for rows in self.rows]
            self.score = sum(score for score, _ in scored) / len(scored)
            self.clients = [clients for _, clients in scored]
        if math.isfinite(self.score):
            self.curve[self.round] = self.score
        self.seconds += time.perf_counter() - start

    def _train_seed(self, reports: Iterator[Report], rows: list[list[float]], rounds: int) -> None:
        for report in reports:
            self.round = report.round
            if report.scores:
                rows.append(report.scores[self.prepared.point]["val"].tolist())
                if report.round >= rounds:
                    break

    def close(self) -> None:
        """Give up the memory of the training."""
        for reports in self.reports:
            reports.close()

    def record(self, finished: bool) -> dict[str, Any]:
        score = self.score if math.isfinite(self.score) else None
        return {
            "params": {RATE: self.value},
            "value": score if finished else None,
            "reached": score,
            "rounds": self.round,
            "curve": {str(step): value for step, value in self.curve.items()},
            "started": self.started,
            "seconds": self.seconds,
        }


def _search(search: RateSearch, show: Callable[[int], None]) -> dict[str, Any]:
    study, key = search.study, search.key
    trials = [_Trial(search, value) for value in search_spaces.entries(study, key)[RATE]["choices"]]
    higher = trials[0].prepared.method.task.score_metric.higher_is_better
    rounds = study.tune.share * trials[0].prepared.rounds
    for trial in trials:
        trial.train(math.ceil(rounds / 2))
    # The sort is stable: of equal scores, the value nearest to the declared one is first.
    ranked = sorted(_finite(trials), key=lambda trial: -trial.score if higher else trial.score)
    finalists = [trial for trial in trials if trial in ranked[: math.ceil(len(trials) / 2)]]
    for trial in trials:
        if trial not in finalists:
            trial.close()
    show(len(finalists))
    for ended, trial in enumerate(finalists, 1):
        trial.train(math.ceil(rounds))
        trial.close()
        show(len(finalists) - ended)
    best = _choose(_finite(finalists), higher)
    return {
        "run": key,
        "best": {RATE: study.run(key).train.lr if best is None else best.value},
        "budget": study.tune.budget,
        "spaces": search_spaces.describe_search(study, key),
        "maximize": higher,
        "importance": {},
        "trials": [trial.record(trial in finalists) for trial in trials],
    }


def _finite(trials: list[_Trial]) -> list[_Trial]:
    return [trial for trial in trials if math.isfinite(trial.score)]


def _choose(trials: list[_Trial], higher_is_better: bool) -> _Trial | None:
    """The first of `trials` that is not worse than the best one by more than noise; None without any."""
    return choose_first(trials, attrgetter("score"), attrgetter("clients"), higher_is_better) if trials else None
