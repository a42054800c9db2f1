"""The answers of the last comparison: which methods are equivalent to the best, which is cheapest, and who gains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.metrics import Margin, clip
from fedweave.recommendation import choices, finals, per_client
from fedweave.recommendation.candidates import GRAPHS, Candidate
from fedweave.recommendation.finals import FinalComparison
from fedweave.recommendation.groups import groups
from fedweave.recommendation.race import format_settings
from fedweave.results import statistics
from fedweave.results.repetitions import interval
from fedweave.results.statistics import TestedPair
from fedweave.study.spec import flatten, nest

LOCAL, COMMON, GROUPS, PERSONAL = "local", "common", "groups", "personal"  # what to deploy
EQUIVALENT_OR_BETTER = (statistics.EQUIVALENT, statistics.BETTER)
SIDES = ("the choices of each client", "one method for all")
LEADS, DIVERGED, NO_VERDICT = "leads", "diverged", "no verdict"  # besides better, equivalent, worse and open


@dataclass(frozen=True, eq=False)
class Answers:
    """What follows from the last comparison.

    Attributes:
        kind: what to deploy: "local", "common", "groups" or "personal" models.
        method: name of the method whose models are deployed.
        board: one row per finalist and control, best validation first.
        clients: one row per client and method, compared with local training.
        tests_against_local: collaborating method -> its test against local training.
        leader: the best collaborating method by validation.
        local_name: name of local training.
        margin: of practical equivalence, in words.
        graph: who learns from whom [N, N], or None.
        graph_method: the method whose graph it is; empty without one.
        groups: number of each client's group, or None.
        tests: tests of the learned graph against a uniform and a shuffled one.
        local_clients: method -> clients that keep models of their own, chosen on validation rows.
        choices: client -> the finalist that it would deploy, of the clients that would not deploy `method`.
        choice_test: on test rows, the test of these choices against `method` for all; None without a choice.
    """

    kind: str
    method: str
    board: pd.DataFrame
    clients: pd.DataFrame
    tests_against_local: Mapping[str, TestedPair]
    leader: str
    local_name: str
    margin: str
    graph: pd.DataFrame | None = None
    graph_method: str = ""
    groups: tuple[int, ...] | None = None
    tests: tuple[Mapping[str, Any], ...] = field(default=())
    local_clients: Mapping[str, list[str]] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    choice_test: TestedPair | None = None

    @property
    def pays(self) -> str:
        """The best method by validation that is better than local training; empty where none is shown to be."""
        return paying_method(self.board)

    @property
    def members(self) -> list[list[str]]:
        """Names of the clients of each group; empty without groups."""
        if self.groups is None or self.graph is None:
            return []
        named = [*zip(map(str, self.graph.index), self.groups, strict=True)]
        return [[name for name, group in named if group == k] for k in range(max(self.groups) + 1)]


def answer(comparison: FinalComparison, candidates: Sequence[Candidate], local_name: str, entered: int) -> Answers:
    """Answers from the finalists `candidates`, chosen of `entered` methods; `local_name` is that of local training.

    Clients that lose by a method on validation rows keep models of their own; all others take part. Two questions are
    asked in a fixed order. First: are the clients better off with a collaborating method than by local training, by
    tests that are corrected for all of them? If not, every client keeps its own model. Second: if the one with the best
    validation score is better than local training, which method is the cheapest of those that `deployable_methods`
    leaves? Else the one that is better than local training is deployed; of several, the best by validation. A method is
    cheaper if it sends fewer bytes, then if it needs fewer different models, then if it takes fewer seconds. Validation
    rows choose the method that all others are compared with, so its test score is not that of the luckiest of many.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    tests = FinalistTests(comparison, by_name, local_name, results.clients(comparison.study), entered)
    board, leader, higher = tests.board(), tests.leader, tests.higher_is_better
    selected = paying_method(board) or local_name
    if leader != local_name and (selected == leader or not tests.tests_against_local):
        selected = cheapest_method(deployable_methods(board, local_name, higher))
    graph_method, graph, group_numbers = _best_graph(comparison, board, tests.client_scores)
    if selected == local_name:
        kind = LOCAL
    elif board.set_index("method")["models"][selected] == 1:
        kind = COMMON
    else:
        kind = GROUPS if selected == graph_method and group_numbers is not None else PERSONAL
    graph_tests = tuple(tests.against_other_graphs(graph_method))
    local_clients = {
        name: [comparison.runs[name].client_names[client] for client in losers]
        for name, losers in tests.losing_clients.items()
    }
    chosen, choice_test = tests.choose_for_each(selected)
    return Answers(
        kind,
        selected,
        board,
        tests.clients(),
        tests.tests_against_local,
        leader,
        local_name,
        tests.margin.describe(tests.metric),
        graph,
        graph_method,
        group_numbers,
        graph_tests,
        local_clients,
        chosen,
        choice_test,
    )


@dataclass(frozen=True, eq=False)
class FinalistTests:
    """The finalists and controls, and the tests between them.

    Attributes:
        comparison: the last comparison.
        candidates: by name.
        local_name: name of local training.
        client_scores: the table of `results.clients`.
        entered: how many methods entered the race, which the same clients decided; local training is one of them.
    """

    comparison: FinalComparison
    candidates: Mapping[str, Candidate]
    local_name: str
    client_scores: pd.DataFrame
    entered: int

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher score is better."""
        return self.comparison.study.runs[0].higher_is_better

    @property
    def metric(self) -> str:
        """Name of the score."""
        return str(self.comparison.study.runs[0].info["metric"])

    @property
    def margin(self) -> Margin:
        """Of practical equivalence."""
        return self.comparison.study.margin(self.metric)

    @cached_property
    def compared_runs(self) -> dict[str, results.Run]:
        """Name -> run, of all but the methods with a changed graph."""
        names = [name for name, candidate in self.candidates.items() if not _has_control_graph(candidate)]
        return {name: run for name, run in self.comparison.runs.items() if name in names}

    @cached_property
    def test_scores(self) -> dict[str, np.ndarray]:
        """Name -> test scores [S, N] on the clients that all runs have."""
        return _test_scores(self.comparison, self.client_scores)

    @cached_property
    def validation(self) -> dict[str, float]:
        """Name -> mean validation score."""
        return results.validation_means(self.compared_runs)

    @cached_property
    def ranking(self) -> list[str]:
        """Names of the methods, best validation first."""
        return results.best_first(self.validation, self.higher_is_better)

    @property
    def leader(self) -> str:
        """The best collaborating method by validation; local training if there is no other."""
        return next(name for name in self.ranking if name != self.local_name or len(self.ranking) == 1)

    def _differences_from(self, common: str) -> dict[str, per_client.ValidationDifferences]:
        """Every other method -> its differences from `common`, as of `per_client.validation_differences`."""
        if (base := self.compared_runs.get(common)) is None:
            return {}
        others = {name: run for name, run in self.compared_runs.items() if run is not base}
        return {name: per_client.validation_differences(run, base) for name, run in others.items()}

    @cached_property
    def _differences_from_local(self) -> dict[str, per_client.ValidationDifferences]:
        return self._differences_from(self.local_name)

    @cached_property
    def losing_clients(self) -> dict[str, list[int]]:
        """Collaborating method -> clients that keep models of their own, chosen on validation rows."""
        pairs = self._differences_from_local.items()
        return {name: per_client.losing_clients(by_seeds[None], self.higher_is_better) for name, by_seeds in pairs}

    @cached_property
    def tests_against_local(self) -> dict[str, TestedPair]:
        """Collaborating method -> its test against local training, as it would be deployed; corrected over all that
        entered the race.
        """
        runs, deployed = self.comparison.runs, self.client_scores
        for name, losers in self.losing_clients.items():
            deployed = replace_scores(deployed, runs[name].name, runs[self.local_name].name, losers)
        pairs = [(name, self.local_name) for name in self.losing_clients]
        scores = _test_scores(self.comparison, deployed)
        return {test.method: test for test in self._compare(scores, pairs, self.entered - 1)}

    def choose_for_each(self, common: str) -> tuple[dict[str, str], TestedPair | None]:
        """(client -> the finalist that it would deploy in place of `common`, the test of such choices on test rows).

        Both sides are as they would be deployed: clients that lose by `common` have models of their own. In each seed
        that is tested, the other seeds choose. If they choose nothing, the choices of all seeds are those of chance.
        """
        is_local = common == self.local_name
        differences = self._differences_from_local if is_local else self._differences_from(common)
        losers = self.losing_clients.get(common, [])
        seeds = [*next(iter(differences.values()), ())][1:] or [None]
        chosen, *by_seed = (self._choose(differences, seed, losers) for seed in (None, *seeds))
        if not chosen or not any(by_seed):
            return {}, None
        runs = self.comparison.runs
        before = replace_scores(self.client_scores, runs[common].name, runs[self.local_name].name, losers)
        after = before
        for seed, choice in zip(seeds, by_seed, strict=True):
            for name in {*choice.values()}:
                clients = [client for client, method in choice.items() if method == name]
                after = replace_scores(after, runs[common].name, runs[name].name, clients, seed)
        scores = [_test_scores(self.comparison, table)[common] for table in (after, before)]
        (test,) = self._compare(dict(zip(SIDES, scores, strict=True)), [SIDES])
        return {runs[common].client_names[client]: name for client, name in chosen.items()}, test

    def _choose(
        self, differences: Mapping[str, per_client.ValidationDifferences], seed: int | None, losers: Sequence[int]
    ) -> dict[int, str]:
        """Client -> its finalist by all seeds but `seed`, of the clients that do not lose by the common method."""
        pairs = {name: by_seeds[seed] for name, by_seeds in differences.items()}
        chosen = choices.choose(pairs, self.higher_is_better, self.losing_clients)
        return {client: name for client, name in chosen.items() if client not in losers}

    def _compare(
        self, scores: Mapping[str, np.ndarray], pairs: Sequence[tuple[str, str]], chosen_from: int = 0
    ) -> list[TestedPair]:
        if not pairs:
            return []
        return statistics.compare_pairs(scores, pairs, self.higher_is_better, self.margin, chosen_from=chosen_from)

    def _test_against_leader(self) -> dict[str, TestedPair]:
        """Method -> the test of the leader against it; for local training, the test of what would be deployed.

        Other rows of the same clients chose the leader, so the correction is over all pairs.
        """
        pairs = list(combinations([name for name in self.ranking if name != self.local_name], 2))
        of_leader = statistics.leader_comparisons(self._compare(self.test_scores, pairs), self.leader)
        tests = {test.other: test for test in of_leader}
        if self.leader in self.tests_against_local:
            tests[self.local_name] = self.tests_against_local[self.leader]
        return tests

    def against_other_graphs(self, graph_method: str) -> list[dict[str, Any]]:
        """Tests of the learned graph against others, if the method was trained with them."""
        others = [graph for graph in GRAPHS if f"{graph_method}-{graph}" in self.test_scores]
        tests = self._compare(self.test_scores, [(graph_method, f"{graph_method}-{graph}") for graph in others])
        found = []
        for graph, test in zip(others, tests, strict=True):
            numbers = {"difference": test.difference, "low": test.low, "high": test.high, "p": test.p_adjusted}
            found.append({"graph": graph, **numbers, "verdict": test.verdict or NO_VERDICT})
        return found

    def clients(self) -> pd.DataFrame:
        """One row per client and method, compared with local training."""
        local = self.compared_runs.get(self.local_name)
        empty = pd.DataFrame(columns=per_client.COLUMNS)
        return empty if local is None else per_client.table(self.compared_runs, local, self.client_scores)

    def board(self) -> pd.DataFrame:
        """One row per method, with its tests against the leader and against local training, and its costs."""
        sizes, tests = finals.memory(self.comparison), self._test_against_leader()
        return pd.DataFrame(
            [{**self._scores(name, tests.get(name)), **self._costs(name, sizes)} for name in self.ranking]
        )

    def _scores(self, name: str, test: TestedPair | None) -> dict[str, Any]:
        low, high = clip(self.comparison.runs[name].info["metric"], interval(self.test_scores[name]))
        local, test_score = self.tests_against_local.get(name), float(np.mean(self.test_scores[name]))
        finite = np.isfinite(test_score)
        return {
            "method": name,
            "label": self.comparison.runs[name].printed_label,
            "settings": format_settings(flatten(nest(self.candidates[name].settings))),
            "validation": self.validation[name],
            "test": test_score,
            "low": low,
            "high": high,
            "difference": -test.difference if test else 0.0,
            "p": test.p_adjusted if test else np.nan,
            "verdict": LEADS if name == self.leader else _verdict(test.swap() if test else None, finite),
            "over_local": local.difference if local else np.nan,
            "p_local": local.p_adjusted if local else np.nan,
            "verdict_local": _verdict(local, finite) if local else "",
        }

    def _costs(self, name: str, sizes: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
        run = self.comparison.runs[name]
        sent = float(run.totals["bytes_up"] + run.totals["bytes_down"])
        if run.info.get("contestant") and not sent:
            sent = float("nan")
        return {
            "bytes": sent,
            "mib": sent / results.MIB,
            "seconds": float(run.totals["seconds"]),
            "server_mib": sizes[name][0],
            "client_mib": sizes[name][1],
            "models": 1 if finals.has_one_model(run) else len(run.client_names),
        }


def deployable_methods(board: pd.DataFrame, local_name: str, higher_is_better: bool) -> pd.DataFrame:
    """The collaborating methods that may be deployed: the leader, and those that tests call equivalent or better.

    A method whose test against the leader is open is left out, and so is one with a score below that of local training,
    and one that a test calls worse than local training.
    """
    sign = 1.0 if higher_is_better else -1.0
    equivalent = board["verdict"].isin([LEADS, *EQUIVALENT_OR_BETTER]) & (board["method"] != local_name)
    above = sign * board["over_local"] >= 0
    not_worse = board["over_local"].isna() | (above & (board["verdict_local"] != statistics.WORSE))
    return board[equivalent & not_worse]


def paying_method(board: pd.DataFrame) -> str:
    """The first method of a board that is better than local training; empty where none is shown to be."""
    return str(next(iter(board[board["verdict_local"] == statistics.BETTER]["method"]), ""))


def replace_scores(
    client_scores: pd.DataFrame, run: str, local: str, clients: Sequence[int], seed: int | None = None
) -> pd.DataFrame:
    """The table of `results.clients` where `clients` have the scores of `local` in place of those of `run`; in one
    `seed`, or in all.
    """
    keys = ["seed", "client"]
    local_values = client_scores[client_scores["run"] == local].set_index(keys)["value"]
    table = client_scores.copy()
    replaced = (table["run"] == run) & table["client"].isin(clients)
    if seed is not None:
        replaced &= table["seed"] == seed
    table.loc[replaced, "value"] = local_values.reindex(pd.MultiIndex.from_frame(table.loc[replaced, keys])).to_numpy()
    return table


def cheapest_method(board: pd.DataFrame) -> str:
    """The cheapest method of a board; bytes that nobody has counted are more than any others."""
    return str(board.sort_values(["bytes", "models", "seconds"], kind="stable")["method"].iloc[0])


def _has_control_graph(candidate: Candidate) -> bool:
    """Whether it is a method with another graph than the learned one; such a candidate is not a finalist."""
    return candidate.name.endswith(GRAPHS) and candidate.name != candidate.entry


def _test_scores(comparison: FinalComparison, client_scores: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name -> test scores [S, N] on the clients that all runs have."""
    by_label = results.scores_by_method([*comparison.runs.values()], client_scores)
    return {name: by_label[run.label] for name, run in comparison.runs.items()}


def _verdict(test: TestedPair | None, finite: bool) -> str:
    """What a test says of its first method, whose score is finite or not."""
    if not finite:
        return DIVERGED
    return test.verdict if test and test.verdict else NO_VERDICT


def _best_graph(
    comparison: FinalComparison, board: pd.DataFrame, client_scores: pd.DataFrame
) -> tuple[str, pd.DataFrame | None, tuple[int, ...] | None]:
    """(method, its graph with the clients' names, its groups) of the best method by validation that has a graph."""
    for name in board["method"]:
        run = comparison.runs[name]
        graphs = finals.seed_graphs(run, client_scores)
        if graphs:
            names, numbers = run.client_names, groups(graphs)
            graph = pd.DataFrame(np.mean(graphs, axis=0), index=names, columns=names)
            return str(name), graph, None if numbers is None else tuple(map(int, numbers))
    return "", None, None
