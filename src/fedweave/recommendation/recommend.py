"""One call from a federation to a recommendation: a race on validation rows, the last comparison, the answers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import data
from fedweave.api.federation import Federation
from fedweave.api.folder import hash_content, results_folder
from fedweave.api.plan import Methods
from fedweave.api.progress import Callback, format_duration
from fedweave.errors import BadInput
from fedweave.recommendation import answers, budget, candidates, costs, finals, race, sentences
from fedweave.recommendation import result as results_of
from fedweave.recommendation.candidates import CONTROLS, Candidate
from fedweave.recommendation.costs import Schedule
from fedweave.recommendation.journal import Journal
from fedweave.recommendation.result import Recommendation
from fedweave.recommendation.subsets import drop_test_rows


def recommend(
    federation: Federation,
    methods: Methods | None = None,
    *,
    budget: Any = "10min",
    traffic: Any = None,
    model: Any = None,
    head: str | None = None,
    rounds: int = 50,
    seeds: int = 3,
    settings: int = 3,
    metric: Any = None,
    out: Path | str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **train: Any,
) -> Recommendation:
    """Should these clients collaborate, with which method, and what should each of them deploy?

    Methods race on validation rows: a quarter of the rounds with all settings, then half of the rounds with the better
    ones. The finalists and the controls (Local, FedAvg, FedAvg-FT, a model on pooled rows, rules without a model) are
    trained with new seeds and judged once on test rows.

    Args:
        federation: the clients and their data; every client needs validation rows.
        methods: as in `compare`; default: one or two of each family. The controls are always there.
        budget: of time: seconds, or a text such as "10min" or "2h"; None for no limit. A smaller one means fewer
            settings, then fewer rounds.
        traffic: bytes that a training of all rounds may send, such as "200MB"; methods above it drop out.
        model, head, metric, train: as in `compare`.
        rounds: of a full training.
        seeds: repetitions of the last comparison.
        settings: candidates of each method: its declared settings, and others that Optuna draws.
        out: folder for the results; default: one that goes with the returned object. A second call with the same folder
            and arguments trains nothing again.
        progress: show what is going on, with estimates.
        callbacks: as in `compare`.

    Raises:
        BadInput: one line that names what is wrong, before any training.
        Diverged: no method got anywhere.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> x = draws.normal(size=(240, 3))
    >>> federation = Federation.from_arrays(x, x.sum(1) > 0, client=["Ann", "Bob", "Cy", "Di"] * 60)
    >>> advice = recommend(federation, ["ditto"], rounds=4, seeds=1, settings=1, progress=False)
    >>> advice.answer in ("local", "common", "groups", "personal")
    True
    """
    request = _check_arguments(locals())
    with results_folder(out) as (folder, temporary):
        call = Recommender(federation, request, folder, progress, tuple(callbacks))
        return call.run(temporary)


@dataclass(frozen=True)
class Request:
    """The checked arguments of `recommend`.

    Attributes:
        entries: what races.
        options: of `plan`, without seeds and rounds.
        train: settings of training, rounds among them.
        seconds, bytes: budgets.
        schedule: what is trained if the budget allows it.
        notes: what the user must know.
    """

    entries: Mapping[str, Candidate]
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    seconds: float
    bytes: float
    schedule: Schedule
    notes: list[str] = field(default_factory=list)


def _check_arguments(arguments: Mapping[str, Any]) -> Request:
    """The arguments of `recommend`, checked."""
    federation = arguments["federation"]
    if not isinstance(federation, Federation):
        raise BadInput(
            f"recommend(): {type(federation).__name__} is no federation; make one with Federation.from_arrays"
        )
    if len(data.splits(federation.dealt)) > 1:
        raise BadInput("federation: it has several splits, and their clients differ; give `seed` in place of `seeds`")
    for name in ("rounds", "seeds", "settings"):
        if type(arguments[name]) is not int or arguments[name] < 1:
            raise BadInput(f"{name}: {arguments[name]!r} must be a whole number, at least 1")
    limit, most = budget.seconds(arguments["budget"]), budget.size(arguments["traffic"])
    schedule = Schedule(arguments["settings"], arguments["rounds"], tuple(range(arguments["seeds"])))
    options = {name: arguments[name] for name in ("model", "head", "metric")} | {"name": "recommendation"}
    train = {"rounds": arguments["rounds"], **arguments["train"]}
    entered = candidates.entries(arguments["methods"])
    refused = candidates.incompatible_entries(federation, entered, {**options, "seeds": schedule.seeds, "train": train})
    if arguments["methods"] is not None and refused:
        raise BadInput(next(iter(refused.values())))
    entered = {name: one for name, one in entered.items() if name not in refused}
    notes = [f"left out: {reason}" for reason in refused.values()]
    return Request(entered, options, train, limit, most, schedule, notes)


@dataclass(frozen=True, eq=False)
class Recommender:
    """One call of `recommend`.

    Attributes:
        federation: all data; the race and the learning curve get `hidden`, which has no test rows.
        request: the arguments.
        folder: of the results.
        progress, callbacks: as of `compare`.
    """

    federation: Federation
    request: Request
    folder: Path
    progress: bool
    callbacks: tuple[Callback, ...]

    def run(self, temporary: Any) -> Recommendation:
        """Everything from the race to the files."""
        hidden, work = drop_test_rows(self.federation), self.folder / results_of.FOLDER
        journal = Journal.open(work, self._identity())
        notes = [*self.request.notes]
        schedule = self._decide_schedule(hidden, journal, notes)
        train = {**self.request.train, "rounds": schedule.rounds}
        options = {**self.request.options, "seeds": schedule.seeds, "train": train}
        with _add_duration(journal):
            finalists, table = self._run_race(hidden, journal, schedule, train, notes)
        with _add_duration(journal):
            weaver = next((woven for one in finalists if (woven := candidates.graph_controls(one))), [])
            entered = [*finalists, *weaver]
            self._print_line(
                f"last comparison: {len(entered)} methods, {schedule.rounds} rounds, {len(schedule.seeds)} seeds"
            )
            done = finals.compare_finalists(
                self.federation, entered, options, self.folder, self.progress, self.callbacks
            )
            answer = answers.answer(done, entered, self._local_entry)
            picked = next(one for one in entered if one.name == answer.method)
            self._print_line(f"learning curve of {answer.method}: a half and a quarter of the training rows")
            rows = finals.learning_curve(hidden, picked, options, work / "rows", done.runs[picked.name], self.progress)
        return self._write_files(answer, done, table, rows, picked, schedule, journal, notes, temporary)

    @property
    def _local_entry(self) -> str:
        """The entry that is local training."""
        return next(name for name, one in self.request.entries.items() if one.method == CONTROLS[0])

    def _identity(self) -> dict[str, Any]:
        """What the results depend on, without the budget of time, which may grow from call to call."""
        request, content_of = self.request, hash_content(self.federation.dataset, self.federation.partition)
        options = {**request.options, "seeds": request.schedule.seeds, "train": request.train}
        made = candidates.build_plan(self.federation, [*request.entries.values()], options)
        runs = {key: [made.study.run(key).fingerprint(), made.hash_code(key)] for key in made.study.runs}
        return {"data": content_of, "runs": runs, "bytes": request.bytes, "schedule": asdict(request.schedule)}

    def _decide_schedule(self, hidden: Federation, journal: Journal, notes: list[str]) -> Schedule:
        """What is trained: as an earlier call has decided, unless the budget has grown and allows more."""
        planned, before = self.request.schedule, journal.schedule
        if before is None or (before.size < planned.size and self.request.seconds > journal.budget):
            made, estimate = self._estimate_schedule(hidden, journal)
            kept = made if before is None or made.size > before.size else before
            journal.record_schedule(kept, estimate if kept is made else journal.estimate, self.request.seconds)
        schedule = journal.schedule or planned
        limit = "no limit" if np.isinf(self.request.seconds) else f"a budget of {format_duration(self.request.seconds)}"
        if schedule.size != planned.size:
            notes.append(
                f"the budget allowed {schedule.rounds} of {planned.rounds} rounds and {schedule.settings} of "
                f"{planned.settings} settings of each method"
            )
        count = f"{len(self.request.entries)} methods with {schedule.settings} settings each"
        self._print_line(f"{count}, {schedule.rounds} rounds: {format_duration(journal.estimate)}, with {limit}")
        return schedule

    def _estimate_schedule(self, hidden: Federation, journal: Journal) -> tuple[Schedule, float]:
        """What the budget allows, from a few rounds of every method, and the seconds that it will take."""
        options = {**self.request.options, "seeds": race.SEEDS, "train": self.request.train}
        with _add_duration(journal):
            made = candidates.build_plan(hidden, [*self.request.entries.values()], options)
            measured = costs.measure(made, self.request.entries)
        schedule = costs.fit_schedule(measured, self.request.schedule, self.request.seconds)
        return schedule, measured.total_seconds(schedule)

    def _run_race(
        self, hidden: Federation, journal: Journal, schedule: Schedule, train: Mapping[str, Any], notes: list[str]
    ) -> tuple[list[Candidate], pd.DataFrame]:
        """(finalists and controls with their best settings, the table of all rungs)."""
        request, work = self.request, self.folder / results_of.FOLDER
        options = {**request.options, "seeds": race.SEEDS, "train": train}
        made = candidates.build_plan(hidden, [*request.entries.values()], options)
        running = candidates.propose(made, [*request.entries.values()], schedule.settings)
        run = race.Race(hidden, request.options, train, work, request.bytes, self.progress, self.callbacks)
        tables: list[pd.DataFrame] = []
        for number, share in enumerate(schedule.rungs, 1):
            self._print_line(
                f"rung {number} of {len(schedule.rungs)}: {len(running)} candidates, {run.rung_rounds(share)} rounds"
            )
            outcome = journal.rung_outcome(number)
            if outcome is None:
                rung = run.train_rung(number, share, running)
                journal.record_rung(number, rung.left, rung.table)
                outcome = [one.name for one in rung.left], rung.table
            running = [one for one in running if one.name in outcome[0]]
            tables.append(outcome[1])
        finalists = race.best_candidates(running, tables[-1])
        rivals = [one for one in finalists if one.method not in CONTROLS][: race.LEAST]
        return [one for one in finalists if one.method in CONTROLS or one in rivals], pd.concat(
            tables, ignore_index=True
        )

    def _write_files(
        self, answer: answers.Answers, done: finals.FinalComparison, table: pd.DataFrame, rows: pd.DataFrame,
        picked: Candidate, schedule: Schedule, journal: Journal, notes: list[str], temporary: Any,
    ) -> Recommendation:  # fmt: skip
        """Write files and page, and read the recommendation from them."""
        run = done.runs[picked.name]
        metric, higher, slope = str(run.info["metric"]), run.higher_is_better, finals.slope(run)
        lines = sentences.lines(answer, metric, higher, rows, slope)
        if not answer.tests and answer.graph is not None:
            notes.append(f"{answer.woven} cannot be trained with another graph, so its graph was compared with none")
        facts = {
            "metric": metric, "higher_is_better": higher, "settings": {**picked.settings}, "slope": [*slope],
            "rounds": schedule.rounds, "seeds": [*schedule.seeds], "seconds": round(journal.spent_seconds, 1),
            "notes": notes,
        }  # fmt: skip
        results_of.write(self.folder, answer, lines, table, rows, facts)
        return Recommendation.load(self.folder, temporary)

    def _print_line(self, line: str) -> None:
        if self.progress:
            from tqdm import tqdm

            tqdm.write(line)


@contextmanager
def _add_duration(journal: Journal) -> Iterator[None]:
    """A part of a call, whose seconds the journal counts."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        journal.add_seconds(time.perf_counter() - begun)
