"""From a federation to a recommendation in one call: a race on validation rows, the last comparison, the answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import data, results
from fedweave.comparison import margins
from fedweave.comparison.call_arguments import check_callbacks
from fedweave.comparison.plan import Methods, default_search
from fedweave.comparison.progress import Callback, format_duration
from fedweave.comparison.results_folder import check_description, results_folder
from fedweave.comparison.warnings import name_class
from fedweave.errors import BadInput, format_count
from fedweave.methods import METHODS
from fedweave.metrics import Margin
from fedweave.own_data.argument_checks import as_python
from fedweave.own_data.federation import Federation, check_federation
from fedweave.recommendation import answers, budget, candidates, costs, finals, race, sentences
from fedweave.recommendation import result as results_of
from fedweave.recommendation.candidates import CONTROLS, Candidate
from fedweave.recommendation.costs import Schedule
from fedweave.recommendation.journal import Journal
from fedweave.recommendation.result import Recommendation
from fedweave.recommendation.subsets import drop_test_rows
from fedweave.report.answers import explain_under_training
from fedweave.results.rescoring import reason_without_predictions
from fedweave.results.verdicts import reason_without_power
from fedweave.study import search_spaces

NOT_RACED = "{} brings its own code: it has no rounds to race with, and its time is beside the budget"


def recommend(
    federation: Federation,
    methods: Methods | None = None,
    *,
    budget: Any = "10min",
    traffic: Any = None,
    model: Any = None,
    head: str | None = None,
    adapter: str | Mapping[str, Any] | None = None,
    rounds: int = 50,
    seeds: int = 3,
    settings: int | None = None,
    metric: Any = None,
    margin: float | str | None = None,
    out: Path | str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **train: Any,
) -> Recommendation:
    """Should these clients collaborate, with which method, and what should each of them deploy?

    Methods race on validation rows: a quarter of the rounds with all settings, then half of the rounds with the better
    ones. The finalists and the controls (Local, FedAvg, FedAvg-FT, a model on pooled rows, rules, and what an analyst
    would fit) are trained with new seeds and judged once on test rows.

    Args:
        federation: the clients and their data; every client needs validation rows.
        methods: as in `compare`; default: one or two of each family. The controls are always there. Contestants are
            not in the race; they stand in the last comparison with their predictions, and their time is not counted.
        budget: of time: seconds, or a text such as "10min" or "2h"; None for no limit. A smaller one means fewer
            settings, then fewer rounds.
        traffic: bytes that a training of all rounds may send, such as "200MB"; methods above it drop out.
        model, head, adapter, metric, margin, train: as in `compare`.
        rounds: of a full training.
        seeds: repetitions of the last comparison; with one or two there is no verdict on methods, and Local is
            recommended.
        settings: candidates of each method. None: five learning rates, unless `lr` is given. A number: the declared
            settings, and others that Optuna draws; 1: no search.
        out: folder for the results; default: one that goes with the returned object. A second call with the same folder
            and arguments trains nothing again. Runs of other calls that are there must have been trained on the terms
            of the last comparison, as in `compare`.
        progress: show the progress, with estimates.
        callbacks: as in `compare`.

    Raises:
        BadInput: one line that names what is wrong, before any training.
        Diverged: every method diverged.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> x = draws.normal(size=(240, 3))
    >>> federation = Federation.from_arrays(x, x.sum(1) > 0, client=["Ann", "Bob", "Cy", "Di"] * 60)
    >>> advice = recommend(federation, ["ditto"], rounds=4, seeds=1, settings=1, progress=False)
    >>> advice.answer in ("local", "common", "groups", "personal")
    True
    """
    check_callbacks(callbacks)
    request = _check_arguments(locals())
    with results_folder(out) as (folder, temporary):
        recommender = Recommender(federation, request, folder, progress, tuple(callbacks))
        return recommender.run(temporary)


def _explain_missing_graph_tests(answer: answers.Answers, comparison: finals.FinalComparison) -> list[str]:
    """Why the graph that is shown was compared with no other; empty if it was, or if there is none."""
    if answer.tests or answer.graph is None:
        return []
    compared = [name for name in comparison.runs if f"{name}-{candidates.GRAPHS[0]}" in comparison.runs]
    if compared:
        return [f"the graph of {answer.graph_method} was compared with no other; that of {compared[0]} was"]
    return [f"{answer.graph_method} cannot be trained with another graph, so its graph was compared with none"]


@dataclass(frozen=True)
class RaceRequest:
    """The checked arguments of `recommend`.

    Attributes:
        entries: the methods of the race.
        contestants: code from elsewhere; it is not in the race, but in the last comparison.
        options: arguments of `plan`, without seeds and rounds.
        train: settings of training, rounds among them.
        seconds, bytes: budgets.
        schedule: what is trained if the budget allows it.
        rates: whether candidates of a method differ in the learning rate alone.
        margin: of practical equivalence; None for that of the folder, or else the default.
        notes: what the user must know.
    """

    entries: Mapping[str, Candidate]
    contestants: list[Candidate]
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    seconds: float
    bytes: float
    schedule: Schedule
    rates: bool
    margin: Margin | None
    notes: list[str] = field(default_factory=list)


def _check_arguments(arguments: Mapping[str, Any]) -> RaceRequest:
    """The arguments of `recommend`, checked."""
    federation = arguments["federation"]
    check_federation(federation, "recommend()")
    if len(data.splits(federation.partition_block)) > 1:
        raise BadInput("federation: it has several splits, and their clients differ; give `seed` in place of `seeds`")
    numbers = ("rounds", "seeds", "settings", "budget", "traffic", "train")
    arguments = {**arguments, **{name: as_python(arguments[name]) for name in numbers}}
    rates = arguments["settings"] is None
    if rates:
        arguments["settings"] = 1 if "lr" in arguments["train"] else search_spaces.RATE_COUNT
    for name in ("rounds", "seeds", "settings"):
        if type(arguments[name]) is not int or arguments[name] < 1:
            raise BadInput(f"{name}: {arguments[name]!r} must be a whole number, at least 1")
    margin = None if arguments["margin"] is None else margins.check_margin(arguments["margin"], arguments["metric"])
    max_seconds, max_bytes = budget.seconds(arguments["budget"]), budget.size(arguments["traffic"])
    schedule = Schedule(arguments["settings"], arguments["rounds"], tuple(range(arguments["seeds"])))
    options = {name: arguments[name] for name in ("model", "head", "adapter", "metric")} | {"name": "recommendation"}
    train = {"rounds": arguments["rounds"], **arguments["train"]}
    entries = candidates.entries(arguments["methods"])
    refused = candidates.incompatible_entries(federation, entries, {**options, "seeds": schedule.seeds, "train": train})
    if arguments["methods"] is not None and refused:
        raise BadInput(next(iter(refused.values())))
    entries = {name: candidate for name, candidate in entries.items() if name not in refused}
    notes = [f"left out: {reason}" for reason in refused.values()]
    contestants = [candidate for candidate in entries.values() if not METHODS[candidate.method].has_models]
    notes += [NOT_RACED.format(candidate.name) for candidate in contestants]
    entries = {name: candidate for name, candidate in entries.items() if candidate not in contestants}
    return RaceRequest(entries, contestants, options, train, max_seconds, max_bytes, schedule, rates, margin, notes)


@dataclass(frozen=True, eq=False)
class Recommender:
    """One call of `recommend`.

    Attributes:
        federation: all data; the race and the learning curve use a copy without test rows.
        request: the arguments.
        folder: of the results.
        progress, callbacks: as of `compare`.
    """

    federation: Federation
    request: RaceRequest
    folder: Path
    progress: bool
    callbacks: tuple[Callback, ...]

    def run(self, temporary: Any) -> Recommendation:
        """Run everything from the race to the files."""
        race_federation, work = drop_test_rows(self.federation), self.folder / results_of.FOLDER
        journal = Journal.open(work, self._identity())
        notes = [*self.request.notes, *self.federation.notes, *self.federation.small_clients()]
        self._check_folder(journal.schedule or self.request.schedule)
        schedule = self._decide_schedule(race_federation, journal, notes)
        self._check_folder(schedule)  # again, as a budget may have changed the number of rounds
        options = self._final_options(schedule)
        with journal.add_duration():
            finalists, table = self._run_race(race_federation, journal, schedule, options["train"])
        with journal.add_duration():
            finalists += self.request.contestants
            graph_controls = next(filter(None, map(candidates.graph_controls, finalists)), [])
            trained = [*finalists, *graph_controls]
            counts = ((len(trained), "method"), (schedule.rounds, "round"), (len(schedule.seeds), "seed"))
            self._print_line(f"last comparison: {', '.join(format_count(*one) for one in counts)}")
            comparison = finals.compare_finalists(
                self.federation, trained, options, self.folder, self.progress, self.callbacks, self.request.margin
            )
            entered = len(self.request.entries) + len(self.request.contestants)
            answer = answers.answer(comparison, trained, self._local_entry, entered)
            selected = next(candidate for candidate in trained if candidate.name == answer.method)
            self._print_line(f"learning curve of {answer.method}: a half and a quarter of the training rows")
            run = comparison.runs[answer.method]
            rows = finals.learning_curve(race_federation, selected, options, work / "rows", run, self.progress)
        seconds = round(journal.spent_seconds, 1)
        facts = {"settings": {**selected.settings}, "rounds": schedule.rounds, "seeds": [*schedule.seeds]}
        self._write_files(answer, comparison, table, rows, {**facts, "seconds": seconds, "notes": notes})
        return Recommendation.load(self.folder, temporary)

    @property
    def _local_entry(self) -> str:
        """The entry that is local training."""
        return next(name for name, candidate in self.request.entries.items() if candidate.method == CONTROLS[0])

    def _final_options(self, schedule: Schedule) -> dict[str, Any]:
        """Arguments of `plan` for the last comparison."""
        train = {**self.request.train, "rounds": schedule.rounds}
        # The finalists have their rates from the race. A model on the pooled rows, which is not in it, has a search.
        tune = default_search(self.federation, train) if self.request.rates and schedule.settings > 1 else 0
        return {**self.request.options, "seeds": schedule.seeds, "train": train, "tune": tune}

    def _check_folder(self, schedule: Schedule) -> None:
        """Refuse a folder that has runs on other terms than those of the last comparison."""
        entries = [*self.request.entries.values(), *self.request.contestants]
        finals.check_folder(self.federation, entries, self._final_options(schedule), self.folder)

    def _identity(self) -> dict[str, Any]:
        """What the results depend on, without the budget of time, which may grow from call to call.

        Raises:
            BadInput: the folder holds runs of other data under this name.
        """
        request, data_hash = self.request, json.loads(check_description(self.federation, self.folder))["content"]
        options = self._final_options(request.schedule)
        plan = candidates.build_plan(self.federation, [*request.entries.values(), *request.contestants], options)
        runs = {key: [plan.study.run(key).fingerprint(), plan.hash_code(key)] for key in plan.study.runs}
        identity = {"data": data_hash, "runs": runs, "bytes": request.bytes, "schedule": asdict(request.schedule)}
        return {**identity, "rates": True} if request.rates else identity

    def _decide_schedule(self, race_federation: Federation, journal: Journal, notes: list[str]) -> Schedule:
        """What is trained: the schedule of an earlier call, unless a larger budget allows more."""
        wanted, earlier = self.request.schedule, journal.schedule
        if earlier is None or (earlier.size < wanted.size and self.request.seconds > journal.budget):
            affordable, estimate = self._estimate_schedule(race_federation, journal)
            schedule = affordable if earlier is None or affordable.size > earlier.size else earlier
            seconds = estimate if schedule is affordable else journal.estimate
            journal.record_schedule(schedule, seconds, self.request.seconds)
        schedule = journal.schedule or wanted
        limit = "no limit" if np.isinf(self.request.seconds) else f"a budget of {self.request.seconds / 60:.3g} min"
        if schedule.size != wanted.size:
            rounds = f"{schedule.rounds} of {format_count(wanted.rounds, 'round')}"
            settings = f"{schedule.settings} of {format_count(wanted.settings, 'setting')}"
            notes.append(f"the budget allowed {rounds} and {settings} of each method")
        methods, each = format_count(len(self.request.entries), "method"), format_count(schedule.settings, "setting")
        rounds, duration = format_count(schedule.rounds, "round"), format_duration(journal.estimate)
        self._print_line(f"{methods} with {each} each, {rounds}: {duration}, with {limit}")
        return schedule

    def _estimate_schedule(self, race_federation: Federation, journal: Journal) -> tuple[Schedule, float]:
        """What the budget allows, from a few rounds of every method, and the seconds that it will take."""
        options = {**self.request.options, "seeds": race.SEEDS, "train": self.request.train}
        with journal.add_duration():
            plan = candidates.build_plan(race_federation, [*self.request.entries.values()], options)
            measured = costs.measure(plan, self.request.entries)
        if not self.request.rates:  # Optuna draws the settings of the race; the model on pooled rows has no search
            measured = replace(measured, search=0.0)
        schedule = costs.fit_schedule(measured, self.request.schedule, self.request.seconds)
        return schedule, measured.total_seconds(schedule)

    def _run_race(
        self, race_federation: Federation, journal: Journal, schedule: Schedule, train: Mapping[str, Any]
    ) -> tuple[list[Candidate], pd.DataFrame]:
        """(finalists and controls with their best settings, the table of all rungs)."""
        request, work = self.request, self.folder / results_of.FOLDER
        options = {**request.options, "seeds": race.SEEDS, "train": train}
        plan = candidates.build_plan(race_federation, [*request.entries.values()], options)
        propose = candidates.propose_rates if request.rates else candidates.propose
        remaining = propose(plan, [*request.entries.values()], schedule.settings)
        contest = race.Race(
            race_federation, request.options, train, work, request.bytes, request.rates, self.progress, self.callbacks
        )
        tables: list[pd.DataFrame] = []
        for number, share in enumerate(schedule.rungs, 1):
            count = format_count(len(remaining), "candidate")
            rounds = format_count(contest.rung_rounds(share), "round")
            self._print_line(f"rung {number} of {len(schedule.rungs)}: {count}, {rounds}")
            outcome = journal.rung_outcome(number)
            if outcome is None:
                outcome = contest.train_rung(number, share, remaining)
                journal.record_rung(number, *outcome)
            remaining = [candidate for candidate in remaining if candidate.name in outcome[0]]
            tables.append(outcome[1])
        finalists = race.best_candidates(remaining, tables[-1])
        rivals = [candidate for candidate in finalists if candidate.method not in CONTROLS][: race.MIN_METHODS]
        chosen = [candidate for candidate in finalists if candidate.method in CONTROLS or candidate in rivals]
        return chosen, pd.concat(tables, ignore_index=True)

    def _write_files(
        self,
        answer: answers.Answers,
        comparison: finals.FinalComparison,
        table: pd.DataFrame,
        rows: pd.DataFrame,
        facts: Mapping[str, Any],
    ) -> None:
        """Write the answers in sentences and tables; `facts` are those of the call."""
        run, study = comparison.runs[answer.method], comparison.study
        metric, higher, slope = str(run.info["metric"]), run.higher_is_better, finals.slope(run)
        scores, rules = results.clients(study), results.controls(study)
        board = results.board(study, scores)
        control = results.name_unbeaten_control(rules, board)
        under_trained = explain_under_training(board, rules, study.margin(metric))
        lines = sentences.lines(answer, metric, higher, rows, slope, control, under_trained)
        notes = [*facts["notes"], *_explain_missing_graph_tests(answer, comparison), *name_class(study)]
        if no_power := reason_without_power([*comparison.runs.values()], scores):
            notes.append(no_power)
        if reason := reason_without_predictions(run):
            notes.append(f"nothing is shown of single clients, as their predictions are not stored ({reason})")
        about = {"metric": metric, "higher_is_better": higher, "slope": [*slope], "under_trained": under_trained}
        results_of.write(self.folder, answer, lines, table, rows, {**facts, **about, "notes": notes})

    def _print_line(self, line: str) -> None:
        if self.progress:
            from tqdm import tqdm

            tqdm.write(line)
