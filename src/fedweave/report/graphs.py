"""Who learns from whom on one task: collaboration graphs at the reported round and before, and maps of clients."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.plots.graph import NAMED
from fedweave.report.method_views import Figure
from fedweave.results import Graphs, Run

NEIGHBOURS = 30  # most clients whose single weights are drawn as lines
DENSE = 0.3  # share of pairs from which on edges on a map would hide the clients
EMBEDDED = 20  # fewest clients for t-SNE; fewer are shown in the plane of their principal components
DEFAULT = "client "  # how nameless clients are called


class GraphFigures(NamedTuple):
    """The graph of one run: large at the reported round with names, and small over rounds and layers."""

    title: str
    main: Figure
    steps: Figure


def graph_figures(runs: Sequence[Run], measures: pd.DataFrame, chosen: pd.DataFrame) -> Iterable[GraphFigures]:
    """A figure for every run with graphs, ordered by separation of the groups, then by variation between rows."""
    graphs_of = [
        (run, final_graphs)
        for run in runs
        if (final_graphs := results.reported_graphs(run, chosen[chosen["run"] == run.name]))
    ]
    for run, final_graphs in sorted(graphs_of, key=lambda item: _order(item[0], measures)):
        graphs = final_graphs[0][0]
        weights = np.mean([each.weights[at].mean(0) for each, at in final_graphs], axis=0)
        group = graphs.group
        figure = plots.graph(
            weights, names_of(run, len(weights)), group, [] if group is None else run.group_names(group)
        )
        main = Figure(run.label, figure, _caption(run, weights, final_graphs, measures))
        yield GraphFigures(run.label, main, _steps(run, graphs))


def names_of(run: Run, count: int) -> list[str]:
    """Names of `count` clients; numbers alone where the data have no names."""
    names = run.client_names if len(run.client_names) == count else [f"{DEFAULT}{i}" for i in range(count)]
    return [name.removeprefix(DEFAULT) for name in names] if all(name.startswith(DEFAULT) for name in names) else names


def _order(run: Run, measures: pd.DataFrame) -> tuple[float, float]:
    return -np.nan_to_num(_value(run, measures, results.AUC)), -np.nan_to_num(_value(run, measures, results.VARIATION))


def _value(run: Run, measures: pd.DataFrame, quantity: str) -> float:
    rows = measures[(measures["run"] == run.name) & (measures["quantity"] == quantity)]["value"]
    return float(rows.iloc[0]) if len(rows) else float("nan")


def _caption(run: Run, weights: np.ndarray, final_graphs: Sequence[tuple[Graphs, int]], measures: pd.DataFrame) -> str:
    auc, variation = _value(run, measures, results.AUC), _value(run, measures, results.VARIATION)
    others = np.where(np.eye(len(weights), dtype=bool), 0.0, weights)
    rounds = sorted({graphs.rounds[at] for graphs, at in final_graphs})
    phrases = [f"AUC for own group {auc:.2f}"] if np.isfinite(auc) else []
    phrases += (
        [f"variation between rows {100 * variation:.{0 if variation >= 0.1 else 1}f} %"]
        if np.isfinite(variation)
        else []
    )
    phrases += [
        f"weight on itself {np.diag(weights).mean():.2g}",
        f"between two clients up to {others.max(initial=0.0):.2g}",
    ]
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    seeds = f"{len(final_graphs)} seeds" if len(final_graphs) > 1 else f"seed {final_graphs[0][0].seed}"
    return f"{'; '.join(phrases)}. {seeds}, {when}."


def _steps(run: Run, graphs: Graphs) -> Figure:
    order = plots.group_order(graphs.group, graphs.weights.shape[-1])
    weights = graphs.weights[:, :, order][..., order]
    return Figure(run.label, plots.collaboration(weights, graphs.rounds, graphs.layers), f"Seed {graphs.seed}.")


def evolution(runs: Sequence[Run]) -> Iterable[Figure]:
    """How the weights change over rounds and depth."""
    for run in runs:
        stored = results.graphs(run)
        if not stored or len(stored.rounds) < 3 or np.ptp(stored.weights, axis=0).max() == 0:
            continue
        count = stored.weights.shape[-1]
        if stored.group is None and count > NEIGHBOURS:
            continue
        names = run.client_names if len(run.client_names) == count else [f"{DEFAULT}{i}" for i in range(count)]
        alone = f"Row of {names[0]}; thin lines are the clients it weighs least"
        whose = "Mean weight of one client" if stored.group is not None else alone
        figure = plots.evolution(stored.weights, stored.rounds, stored.layers, stored.group, names)
        yield Figure(run.label, figure, f"{whose}; seed {stored.seed}.")


def maps(runs: Sequence[Run]) -> Iterable[Figure]:
    """The vectors that the server knows clients by, in the plane, with the graph between them where it is sparse."""
    for run in runs:
        vectors_of = results.portrait(run)
        if vectors_of is None or len(vectors_of.vectors) < 3 or not np.isfinite(vectors_of.vectors).all():
            continue
        places, how = project_to_plane(vectors_of.vectors)
        stored = results.graphs(run, vectors_of.seed)
        links = edges(stored.weights[-1], len(places)) if stored else np.empty((2, 0), dtype=int)
        names = names_of(run, len(places)) if len(places) <= NAMED else []
        groups = [] if vectors_of.group is None else run.group_names(vectors_of.group)
        yield Figure(
            run.label,
            plots.client_map(places, links, vectors_of.group, names, groups),
            f"{how}, round {vectors_of.round}, seed {vectors_of.seed}. {_about_points(names, groups)}",
        )


def _about_points(names: Sequence[str], groups: Sequence[str]) -> str:
    """What the marks and words on a map are."""
    marks = "Colours are groups. " if len(groups) <= len(plots.LIGHT) else "Colours and shapes are groups. "
    words = "A name is" if names else "The file clients.csv has the name of every number. A number is"
    return f"{marks if groups else ''}{words} left out where it would cover another one."


def edges(weights: np.ndarray, clients: int) -> np.ndarray:
    """Pairs [2, E] with a weight between them in [L, N, N]; none where nearly every client learns from every other."""
    linked = np.triu((np.abs(weights) > 0).any(0) | (np.abs(weights) > 0).any(0).T, 1)
    fits = linked.shape == (clients, clients) and linked.sum() <= DENSE * clients * (clients - 1) / 2
    return np.stack(np.nonzero(linked)) if fits else np.empty((2, 0), dtype=int)


def project_to_plane(vectors: np.ndarray) -> tuple[np.ndarray, str]:
    """Places [N, 2] of vectors [N, D], and how they were found."""
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0)
    if len(vectors) >= EMBEDDED:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        perplexity = min(30.0, (len(vectors) - 1) / 3)
        start = "pca" if vectors.shape[1] > 1 else "random"
        # With more threads, the steps for so few points wait for one another: 20 s instead of 0.3 s for 48 clients.
        with threadpool_limits(1):
            return TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(centred), "t-SNE"
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(vectors), 2))
    places[:, : min(2, len(s))] = (u * s)[:, :2]
    return places, "First two principal components"
