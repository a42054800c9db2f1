"""Progress of a comparison: a bar, an estimate of its duration, and records for callbacks."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedweave.engine.records import Report
from fedweave.errors import Diverged, format_count
from fedweave.processes.forks import one_thread
from fedweave.runs import repetition
from fedweave.runs.selection import finite_mean
from fedweave.study import search_spaces
from fedweave.study.spec import StudySpec

TIMED_ROUNDS = 2  # rounds behind an estimate; the first one also warms up


@dataclass(frozen=True, eq=False)
class Progress:
    """What a callback gets after every evaluated round.

    Attributes:
        method: name of the method in the comparison.
        seed, round, rounds: of the repetition.
        loss: mean training loss of the round.
        seconds: of training in the round.
        val: validation value of each client [N] at the reported point. Test values stay out of reach until the end.
    """

    method: str
    seed: int
    round: int
    rounds: int
    loss: float
    seconds: float
    val: np.ndarray | None


Callback = Callable[[Progress], None]


class ProgressBar:
    """A progress bar over rounds, which also calls the callbacks."""

    def __init__(self, visible: bool, total: int, callbacks: Sequence[Callback]) -> None:
        from tqdm import tqdm

        self.callbacks = tuple(callbacks)
        self.bar = tqdm(total=total, unit="round", disable=not visible, dynamic_ncols=True, mininterval=0.5)
        self.last_rounds: dict[int, int] = {}  # seed -> last round of a repetition of the current method

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        if not self.bar.disable:
            self.bar.write(line)

    def show_tuning(self, ended: int, trials: int) -> None:
        """Show how many trials have ended; searches come before the rounds."""
        self.bar.set_description(f"tuning: {ended} of {format_count(trials, 'trial')}")

    def start_method(self, method: str, extra: int) -> None:
        """The next method starts; it takes `extra` rounds more than planned."""
        self.bar.set_description(method)
        self.bar.total += extra
        self.last_rounds = {}

    def end_method(self, rounds: int, seeds: Sequence[int]) -> None:
        """All repetitions of the method have ended; those that an earlier call finished have reported nothing."""
        self.bar.update(sum(rounds - self.last_rounds.get(seed, 0) for seed in seeds))

    def receive(self, progress: Progress) -> None:
        """Count a round that has ended, and pass it on to the callbacks.

        A repetition that continues from a checkpoint begins with a later round.
        """
        self.bar.update(progress.round - self.last_rounds.get(progress.seed, 0))
        self.last_rounds[progress.seed] = progress.round
        if progress.val is not None:
            if math.isfinite(value := finite_mean(progress.val)):
                self.bar.set_postfix_str(f"validation {value:.4g}", refresh=False)
            for callback in self.callbacks:
                callback(progress)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()


def build_reporter(method: str, prepared: repetition.PreparedRun) -> Callable[[int, Report], Progress]:
    """A function that makes a small record of a round, which can be sent between processes."""
    point, rounds = prepared.point, prepared.rounds

    def build_progress(seed: int, report: Report) -> Progress:
        val = report.scores[point]["val"].cpu().numpy() if report.scores else None
        return Progress(method, seed, report.round, rounds, report.loss, report.seconds, val)

    return build_progress


def estimate(prepared: repetition.PreparedRun, study: StudySpec) -> float:
    """Seconds that the runs and the trials of `study` will take, from some rounds of the run that `prepared` holds.

    Methods differ in cost, so this is only the order of magnitude.
    """
    prepared, workers, _ = prepared.share_cores(len(study.seeds))
    with one_thread():
        seconds = measure_rounds(prepared, prepared.run.seeds[0], TIMED_ROUNDS)
    waves = -(-len(study.seeds) // workers)
    last = seconds[-1] if seconds else float("nan")
    return last * prepared.rounds * (len(study.runs) * waves + _count_searches(study) * study.tune.trained_share)


def _count_searches(study: StudySpec) -> int:
    """How many runs have a search: not those whose learning rate the caller gave."""
    return sum(search_spaces.has_search(study, key) for key in study.runs)


def measure_rounds(prepared: repetition.PreparedRun, seed: int, count: int) -> list[float]:
    """Seconds of each of the first `count` rounds with their evaluation; fewer where training diverges."""
    seconds, reports = [], repetition.iterate_reports(prepared, seed)
    for _ in range(min(count, prepared.rounds)):
        start = time.perf_counter()
        try:
            next(reports)
        except Diverged:
            break
        seconds.append(time.perf_counter() - start)
    return seconds


def format_duration(seconds: float) -> str:
    """An approximate duration in words.

    >>> format_duration(4), format_duration(700), format_duration(9000)
    ('a few seconds', 'about 12 min', 'about 2.5 h')
    """
    if not seconds >= 0:
        return "for a time that cannot be estimated"
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def heading(study: StudySpec, seconds: float) -> str:
    """The line before a comparison runs."""
    searches = _count_searches(study)
    noun = "learning rate" if study.tune.sampler == search_spaces.RATES else "trial"
    which = "each" if searches == len(study.runs) else f"for {searches} of them"
    tuning = f", {format_count(study.tune.trials, noun)} {which}" if searches else ""
    methods, seeds = format_count(len(study.runs), "method"), format_count(len(study.seeds), "seed")
    return f"{methods} x {seeds}{tuning}: {format_duration(seconds)}"
