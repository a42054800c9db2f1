"""Who learns from whom on one task: collaboration graphs at the reported round and before, and maps of clients."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.graphs.quality import SOURCES
from fedweave.plots.graph import MOST_NAMED
from fedweave.report.method_views import PageFigure
from fedweave.results import Graphs, Run

MOST_LINES = 30  # most clients whose weights are drawn as one line each
MAX_DENSITY = 0.3  # with a larger share of pairs, the edges on a map would hide the clients
MIN_TSNE_CLIENTS = 20  # fewest clients for t-SNE; fewer are shown in the plane of their principal components
DEFAULT_PREFIX = "client "  # prefix of the names of clients without names


StoredGraphs = Mapping[str, Mapping[int, Graphs]]  # run -> seed -> its graphs


def graph_figures(
    runs: Sequence[Run], stored: StoredGraphs, measures: pd.DataFrame, chosen: pd.DataFrame
) -> Iterable[dict[str, Any]]:
    """A title, a large figure at the reported round and small ones over rounds and layers, for every run with graphs.

    They are ordered by separation of the groups, then by variation between rows.
    """
    for run in sorted(runs, key=lambda run: _order(run, measures)):
        final_graphs = results.reported_graphs(run, chosen[chosen["run"] == run.name], stored[run.name])
        if not final_graphs:
            continue
        graphs = final_graphs[0][0]
        weights = np.mean([seed_graphs.weights[index].mean(0) for seed_graphs, index in final_graphs], axis=0)
        titles = [] if graphs.group is None else run.group_names(graphs.group)
        figure = plots.graph(weights, names_of(run, len(weights)), graphs.group, titles)
        main = PageFigure(run.label, figure, _caption(run, weights, final_graphs, measures))
        yield {"title": run.label, "main": main, "steps": _steps(run, graphs)}


def names_of(run: Run, count: int) -> list[str]:
    """Names of `count` clients; numbers alone where the data have no names."""
    names = _full_names(run, count)
    has_names = not all(name.startswith(DEFAULT_PREFIX) for name in names)
    return names if has_names else [name.removeprefix(DEFAULT_PREFIX) for name in names]


def _full_names(run: Run, count: int) -> list[str]:
    return run.client_names if len(run.client_names) == count else [f"{DEFAULT_PREFIX}{i}" for i in range(count)]


def _order(run: Run, measures: pd.DataFrame) -> tuple[float, float]:
    return -np.nan_to_num(_value(run, measures, results.AUC)), -np.nan_to_num(_value(run, measures, results.VARIATION))


def _value(run: Run, measures: pd.DataFrame, quantity: str) -> float:
    rows = measures[(measures["run"] == run.name) & (measures["quantity"] == quantity)]["value"]
    return float(rows.iloc[0]) if len(rows) else float("nan")


def _caption(run: Run, weights: np.ndarray, final_graphs: Sequence[tuple[Graphs, int]], measures: pd.DataFrame) -> str:
    auc, variation = _value(run, measures, results.AUC), _value(run, measures, results.VARIATION)
    others = np.where(np.eye(len(weights), dtype=bool), 0.0, weights)
    rounds = sorted({graphs.rounds[index] for graphs, index in final_graphs})
    phrases = [f"AUC for own group {auc:.2f}"] if np.isfinite(auc) else []
    if np.isfinite(variation):
        phrases.append(f"variation between rows {100 * variation:.{0 if variation >= 0.1 else 1}f} %")
    if np.isfinite(sources := _value(run, measures, SOURCES)):
        phrases.append(f"{sources:.1f} effective sources")
    phrases.append(f"weight on itself {np.diag(weights).mean():.2g}")
    phrases.append(f"between two clients up to {others.max(initial=0.0):.2g}")
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    seeds = f"{len(final_graphs)} seeds" if len(final_graphs) > 1 else f"seed {final_graphs[0][0].seed}"
    return f"{'; '.join(phrases)}. {seeds}, {when}."


def _steps(run: Run, graphs: Graphs) -> PageFigure:
    order = plots.group_order(graphs.group, graphs.weights.shape[-1])
    weights = graphs.weights[:, :, order][..., order]
    return PageFigure(run.label, plots.collaboration(weights, graphs.rounds, graphs.layers), f"Seed {graphs.seed}.")


def evolution(runs: Sequence[Run], graphs: StoredGraphs) -> Iterable[PageFigure]:
    """How the weights change over rounds and depth."""
    for run in runs:
        stored = next(iter(graphs[run.name].values()), None)
        if not stored or len(stored.rounds) < 3 or np.ptp(stored.weights, axis=0).max() == 0:
            continue
        count = stored.weights.shape[-1]
        if stored.group is None and count > MOST_LINES:
            continue
        names = _full_names(run, count)
        first_row = f"Row of {names[0]}; thin lines are the clients it weighs least"
        whose = "Mean weight of one client" if stored.group is not None else first_row
        figure = plots.evolution(stored.weights, stored.rounds, stored.layers, stored.group, names)
        yield PageFigure(run.label, figure, f"{whose}; seed {stored.seed}.")


def maps(runs: Sequence[Run], graphs: StoredGraphs) -> Iterable[PageFigure]:
    """The vectors by which the server describes clients, in the plane, with the graph between them if it is sparse."""
    for run in runs:
        portrait = results.portrait(run)
        if portrait is None or len(portrait.vectors) < 3 or not np.isfinite(portrait.vectors).all():
            continue
        points, method = project_to_plane(portrait.vectors)
        stored = graphs[run.name].get(portrait.seed)
        links = edges(stored.weights[-1], len(points)) if stored else np.empty((2, 0), dtype=int)
        names = names_of(run, len(points)) if len(points) <= MOST_NAMED else []
        groups = [] if portrait.group is None else run.group_names(portrait.group)
        yield PageFigure(
            run.label,
            plots.client_map(points, links, portrait.group, names, groups),
            f"{method}, round {portrait.round}, seed {portrait.seed}. {_about_points(names, groups)}",
        )


def _about_points(names: Sequence[str], groups: Sequence[str]) -> str:
    """The meaning of the marks and words on a map."""
    marks = "Colours are groups. " if len(groups) <= len(plots.LIGHT) else "Colours and shapes are groups. "
    words = "A name is" if names else "The file clients.csv has the name of every number. A number is"
    return f"{marks if groups else ''}{words} left out where it would cover another one."


def edges(weights: np.ndarray, clients: int) -> np.ndarray:
    """Pairs [2, E] with a weight between them in [L, N, N]; none where nearly every client learns from every other."""
    linked = np.triu((np.abs(weights) > 0).any(0) | (np.abs(weights) > 0).any(0).T, 1)
    fits = linked.shape == (clients, clients) and linked.sum() <= MAX_DENSITY * clients * (clients - 1) / 2
    return np.stack(np.nonzero(linked)) if fits else np.empty((2, 0), dtype=int)


def project_to_plane(vectors: np.ndarray) -> tuple[np.ndarray, str]:
    """Points [N, 2] of vectors [N, D], and the name of the projection."""
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0)
    if len(vectors) >= MIN_TSNE_CLIENTS:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        perplexity = min(30.0, (len(vectors) - 1) / 3)
        start = "pca" if vectors.shape[1] > 1 else "random"
        # For so few points, several threads mostly wait for each other: 20 s instead of 0.3 s for 48 clients.
        with threadpool_limits(1):
            return TSNE(perplexity=perplexity, init=start, random_state=0).fit_transform(centred), "t-SNE"
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : min(2, len(s))] = (u * s)[:, :2]
    return points, "First two principal components"
