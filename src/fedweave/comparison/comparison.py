"""Results as objects: tidy tables with the names of clients, tests, figures."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import report, results
from fedweave.comparison.figures import ComparisonPlots
from fedweave.comparison.folder_copies import copy
from fedweave.comparison.leaderboard import explain_words, format_html, format_text, rank_methods, rename_methods
from fedweave.comparison.margins import as_plain, check_margin, set_margin
from fedweave.comparison.method_result import MethodResult, count_evaluated
from fedweave.comparison.paired_test import PairedTest
from fedweave.comparison.user_metrics import register_metric
from fedweave.comparison.warnings import collect_warnings, describe_under_training
from fedweave.errors import BadInput, choose, format_count
from fedweave.own_data.argument_checks import check_folder
from fedweave.own_data.federation import Federation
from fedweave.prediction.input_description import find_partitions, read_description
from fedweave.report.answers import TaskAnswers, answer
from fedweave.report.tuning import describe_rates
from fedweave.results import Run, Study, parts, statistics
from fedweave.results.marks import find_test
from fedweave.results.runs import read_margins

WIDTH = 120  # columns of a printed sentence


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Methods that were trained on the same clients.

    Attributes:
        study: the finished runs.
        lost: a line for each method that diverged in this call.
        temporary: the temporary folder of the results, which is removed with this object.
        model: makes the clients' models, where they have no name.
        federation: the clients, where they are in memory.
        refits: whether models that predict are trained on validation rows too: those of `fit` are as it made them.
    """

    study: Study
    lost: tuple[str, ...] = ()
    temporary: Any = None
    model: Any = None
    federation: Federation | None = None
    refits: bool = True

    def __repr__(self) -> str:
        run = self.study.runs[0]
        where, clients = f"{run.info['dataset']!r}" if self._has_one_task else "several tasks", count_evaluated(run)
        methods, seeds = format_count(len(self.methods), "method"), format_count(len(run.seeds), "seed")
        return f"Comparison of {methods} on {where}: {clients}, {seeds}"

    def __str__(self) -> str:
        board = self.leaderboard()
        rules, find = results.controls(self.study), results.name_unbeaten_control
        lines = (find(rules, self.board), describe_under_training(self, rules)) if self._has_one_task else ()
        first = [part for line in lines if line for part in textwrap.wrap(f"{line[0].upper()}{line[1:]}.", WIDTH)]
        return "\n".join([repr(self), *first, format_text(board, self.controls()), *self._explain(board)])

    def _repr_html_(self) -> str:
        board = self.leaderboard()
        return format_html(board, self.controls()) + "".join(f"<p>{line}</p>" for line in self._explain(board))

    def _explain(self, board: pd.DataFrame) -> list[str]:
        """Lines below a leaderboard: what its words mean, and the learning rates."""
        return [*explain_words(board, self.study), *filter(None, [describe_rates(self.study)])]

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __getitem__(self, method: str) -> MethodResult:
        """The result of one method.

        Raises:
            BadInput: no such method.
        """
        return MethodResult(choose(method, self.runs, "method"), self.runs[method], self)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Name -> run. With several tasks a name begins with that of the task."""
        prefix = f"{self.study.runs[0].task}-" if self._has_one_task else ""
        return {run.name.removeprefix(prefix): run for run in self.study.runs}

    @property
    def _has_one_task(self) -> bool:
        return len({run.task for run in self.study.runs}) == 1

    @cached_property
    def refitted(self) -> dict[tuple[str, int], tuple[Run, str]]:
        """(name of a run, seed) -> (the run whose models predict, what they were trained on), as far as asked for."""
        return {}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(self.runs)

    @property
    def metric(self) -> str:
        """Name of the score."""
        return str(self.study.runs[0].info["metric"])

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients of the first task."""
        return tuple(self.study.runs[0].client_names)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every score: one row per method, seed, client, round, point and split."""
        return pd.concat([self[name].history for name in self.methods], ignore_index=True)

    @property
    def central(self) -> MethodResult | None:
        """The model on the pooled rows of all clients: a control, not federated and not among `methods`; or None."""
        run = next(iter(self.study.pooled), None)
        return None if run is None else MethodResult(str(run.info["method"]), run, self)

    @cached_property
    def selected_scores(self) -> pd.DataFrame:
        """Test score of every run, seed and client at its reported round: the table of `results.clients`."""
        return results.clients(self.study)

    @cached_property
    def board(self) -> pd.DataFrame:
        """Scores and cost of every run without tests, which take longer: the table of `results.board`."""
        return results.board(self.study, self.selected_scores)

    @cached_property
    def _tests(self) -> pd.DataFrame:
        """The tests between the methods: the table of `results.significance`."""
        return results.significance(self.study, self.selected_scores)

    @cached_property
    def _leaderboard(self) -> pd.DataFrame:
        return rank_methods(self.board, self._tests, self.runs)

    def with_margin(self, margin: float | str) -> "Comparison":
        """The same runs, judged by another margin of practical equivalence; nothing is trained, and no file changes.

        Args:
            margin: as in `compare`.

        Raises:
            BadInput: it is no margin, or the results have several metrics.
        """
        return replace(self, study=set_margin(self.study, check_margin(margin, self.metric)))

    def with_metric(self, metric: Any) -> "Comparison":
        """The same runs with scores by another metric, from stored predictions; nothing is trained.

        Every run stays at the round that validation by its own metric chose.

        Args:
            metric: as in `compare`.

        Raises:
            BadInput: an unknown metric, one that does not fit the targets, or no predictions are stored.
        """
        name = register_metric(metric)
        if name is None:
            raise BadInput("metric: None is not a metric; give one, such as 'f1_macro'")
        return replace(self, study=results.rescore(self.study, name))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the numbers may mislead, one line each; with several tasks it begins with its task."""
        tasks = results.by_task(self.study)
        if len(tasks) == 1:
            return (*self.lost, *collect_warnings(self))
        parts = {task: replace(self, study=self.study._replace(runs=tuple(runs))) for task, runs in tasks.items()}
        return (*self.lost, *(f"{task}: {line}" for task, part in parts.items() for line in collect_warnings(part)))

    def controls(self) -> pd.DataFrame:
        """One row per control that is not a method, best first: `kind` "control" or "not federated".

        A rule without a model (most frequent class, training mean, last value) uses the training rows of each client
        and has no seeds. A model on the pooled rows of all clients is what privacy forbids. Neither is ranked or
        tested.
        """
        table = results.controls(self.study)
        return table if table["task"].nunique() > 1 else table.drop(columns=["task", "dataset", "setting"])

    def leaderboard(self) -> pd.DataFrame:
        """One row per method, best first: rank, test score at the round that validation chose, results of tests,
        both evaluation points, spread, cost.

        `low` and `high` are the 95 % interval of the mean. `verdict` is against the leader: "best" (better than all),
        "lead", "equivalent" (within `margin`), "open" (neither a difference nor equivalence is shown), "behind", "no
        verdict" (as with two seeds: `warnings` says why), "diverged", "alone", or "graph control": a method with
        another graph than the one it learns has no rank. `p` is of the difference to the leader, corrected. `vs_local`
        and `vs_fedavg_ft` are there if these controls are: "better", "worse", "equivalent", "open" or "", with the 95 %
        interval of the difference in `vs_local_low` and `vs_local_high`. `pre` and `post` are the means as received and
        after local training, of which `point` is the reported one. `pooled` is the metric of all clients' test rows
        together. `controls` has the rules without a model.
        """
        return self._leaderboard.copy()

    def best(self) -> MethodResult:
        """The method with the best mean validation score at its chosen round; test scores choose nothing.

        One that has diverged with some seed comes after all others.

        Raises:
            BadInput: the results are of several data sets.
        """
        self._check_one_task("best")
        higher = self.study.runs[0].higher_is_better
        return self[results.best_first(results.validation_means(self.runs), higher)[0]]

    @cached_property
    def answers(self) -> TaskAnswers:
        """The answers of the report: which method is best, whether collaboration pays, what to deploy.

        Raises:
            BadInput: the results are of several data sets.
        """
        self._check_one_task("answers")
        tables = results.compute_tables(self.study, find_partitions(self.study.folder))
        return answer(self.study, tables, self.study.runs[0].task)

    def deployed(self) -> MethodResult:
        """The method that the report deploys, by its tests; `best()` where it names none, as with two seeds.

        Raises:
            BadInput: the results are of several data sets.
        """
        label = self.answers.method
        return next((self[name] for name, run in self.runs.items() if run.label == label), None) or self.best()

    def _check_one_task(self, call: str) -> None:
        if not self._has_one_task:
            names = ", ".join(self.methods)
            raise BadInput(f"{call}: the folder has results on several data sets; name one of: {names}")

    def scores(self) -> pd.DataFrame:
        """Test score of every evaluated client (rows) by method (columns), averaged over seeds.

        With several splits, rows are (split, client).
        """
        return pd.DataFrame({name: self[name].scores for name in rename_methods(self.board, self.runs)["method"]})

    def majority(self) -> float | None:
        """Mean accuracy over clients of always naming the client's most frequent training class, in percent.

        Of the first task. None without classes, and where the stages of DVC wrote the results.
        """
        run = self.study.runs[0]
        values = read_description(self.study.folder, run.task).get("majority")
        return None if values is None else float(np.nanmean(np.asarray(values)[run.evaluated_clients]))

    def test(self, method: str, other: str, seed: int | None = None) -> PairedTest:
        """Is one method better than another? The test of the leaderboard, with its correction.

        Against Local and FedAvg-FT it is corrected for the tests of all methods against these two, as in `vs_local` and
        `vs_fedavg_ft`; else for the tests of all pairs, as in `verdict`. `p` is without the correction: it counts if
        you chose these two methods before you saw any scores, and test no other pair.

        Args:
            seed: compare the models of this seed as they are, such as a deployed one and its challenger. They are fixed
                then: the test is over clients alone, has no correction, and says nothing of other seeds. Default: the
                methods, over seeds and clients.

        Raises:
            BadInput: an unknown method, methods of two tasks, or a seed that was not trained.
        """
        pair = [self[name].run for name in (method, other)]
        if pair[0].task != pair[1].task or method == other:
            raise BadInput(f"test: {method!r} and {other!r} must be two methods of one task")
        runs, scores = [run for run in self.study.runs if run.task == pair[0].task], self.selected_scores
        margin = self.study.margin(metric := str(pair[0].info["metric"]))
        if seed is None:
            tests = self._tests[self._tests["task"] == pair[0].task]
            test, count = find_test(tests, *(run.label for run in pair))
        else:
            for name in (method, other):
                self[name].check_seed(seed)
            runs, scores, count = pair, scores[scores["seed"] == seed], 1
            values = parts.scores_by_method(pair, scores)
            labels = pair[0].label, pair[1].label
            (test,) = statistics.compare_pairs(values, [labels], pair[0].higher_is_better, margin, fixed=True)
        return PairedTest(
            **{**asdict(test), "method": method, "other": other},
            tests=count,
            metric=metric,
            clients=len(parts.common_clients(runs, scores)),
            seeds=1 if seed is not None else len(pair[0].seeds),
            splits=1 if seed is not None else len(pair[0].info.get("splits") or [None]),
            counted=parts.describe(runs, scores),
            margin_after_results=margin.after_results,
        )

    @property
    def plot(self) -> ComparisonPlots:
        """Figures."""
        return ComparisonPlots(self)

    def save(self, folder: Path | str) -> Path:
        """Copy the results to `folder`, with the tables as CSV; `fedweave.load` opens it.

        The copy takes the place of results that the folder had before.

        Raises:
            BadInput: the folder has other content or cannot be written, or the scores are by another metric than the
                training's.
        """
        check_folder(folder, "folder")
        if self._is_rescored:
            way = f"save the comparison that with_metric was called on, and call with_metric({self.metric!r}) again"
            raise BadInput(f"save: scores by {self.metric} are made from stored predictions; {way} after fw.load")
        folder = Path(folder)
        copy(self.study.folder, folder, "runs")
        results.write(folder, find_partitions(folder), as_plain(self.study.margins) or None)
        return folder

    def report(self) -> Path:
        """Build report.html in the folder of the results and return its path; of `with_metric` report-METRIC.html.

        Raises:
            BadInput: the margin of `with_margin` is not that of the folder.
        """
        if read_margins(self.study.folder) != {**self.study.margins}:
            raise BadInput("report: the folder has another margin; call save(folder), and report() of fw.load(folder)")
        folder, metric = self.study.folder, self.metric if self._is_rescored else ""
        return report.build(folder, find_partitions(folder), metric=metric)

    @property
    def _is_rescored(self) -> bool:
        return any(run.info.get("selected_by") for run in self.study.runs)
