"""Results as objects: tidy tables with the names of clients, tests, figures."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import report, results
from fedweave.api.figures import ComparisonPlots, MethodPlots
from fedweave.errors import BadInput, choose
from fedweave.files import load_tensors
from fedweave.results import Graphs, Run, Study, statistics

TIDY = ["method", "seed", "client", "round", "point", "split", "metric", "value"]


@dataclass(frozen=True)
class Test:
    """A paired comparison of two methods over the same clients.

    Attributes:
        method, other: their names.
        difference: mean of `method` minus mean of `other`.
        low, high: 95 % interval of it, over seeds and clients.
        p: of Wilcoxon's signed-rank test over clients, each averaged over its seeds.
        p_seeds: of the paired t test over seeds; NaN for one seed.
        better: the name of the better one, if p is below 0.05 and the interval leaves out zero; else empty.
        clients, seeds: how many.
    """

    method: str
    other: str
    difference: float
    low: float
    high: float
    p: float
    p_seeds: float
    better: str
    clients: int
    seeds: int

    __test__ = False  # no test of pytest

    def __str__(self) -> str:
        verdict = f"{self.better} is significantly better" if self.better else "not significantly different"
        return (
            f"{self.method} - {self.other}: {self.difference:+.4g} "
            f"(95 % interval {self.low:+.4g} to {self.high:+.4g}), "
            f"p = {self.p:.3g} over {self.clients} clients: {verdict}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Methods that were trained on the same clients.

    Attributes:
        study: the finished runs.
        about: names and sizes of the federation, where `compare` wrote the folder.
        warnings: what to know before believing the numbers.
    """

    study: Study
    about: dict[str, Any]
    warnings: tuple[str, ...]
    temporary: Any = field(default=None, repr=False)  # the folder, where it goes with this object

    def __repr__(self) -> str:
        run = self.study.runs[0]
        seeds = len(run.seeds)
        where = f"{run.info['dataset']!r}" if len({r.task for r in self.study.runs}) == 1 else "several tasks"
        plural = "" if seeds == 1 else "s"
        return (
            f"Comparison of {len(self.methods)} methods on {where}: {len(self.clients)} clients, {seeds} seed{plural}"
        )

    def _repr_html_(self) -> str:
        return str(self.leaderboard().to_html(index=False, float_format=lambda value: f"{value:.4g}"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __getitem__(self, method: str) -> "MethodResult":
        """The result of one method.

        Raises:
            BadInput: no such method.
        """
        return MethodResult(choose(method, self.runs, "method"), self.runs[method], self)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Name -> run. With several tasks a name begins with that of the task."""
        alone = len({run.task for run in self.study.runs}) == 1
        return {run.name.removeprefix(f"{run.task}-") if alone else run.name: run for run in self.study.runs}

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
        return client_names(self.study.runs[0])

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every score: one row per method, seed, client, round, point and split."""
        return pd.concat([self[name].history for name in self.methods], ignore_index=True)

    @cached_property
    def _chosen(self) -> pd.DataFrame:
        return results.clients(self.study)

    def leaderboard(self) -> pd.DataFrame:
        """One row per method, best first: test score at the round that validation chose, spread, cost."""
        board = results.board(self.study, self._chosen)
        names = {run.name: name for name, run in self.runs.items()}
        board["method"] = board["run"].map(names)
        board["point"] = [self.runs[name].info["point"] for name in board["method"]]
        board["mib"] = (board["bytes_up"] + board["bytes_down"]) / results.MIB
        columns = ["method", "metric", "mean", "std", "seeds", "client_std", "worst10", "point", "mib", "seconds"]
        tasks = ["task"] if board["task"].nunique() > 1 else []
        return board[[*tasks, *columns]]

    def scores(self) -> pd.DataFrame:
        """Test score of every client (rows) by method (columns), averaged over seeds."""
        return pd.DataFrame({name: self[name].scores for name in self.leaderboard()["method"]})

    def majority(self) -> float | None:
        """Mean accuracy over clients of always naming the client's most frequent training class, in percent."""
        values = self.about.get("majority")
        return None if values is None else float(np.mean(values))

    def test(self, method: str, other: str) -> Test:
        """Is one method better than another? For many pairs use the corrected tests of `report`.

        Raises:
            BadInput: an unknown method, or methods of two tasks.
        """
        pair = [self[name].run for name in (method, other)]
        if pair[0].task != pair[1].task or method == other:
            raise BadInput(f"test: {method!r} and {other!r} must be two methods of one task")
        values = results.values(pair, self._chosen)
        renamed = {name: values[run.label] for name, run in zip((method, other), pair, strict=True)}
        found = statistics.against(renamed, [(method, other)], pair[0].higher_is_better)[0]
        seeds, clients = renamed[method].shape
        numbers = (found.difference, found.low, found.high, found.p, found.p_seeds)
        return Test(method, other, *numbers, found.better, clients, seeds)

    @property
    def plot(self) -> ComparisonPlots:
        """Figures."""
        return ComparisonPlots(self)

    def save(self, folder: Path | str) -> Path:
        """Copy the results to `folder`, with the tables as CSV; `fedweave.load` opens it.

        Raises:
            BadInput: the folder holds something else.
        """
        folder = Path(folder)
        if folder.resolve() != self.study.folder.resolve():
            if folder.exists() and any(folder.iterdir()) and not (folder / "runs").is_dir():
                raise BadInput(f"save: {folder} holds something else; choose an empty folder")
            shutil.copytree(self.study.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".fedweave"))
        results.write(folder)
        return folder

    def report(self) -> Path:
        """Build report.html in the folder of the results and return its path."""
        folder = self.study.folder
        own = folder / "partitions"
        return report.build(folder, own if own.is_dir() else None)


@dataclass(frozen=True, eq=False, repr=False)
class MethodResult:
    """One method of a comparison.

    Attributes:
        name: of the method.
        run: as the folder of results holds it.
        comparison: that it belongs to.
    """

    name: str
    run: Run
    comparison: Comparison

    def __repr__(self) -> str:
        mean, metric = self.scores.mean(), self.run.info["metric"]
        return (
            f"{self.run.label}: {metric} {mean:.4g} over {len(self.clients)} clients, {self.run.trained_rounds} rounds"
        )

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        return client_names(self.run)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Every score: one row per seed, client, round, point and split."""
        table = self.run.evaluations
        names = np.array(self.clients, dtype=object)[table["client"]]
        return table.assign(method=self.name, client=names, metric=self.run.info["metric"])[TIDY]

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per seed and round: bytes, seconds, training loss, dropped uploads."""
        return self.run.rounds

    @property
    def diagnostics(self) -> pd.DataFrame:
        """What the server says about itself: seed, round, name, value."""
        return self.run.diagnostics

    @property
    def settings(self) -> dict[str, Any]:
        """All that the run depends on."""
        return dict(self.run.info.get("spec") or {})

    def chosen(self) -> pd.DataFrame:
        """Test score of every seed and client at the round that validation chose: seed, client, round, value."""
        table = results.chosen(self.run)
        return table.assign(client=np.array(self.clients, dtype=object)[table["client"]])

    @cached_property
    def scores(self) -> "pd.Series[float]":
        """Test score of every client, averaged over seeds."""
        return self.chosen().groupby("client", sort=False)["value"].mean().reindex(list(self.clients)).rename(self.name)

    def graphs(self, seed: int | None = None) -> Graphs:
        """Weights over rounds and layers, [R, L, N, N]; row = learner, column = source.

        Raises:
            BadInput: the method has no graph.
        """
        kept = results.graphs(self.run, seed)
        if kept is None:
            raise BadInput(
                f"graph: {self.name} keeps no collaboration graph; methods that do: {', '.join(self._others())}"
            )
        return kept

    def graph(self, seed: int | None = None, round: int | None = None) -> pd.DataFrame:
        """Who learns from whom, averaged over layers: learners (rows) by sources (columns), after the last round."""
        kept = self.graphs(seed)
        weights = kept.weights[-1 if round is None else kept.at(round)].mean(0)
        return pd.DataFrame(weights, index=list(self.clients), columns=list(self.clients))

    def models(self, seed: int | None = None) -> dict[str, Any]:
        """Every client's model at the round that validation chose: name of the client -> tensors.

        Raises:
            BadInput: no models were kept.
        """
        from fedweave.tensors import trees

        file = self.run.folder / f"models-{self.run.seeds[0] if seed is None else seed}.pt"
        if not file.is_file():
            raise BadInput(f"{file}: not there; models are kept unless evaluate={{'models': False}}")
        stacked = load_tensors(file)["models"]
        return {name: trees.at(stacked, i) for i, name in enumerate(self.clients)}

    @property
    def plot(self) -> MethodPlots:
        """Figures."""
        return MethodPlots(self)

    def save(self, folder: Path | str) -> Path:
        """Copy the whole comparison, see `Comparison.save`."""
        return self.comparison.save(folder)

    def _others(self) -> list[str]:
        found = [name for name, run in self.comparison.runs.items() if results.graphs(run) is not None]
        return found or ["pfedgraph, fedaghn and others"]


def client_names(run: Run) -> tuple[str, ...]:
    """Names of the clients of a run; numbers where it has none."""
    names = run.info.get("client_names")
    return tuple(names) if names else tuple(f"client {i}" for i in range(int(run.info.get("clients", 0))))
