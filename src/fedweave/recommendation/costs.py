"""What a recommendation will cost, and what fits into its budget of time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedweave.api.plan import Plan
from fedweave.api.progress import measure_rounds, one_thread
from fedweave.errors import BadInput
from fedweave.recommendation import race
from fedweave.recommendation.candidates import CONTROLS, Candidate
from fedweave.recommendation.finals import SHARES
from fedweave.runs import repetition
from fedweave.runs.parallel import allocate_workers

TIMED = 3  # rounds behind the estimate for a method, of which the fastest counts
OVERHEAD = 0.4  # seconds of a run besides its rounds: preparation, processes, files
FEWEST = 5  # rounds; a budget that allows fewer is refused
MARGIN = 0.9  # of the budget that may be planned


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
        """What a budget decides, in the order in which schedules grow: settings are cut before rounds."""
        return self.rounds, self.settings


@dataclass(frozen=True)
class Costs:
    """Seconds of one round by entry, on one core.

    Attributes:
        entries: what races.
        rounds: entry -> seconds of a round.
        workers: repetitions that run at once.
    """

    entries: Mapping[str, Candidate]
    rounds: Mapping[str, float]
    workers: int

    def rung_seconds(self, entries: Sequence[str], candidates: int, rounds: int) -> float:
        """Seconds of a rung with so many candidates of each entry."""
        waves = math.ceil(len(race.SEEDS) / self.workers)
        return sum(candidates * (self.rounds[name] * rounds * waves + OVERHEAD) for name in entries)

    def final_seconds(self, schedule: Schedule) -> float:
        """Seconds of the last comparison and of the learning curve, of the dearest entries that may get there."""
        waves = math.ceil(len(schedule.seeds) / self.workers)
        controls = [self.rounds[name] for name, one in self.entries.items() if one.method in CONTROLS]
        others = sorted(
            (t for name, t in self.rounds.items() if self.entries[name].method not in CONTROLS), reverse=True
        )
        pooled = max(controls, default=0.0)
        trained = [*controls, *others[: race.LEAST], pooled, *others[:1] * 2]
        curve = len(SHARES) * max([*controls, *others[:1]], default=0.0)
        runs = len(trained) + len(SHARES)
        return (sum(trained) + curve) * schedule.rounds * waves + runs * OVERHEAD

    def total_seconds(self, schedule: Schedule) -> float:
        """Seconds of everything."""
        spent, candidates = self.final_seconds(schedule), schedule.settings
        entries = [*self.entries]
        for rung_share in schedule.rungs:
            spent += self.rung_seconds(entries, candidates, math.ceil(rung_share * schedule.rounds))
            candidates = math.ceil(candidates / 2)
            others = [name for name in entries if self.entries[name].method not in CONTROLS]
            left = others[: max(race.LEAST, math.ceil(len(others) / 2))]
            entries = [name for name in entries if name not in others or name in left]
        return spent


def measure(made: Plan, entries: Mapping[str, Candidate]) -> Costs:
    """Costs from a few rounds of every entry on one core; `made` has a run for each."""
    seconds, workers = dict[str, float](), 1
    with one_thread():
        for name in entries:
            run = made.study.run(f"{made.federation.name}-{name}")
            bench = repetition.prepare(run, *made.inputs)
            workers, _ = allocate_workers(bench.method.network, len(race.SEEDS), bench.device, bench.federation.clients)
            fastest = min(measure_rounds(bench, race.SEEDS[0], TIMED), default=0.0)
            seconds[name] = fastest * bench.rounds / run.train.rounds
    return Costs(entries, seconds, workers)


def fit_schedule(costs: Costs, wanted: Schedule, limit: float) -> Schedule:
    """The largest part of `wanted` that fits into `limit` seconds: fewer settings first, then fewer rounds.

    Raises:
        BadInput: not even a few rounds fit.
    """
    allowed = MARGIN * limit
    for settings in range(wanted.settings, 0, -1):
        schedule = replace(wanted, settings=settings)
        if costs.total_seconds(schedule) <= allowed:
            return schedule
    for rounds in range(wanted.rounds - 1, FEWEST - 1, -1):
        if costs.total_seconds(replace(schedule, rounds=rounds)) <= allowed:
            return replace(schedule, rounds=rounds)
    needed = costs.total_seconds(replace(schedule, rounds=min(FEWEST, wanted.rounds))) / MARGIN
    raise BadInput(
        f"budget: {limit:.0f} s is too little; {len(costs.entries)} methods need at least {needed:.0f} s here"
    )
