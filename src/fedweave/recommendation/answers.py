"""From the last comparison to answers: who is as good as the best, what is cheapest, who gains, which groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.recommendation import finals, per_client
from fedweave.recommendation.candidates import GRAPHS, Candidate
from fedweave.recommendation.finals import Finals
from fedweave.recommendation.groups import groups
from fedweave.recommendation.race import described
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


def answer(done: Finals, candidates: Sequence[Candidate], alone: str) -> Answers:
    """Answers from the finalists `candidates`; `alone` is the name of local training.

    Clients that lose by a method on validation rows keep models of their own; all others take part. Two questions in a
    fixed order. First: are the clients significantly better off so, with the collaborating method that has the best
    validation score, than by local training? If not, every client keeps its own model. Second, if so: which
    collaborating methods are not significantly worse than that one, corrected for their number? The cheapest of them is
    taken: by bytes, then by the number of different models, then by seconds. As validation rows name the method that
    all are compared with, its test score is not that of the luckiest of many.
    """
    chosen, by_name = results.clients(done.study), {one.name: one for one in candidates}
    higher = done.study.runs[0].higher_is_better
    compared = {name: run for name, run in done.runs.items() if name in by_name and not _changed(by_name[name])}
    values = _values(done, chosen)
    validation = results.validation_means(compared)
    order = results.best_first(validation, higher)
    rival = next(name for name in order if name != alone or len(order) == 1)
    pays = None
    if alone in compared and rival != alone:
        losers = per_client.losing(done.runs[rival], done.runs[alone])
        mixed = _values(done, with_own_models(chosen, done.runs[rival].name, done.runs[alone].name, losers))
        pays = statistics.against(mixed, [(rival, alone)], higher)[0]
    others = [name for name in order if name not in (rival, alone)]
    tests = {test.other: test for test in statistics.against(values, [(rival, name) for name in others], higher)}
    tests |= {alone: pays} if pays else {}
    board = _board(done, validation, order, rival, tests, values, by_name)
    picked = alone if pays and pays.better != rival else cheapest(board[board["method"] != alone])
    woven, graph, members = _structure(done, board, chosen)
    kind = LOCAL if picked == alone else COMMON if board.set_index("method")["models"][picked] == 1 else PERSONAL
    if kind == PERSONAL and picked == woven and members is not None:
        kind = GROUPS
    empty = pd.DataFrame(columns=per_client.COLUMNS)
    clients = per_client.table(compared, done.runs[alone], chosen) if alone in compared else empty
    own = {name: _names_of(done.runs[name], per_client.losing(done.runs[name], done.runs[alone]))
           for name in dict.fromkeys((picked, rival)) if alone in compared and name != alone}  # fmt: skip
    worth = tuple(_graph_tests(values, woven, higher))
    return Answers(kind, picked, board, clients, pays, rival, alone, graph, woven, members, worth, own)


def with_own_models(chosen: pd.DataFrame, run: str, local: str, clients: Sequence[int]) -> pd.DataFrame:
    """The table of `results.clients` where `clients` have the scores of `local` in place of those of `run`."""
    keys = ["seed", "client"]
    own = chosen[(chosen["run"] == local) & chosen["client"].isin(clients)].set_index(keys)["value"]
    table = chosen.copy()
    mine = (table["run"] == run) & table["client"].isin(clients)
    table.loc[mine, "value"] = own.reindex(pd.MultiIndex.from_frame(table.loc[mine, keys])).to_numpy()
    return table


def _names_of(run: results.Run, clients: Sequence[int]) -> list[str]:
    return [run.client_names[client] for client in clients]


def cheapest(board: pd.DataFrame) -> str:
    """The cheapest method that is not significantly worse than the leader."""
    fit = board[board["verdict"] != WORSE]
    return str(fit.sort_values(["bytes", "models", "seconds"], kind="stable")["method"].iloc[0])


def _changed(candidate: Candidate) -> bool:
    """Whether it is a method with a graph that it did not learn, which is no finalist."""
    return candidate.name.endswith(GRAPHS) and candidate.name != candidate.entry


def _values(done: Finals, chosen: pd.DataFrame) -> dict[str, np.ndarray]:
    """Name -> test scores [S, N] on the clients that all runs have."""
    labelled = results.values([*done.runs.values()], chosen)
    return {name: labelled[run.label] for name, run in done.runs.items()}


def _board(
    done: Finals,
    validation: Mapping[str, float],
    order: Sequence[str],
    leader: str,
    tests: Mapping[str, statistics.Comparison],
    values: Mapping[str, np.ndarray],
    by_name: Mapping[str, Candidate],
) -> pd.DataFrame:
    """One row per method of `order`, with its test against the leader and its costs."""
    sizes, rows = finals.memory(done), []
    for name in order:
        run, test = done.runs[name], tests.get(name)
        low, high = statistics.bootstrap(values[name])
        totals = run.rounds.groupby("seed")[["bytes_up", "bytes_down", "seconds"]].sum().mean()
        sent = float(totals["bytes_up"] + totals["bytes_down"])
        rows.append({
            "method": name, "label": run.printed_label, "settings": described(_flat(by_name[name].settings)),
            "validation": validation[name], "test": float(np.mean(values[name])),
            "low": low, "high": high, "difference": -test.difference if test else 0.0,
            "p": test.p_adjusted if test else np.nan, "verdict": LEADS if name == leader else _word(test, name),
            "bytes": sent, "mib": sent / results.MIB, "seconds": float(totals["seconds"]),
            "server_mib": sizes[name][0], "client_mib": sizes[name][1],
            "models": 1 if finals.one_model(run) else len(run.client_names),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _word(test: statistics.Comparison | None, name: str) -> str:
    """What the test against the leader says of the method `name`."""
    if test is None or not np.isfinite(test.p_adjusted):
        return WORSE  # it has no finite score
    if test.better:
        return BETTER if test.better == name else WORSE
    return UNDECIDED if test.undecided else AS_GOOD


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with names such as "train.lr"."""
    flat: dict[str, Any] = {}
    for name, value in nest(settings).items():
        flat |= (
            {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return flat


def _structure(
    done: Finals, board: pd.DataFrame, chosen: pd.DataFrame
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
    tests = statistics.against(values, [(woven, f"{woven}-{graph}") for graph in there], higher) if there else []
    return [
        {
            "graph": graph, "difference": test.difference, "low": test.low, "high": test.high, "p": test.p_adjusted,
            "verdict": "better" if test.better == woven else "worse" if test.better else "no difference",
        }
        for graph, test in zip(there, tests, strict=True)
    ]  # fmt: skip
