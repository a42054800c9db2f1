"""The estimated time of a recommendation, and the schedule that fits into its budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fedweave.comparison.plan import Plan
from fedweave.comparison.progress import measure_rounds
from fedweave.errors import BadInput, format_count
from fedweave.processes.forks import one_thread
from fedweave.recommendation import race
from fedweave.recommendation.candidates import CONTROLS, Candidate
from fedweave.recommendation.finals import SHARES
from fedweave.runs import repetition

TIMED_ROUNDS = 3  # that are measured for each method; the median counts, as the first one is slow
OVERHEAD = 0.4  # seconds of a run beside its rounds, for preparation, processes and files
MIN_ROUNDS = 5  # a budget that allows fewer is refused
POOLED_SEARCH = 2  # trainings that five rates are worth: a quarter of the rounds, and three of them to half
MARGIN = 0.9  # share of the budget that may be planned


@dataclass(frozen=True)
class Schedule:
    """How much is trained.

    Attributes:
        settings: candidates of each method.
        rounds: of a full training.
        seeds: of the last comparison.
        rungs: share of the rounds that each rung trains.
    """

    settings: int
    rounds: int
    seeds: tuple[int, ...]
    rungs: tuple[float, ...] = race.SHARES

    @property
    def size(self) -> tuple[int, int]:
        """(rounds, settings), which a budget decides. Schedules compare like these: settings are cut before rounds."""
        return self.rounds, self.settings


@dataclass(frozen=True)
class Costs:
    """Seconds of one round by entry, on one core.

    Attributes:
        entries: the methods of the race.
        round_seconds: entry -> seconds of a round.
        workers: repetitions that run at the same time.
        search: trainings that the search for the rate of the model on pooled rows is worth, where settings differ.
    """

    entries: Mapping[str, Candidate]
    round_seconds: Mapping[str, float]
    workers: int
    search: float = POOLED_SEARCH

    def rung_seconds(self, entries: Sequence[str], candidates: int, rounds: int) -> float:
        """Seconds of a rung with `candidates` candidates of each entry."""
        waves = math.ceil(len(race.SEEDS) / self.workers)
        return sum(candidates * (self.round_seconds[name] * rounds * waves + OVERHEAD) for name in entries)

    def final_seconds(self, schedule: Schedule) -> float:
        """Seconds of the last comparison and of the learning curve, for the slowest entries that can be finalists."""
        waves = math.ceil(len(schedule.seeds) / self.workers)
        controls = [self.round_seconds[name] for name, one in self.entries.items() if one.method in CONTROLS]
        others = [t for name, t in self.round_seconds.items() if self.entries[name].method not in CONTROLS]
        others.sort(reverse=True)
        pooled = max(controls, default=0.0)
        trained = [*controls, *others[: race.MIN_METHODS], pooled, *others[:1] * 2]
        curve = len(SHARES) * max([*controls, *others[:1]], default=0.0)
        runs = len(trained) + len(SHARES)
        search = pooled * self.search * schedule.rounds if schedule.settings > 1 else 0.0
        return (sum(trained) + curve) * schedule.rounds * waves + search + runs * OVERHEAD

    def total_seconds(self, schedule: Schedule) -> float:
        """Seconds of everything, if the slowest methods continue after every rung."""
        total, candidates = self.final_seconds(schedule), schedule.settings
        entries = [*self.entries]
        for rung_share in schedule.rungs:
            total += self.rung_seconds(entries, candidates, math.ceil(rung_share * schedule.rounds))
            candidates = math.ceil(candidates / 2)
            others = [name for name in entries if self.entries[name].method not in CONTROLS]
            others.sort(key=lambda name: -self.round_seconds[name])
            remaining = others[: max(race.MIN_METHODS, math.ceil(len(others) / 2))]
            entries = [name for name in entries if name not in others or name in remaining]
        return total


def measure(plan: Plan, entries: Mapping[str, Candidate]) -> Costs:
    """Costs from a few rounds of every entry, on the cores of one repetition; `plan` has a run for each."""
    seconds, workers = dict[str, float](), 1
    with one_thread():
        for name in entries:
            run = plan.study.run(f"{plan.federation.name}-{name}")
            prepared, workers, _ = repetition.prepare(run, *plan.inputs).share_cores(len(race.SEEDS))
            rounds = measure_rounds(prepared, race.SEEDS[0], TIMED_ROUNDS)
            seconds[name] = (median(rounds) if rounds else 0.0) * prepared.rounds / run.train.rounds
    return Costs(entries, seconds, workers)


def fit_schedule(costs: Costs, wanted: Schedule, limit: float) -> Schedule:
    """The largest part of `wanted` that fits into `limit` seconds: fewer settings first, then fewer rounds.

    Raises:
        BadInput: not even a few rounds fit.
    """
    allowed_seconds = MARGIN * limit
    for settings in range(wanted.settings, 0, -1):
        schedule = replace(wanted, settings=settings)
        if costs.total_seconds(schedule) <= allowed_seconds:
            return schedule
    for rounds in range(wanted.rounds - 1, MIN_ROUNDS - 1, -1):
        if costs.total_seconds(replace(schedule, rounds=rounds)) <= allowed_seconds:
            return replace(schedule, rounds=rounds)
    needed_seconds = costs.total_seconds(replace(schedule, rounds=min(MIN_ROUNDS, wanted.rounds))) / MARGIN
    needed = f"{format_count(len(costs.entries), 'method')} need at least {needed_seconds:.0f} s here"
    raise BadInput(f"budget: {limit:.0f} s is too little; {needed}; give more, or list fewer methods")
