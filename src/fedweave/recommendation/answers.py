"""From the last comparison to answers: who is as good as the best, what is cheapest, who gains, which groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.recommendation import finals, per_client
from fedweave.recommendation.candidates import GRAPHS, Candidate
from fedweave.recommendation.finals import FinalComparison
from fedweave.recommendation.groups import groups
from fedweave.recommendation.race import format_settings
from fedweave.results import statistics
from fedweave.study.spec import nest

LOCAL, COMMON, GROUPS, PERSONAL = "local", "common", "groups", "personal"  # what to deploy
LEADS, AS_GOOD, WORSE, UNDECIDED, BETTER = "leads", "not significantly different", "worse", "undecided", "better"


@dataclass(frozen=True, eq=False)
class Answers:
    """What the last comparison says.

    Attributes:
        kind: what to deploy: "local", "common", "groups" or "personal" models.
        method: whose models, by name.
        board: one row per finalist and control, best validation first; the leader is `rival`.
        clients: one row per client and method, compared with local training.
        pays: the test of `rival` against local training.
        rival: the best collaborating method by validation.
        alone: local training.
        graph: who learns from whom [N, N], and the method whose graph it is; empty without one.
        groups: number of each client's group, or None.
        tests: of the learned graph against a uniform and a shuffled one.
        own: method -> clients that keep models of their own, as validation rows say.
    """

    kind: str
    method: str
    board: pd.DataFrame
    clients: pd.DataFrame
    pays: statistics.Comparison | None
    rival: str
    alone: str
    graph: pd.DataFrame | None = None
    woven: str = ""
    groups: tuple[int, ...] | None = None
    tests: tuple[Mapping[str, Any], ...] = field(default=())
    own: Mapping[str, list[str]] = field(default_factory=dict)


def answer(done: FinalComparison, candidates: Sequence[Candidate], alone: str) -> Answers:
    """Answers from the finalists `candidates`; `alone` is the name of local training.

    Clients that lose by a method on validation rows keep models of their own; all others take part. Two questions in a
    fixed order. First: are the clients significantly better off so, with the collaborating method that has the best
    validation score, than by local training? If not, every client keeps its own model. Second, if so: which method is
    the cheapest of those that `deployable_methods` leaves? Cheaper is what sends fewer bytes, then what needs fewer
    different models, then fewer seconds. As validation rows name the method that all are compared with, its
    test score is not that of the luckiest of many.
    """
    contest = FinalistTests(done, {one.name: one for one in candidates}, alone, results.clients(done.study))
    board, rival, pays = contest.board(), contest.rival, contest.tests_against_local.get(contest.rival)
    pay = rival != alone and (pays is None or pays.better == rival)
    picked = cheapest_method(deployable_methods(board, alone, contest.higher_is_better)) if pay else alone
    woven, graph, members = _best_graph(done, board, contest.chosen)
    kind = LOCAL if picked == alone else COMMON if board.set_index("method")["models"][picked] == 1 else PERSONAL
    if kind == PERSONAL and picked == woven and members is not None:
        kind = GROUPS
    worth = tuple(_graph_tests(contest.values, woven, contest.higher_is_better))
    own = {name: _names_of(done.runs[name], losers) for name, losers in contest.losing_clients.items()}
    return Answers(kind, picked, board, contest.clients(), pays, rival, alone, graph, woven, members, worth, own)


@dataclass(frozen=True, eq=False)
class FinalistTests:
    """The finalists and controls, and the tests between them.

    Attributes:
        done: the last comparison.
        candidates: by name.
        alone: name of local training.
        chosen: the table of `results.clients`.
    """

    done: FinalComparison
    candidates: Mapping[str, Candidate]
    alone: str
    chosen: pd.DataFrame

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher score is better."""
        return self.done.study.runs[0].higher_is_better

    @cached_property
    def compared_runs(self) -> dict[str, results.Run]:
        """Name -> run, of all but the methods with a changed graph."""
        names = [name for name, one in self.candidates.items() if not _has_control_graph(one)]
        return {name: run for name, run in self.done.runs.items() if name in names}

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Name -> test scores [S, N] on the clients that all runs have."""
        return _test_scores(self.done, self.chosen)

    @cached_property
    def validation(self) -> dict[str, float]:
        """Name -> mean validation score."""
        return results.validation_means(self.compared_runs)

    @cached_property
    def order(self) -> list[str]:
        """Names, best validation first."""
        return results.best_first(self.validation, self.higher_is_better)

    @property
    def rival(self) -> str:
        """The best collaborating method by validation; local training if there is no other."""
        return next(name for name in self.order if name != self.alone or len(self.order) == 1)

    @cached_property
    def losing_clients(self) -> dict[str, list[int]]:
        """Collaborating method -> clients that keep models of their own, as validation rows say."""
        local = self.compared_runs.get(self.alone)
        return {} if local is None else {
            name: per_client.losing_clients(run, local) for name, run in self.compared_runs.items() if run is not local
        }  # fmt: skip

    @cached_property
    def tests_against_local(self) -> dict[str, statistics.Comparison]:
        """Collaborating method -> its test against local training, as it would be deployed."""
        return {name: self._test_against_local(name, losers) for name, losers in self.losing_clients.items()}

    def _test_against_local(self, name: str, losers: Sequence[int]) -> statistics.Comparison:
        runs = self.done.runs
        deployed = _test_scores(self.done, replace_scores(self.chosen, runs[name].name, runs[self.alone].name, losers))
        return statistics.compare_pairs(deployed, [(name, self.alone)], self.higher_is_better)[0]

    def _test_against_leader(self) -> dict[str, statistics.Comparison]:
        """Method -> the test of the leader against it; of local training the one of what would be deployed."""
        pairs = [(self.rival, name) for name in self.order if name not in (self.rival, self.alone)]
        tests = (
            {test.other: test for test in statistics.compare_pairs(self.values, pairs, self.higher_is_better)}
            if pairs
            else {}
        )
        return tests | (
            {self.alone: self.tests_against_local[self.rival]} if self.rival in self.tests_against_local else {}
        )

    def clients(self) -> pd.DataFrame:
        """One row per client and method, compared with local training."""
        local = self.compared_runs.get(self.alone)
        empty = pd.DataFrame(columns=per_client.COLUMNS)
        return empty if local is None else per_client.table(self.compared_runs, local, self.chosen)

    def board(self) -> pd.DataFrame:
        """One row per method, with its tests against the leader and against local training, and its costs."""
        sizes, tests = finals.memory(self.done), self._test_against_leader()
        return pd.DataFrame(
            [{**self._scores(name, tests.get(name)), **self._costs(name, sizes)} for name in self.order]
        )

    def _scores(self, name: str, test: statistics.Comparison | None) -> dict[str, Any]:
        low, high = statistics.interval(self.values[name])
        local = self.tests_against_local.get(name)
        return {
            "method": name, "label": self.done.runs[name].printed_label,
            "settings": format_settings(_flatten(self.candidates[name].settings)),
            "validation": self.validation[name], "test": float(np.mean(self.values[name])), "low": low, "high": high,
            "difference": -test.difference if test else 0.0, "p": test.p_adjusted if test else np.nan,
            "verdict": LEADS if name == self.rival else _verdict(test, name),
            "over_local": local.difference if local else np.nan, "p_local": local.p if local else np.nan,
            "verdict_local": _verdict(local, name) if local else "",
        }  # fmt: skip

    def _costs(self, name: str, sizes: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
        run = self.done.runs[name]
        sent = float(run.totals["bytes_up"] + run.totals["bytes_down"])
        return {
            "bytes": sent, "mib": sent / results.MIB, "seconds": float(run.totals["seconds"]),
            "server_mib": sizes[name][0], "client_mib": sizes[name][1],
            "models": 1 if finals.has_one_model(run) else len(run.client_names),
        }  # fmt: skip


def deployable_methods(board: pd.DataFrame, alone: str, higher: bool) -> pd.DataFrame:
    """The collaborating methods that may be deployed: the leader, and those that tests call as good or better.

    A method whose test against the leader is undecided is left out. Each of the others has a score of its own that is
    not below that of local training, and no test says that it is worse.
    """
    sign = 1.0 if higher else -1.0
    as_good = board["verdict"].isin([LEADS, AS_GOOD, BETTER]) & (board["method"] != alone)
    holds = board["over_local"].isna() | ((sign * board["over_local"] >= 0) & (board["verdict_local"] != WORSE))
    return board[as_good & holds]


def replace_scores(chosen: pd.DataFrame, run: str, local: str, clients: Sequence[int]) -> pd.DataFrame:
    """The table of `results.clients` where `clients` have the scores of `local` in place of those of `run`."""
    keys = ["seed", "client"]
    own = chosen[(chosen["run"] == local) & chosen["client"].isin(clients)].set_index(keys)["value"]
    table = chosen.copy()
    mine = (table["run"] == run) & table["client"].isin(clients)
    table.loc[mine, "value"] = own.reindex(pd.MultiIndex.from_frame(table.loc[mine, keys])).to_numpy()
    return table


def _names_of(run: results.Run, clients: Sequence[int]) -> list[str]:
    return [run.client_names[client] for client in clients]


def cheapest_method(board: pd.DataFrame) -> str:
    """The cheapest method of a board."""
    return str(board.sort_values(["bytes", "models", "seconds"], kind="stable")["method"].iloc[0])


def _has_control_graph(candidate: Candidate) -> bool:
    """Whether it is a method with a graph that it did not learn, which is no finalist."""
    return candidate.name.endswith(GRAPHS) and candidate.name != candidate.entry


def _test_scores(done: FinalComparison, chosen: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name -> test scores [S, N] on the clients that all runs have."""
    labelled = results.scores_by_method([*done.runs.values()], chosen)
    return {name: labelled[run.label] for name, run in done.runs.items()}


def _verdict(test: statistics.Comparison | None, name: str) -> str:
    """What a test says of the method `name`."""
    if test is None or not np.isfinite(test.p_adjusted):
        return WORSE  # it has no finite score
    if test.better:
        return BETTER if test.better == name else WORSE
    return UNDECIDED if test.undecided else AS_GOOD


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with names such as "train.lr"."""
    flat: dict[str, Any] = {}
    for name, value in nest(settings).items():
        flat |= (
            {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return flat


def _best_graph(
    done: FinalComparison, board: pd.DataFrame, chosen: pd.DataFrame
) -> tuple[str, pd.DataFrame | None, tuple[int, ...] | None]:
    """(method, its graph with the clients' names, its groups) of the best method by validation that has a graph."""
    for name in board["method"]:
        run = done.runs[name]
        graphs = finals.seed_graphs(run, chosen)
        if graphs:
            names, members = run.client_names, groups(graphs)
            graph = pd.DataFrame(np.mean(graphs, axis=0), index=names, columns=names)
            return str(name), graph, None if members is None else tuple(map(int, members))
    return "", None, None


def _graph_tests(values: Mapping[str, np.ndarray], woven: str, higher: bool) -> list[dict[str, Any]]:
    """The learned graph against others, where the method could be trained with them."""
    there = [graph for graph in GRAPHS if f"{woven}-{graph}" in values]
    tests = statistics.compare_pairs(values, [(woven, f"{woven}-{graph}") for graph in there], higher) if there else []
    return [
        {
            "graph": graph, "difference": test.difference, "low": test.low, "high": test.high, "p": test.p_adjusted,
            "verdict": "better" if test.better == woven else "worse" if test.better else "no difference",
        }
        for graph, test in zip(there, tests, strict=True)
    ]  # fmt: skip
