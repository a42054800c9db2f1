"""What went on inside the methods of one task: collaboration graphs, maps of clients, diagnostics, and what papers print of them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.plots import Look
from fedweave.results import EMPTY, Run, shown

NEIGHBOURS = 30  # most clients whose single weights are drawn as lines
DENSE = 0.3  # share of pairs from which on edges on a map would hide the clients
EMBEDDED = 20  # fewest clients for t-SNE; fewer lie in the plane of their principal components

POINTS = {"pre": "as received", "post": "after local training"}
KINDS = {"collab_weight_self": "oneself", "collab_weight_similar": "similar", "collab_weight_other": "other"}


class Figure(NamedTuple):
    """A drawing with its caption."""

    title: str
    svg: str
    caption: str = ""


class Grid(NamedTuple):
    """A small table of text; numbers stand right."""

    title: str
    header: list[str]
    rows: list[list[str]]
    caption: str = ""


def graphs(runs: list[Run]) -> Iterable[Figure]:
    """Who learns from whom, a figure for every run that kept its graphs."""
    for run in runs:
        kept = results.graphs(run)
        if kept:
            yield Figure(run.label, plots.collaboration(kept.weights, kept.rounds, kept.layers), f"Seed {kept.seed}.")


def evolution(runs: list[Run]) -> Iterable[Figure]:
    """How those weights change over rounds and depth."""
    for run in runs:
        kept = results.graphs(run)
        if not kept or len(kept.rounds) < 3 or np.ptp(kept.weights, axis=0).max() == 0:
            continue
        if kept.group is None and kept.weights.shape[-1] > NEIGHBOURS:
            continue
        whose = "Mean weight of one client" if kept.group is not None else "Row of client 0; thin lines are the clients it weighs least"
        yield Figure(run.label, plots.evolution(kept.weights, kept.rounds, kept.layers, kept.group), f"{whose}; seed {kept.seed}.")


def maps(runs: list[Run]) -> Iterable[Figure]:
    """The vectors that the server knows clients by, in the plane, with the graph between them where it is sparse."""
    for run in runs:
        known = results.portrait(run)
        if known is None or len(known.vectors) < 3 or not np.isfinite(known.vectors).all():
            continue
        places, how = in_the_plane(known.vectors)
        kept = results.graphs(run, known.seed)
        drawn = plots.atlas(places, edges(kept.weights[-1], len(places)) if kept else np.empty((2, 0), dtype=int), known.group)
        yield Figure(run.label, drawn, f"{how}, round {known.round}, seed {known.seed}; colours are planted groups, if there are any.")


def edges(weights: np.ndarray, clients: int) -> np.ndarray:
    """Pairs [2, E] with a weight between them in [L, N, N]; none where nearly everybody learns from everybody."""
    linked = np.triu((np.abs(weights) > 0).any(0) | (np.abs(weights) > 0).any(0).T, 1)
    fits = linked.shape == (clients, clients) and linked.sum() <= DENSE * clients * (clients - 1) / 2
    return np.stack(np.nonzero(linked)) if fits else np.empty((2, 0), dtype=int)


def in_the_plane(vectors: np.ndarray) -> tuple[np.ndarray, str]:
    """Places [N, 2] of vectors [N, D], and how they were found."""
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0)
    if len(vectors) >= EMBEDDED:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(vectors) - 1) / 3)
        return TSNE(perplexity=perplexity, init="pca" if vectors.shape[1] > 1 else "random", random_state=0).fit_transform(centred), "t-SNE"
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(vectors), 2))
    places[:, : min(2, len(s))] = (u * s)[:, :2]
    return places, "First two principal components"


def diagnostics(runs: list[Run], looks: Mapping[str, Look]) -> list[Figure]:
    """One figure for every diagnostic, a line for every run that has it."""
    parts = [run.diagnostics.assign(method=run.label) for run in runs if len(run.diagnostics)]
    if not parts:
        return []
    table = pd.concat(parts).groupby(["name", "method", "round"])["value"].agg(["mean", "std"]).reset_index()
    return [Figure(str(name), plots.convergence(part, looks, str(name))) for name, part in table.groupby("name", sort=False)]


def shares(measures: pd.DataFrame) -> Iterable[Grid]:
    """Weights of oneself, of similar and of other clients, over time and depth: FedAGHN's Table 4."""
    weights = measures[measures["quantity"].isin(list(KINDS))]
    for method, table in weights.groupby("method", sort=False):
        stages = dict(zip(table["stage"], table["round"], strict=True))
        cells = table.set_index(["part", "quantity", "stage"])[["value", "printed"]].sort_index()
        parts = [part for part in dict.fromkeys(table["part"]) if part == "all" or not _same(cells, part)]
        rows = [
            [kind if part == "all" else f"{kind}, {part} layers", *(_weight(cells.loc[(part, quantity, stage)]) for stage in stages)]
            for part in parts
            for quantity, kind in KINDS.items()
        ]
        when = f"After {', '.join(f'{round:g}' for round in stages.values())} rounds."
        printed = " In brackets what the paper prints." if table["printed"].notna().any() else ""
        yield Grid(str(method), ["weight of", *stages], rows, when + printed)


def _same(cells: pd.DataFrame, part: str) -> bool:
    return bool(np.array_equal(cells.loc[part, "value"].to_numpy(), cells.loc["all", "value"].to_numpy(), equal_nan=True))


def _weight(cell: pd.Series) -> str:
    text = f"{cell['value']:.4f}" if np.isfinite(cell["value"]) else EMPTY
    return text + (f" ({cell['printed']:.4f})" if np.isfinite(cell["printed"]) else "")


def others(measures: pd.DataFrame) -> Grid | None:
    """Traffic and sizes beside the printed ones."""
    table = measures[~measures["quantity"].isin(list(KINDS))]
    if table.empty:
        return None
    rows = [[f"{r['quantity']} {r['method']}".strip(), f"{r['value']:,.6g}", f"{r['printed']:,.6g}"] for r in table.to_dict("records")]
    return Grid("Also printed", ["quantity", "ours", "paper"], rows)


def cohorts(table: pd.DataFrame) -> Grid | None:
    """Scores of newcomers, liars and the rest, at both points."""
    if table.empty:
        return None
    points = [point for point in POINTS if point in set(table["point"])]
    rows = []
    for (method, cohort, clients), part in table.groupby(["method", "cohort", "clients"], sort=False):
        scores = {row["point"]: shown(row["mean"], row["std"], row["metric"]) for row in part.to_dict("records")}
        rows.append([f"{method}: {clients} {cohort}", *(scores.get(point, EMPTY) for point in points)])
    return Grid("Clients apart", ["clients", *(POINTS[point] for point in points)], rows)


def leaking(table: pd.DataFrame, task: str) -> list[str]:
    """A line for every run of the task that trained on test rows."""
    rows = table[(table["leak"] == "training") & (table["task"] == task)]
    return [
        f"{row['method']} trained on test rows and is compared with nothing: {shown(row['mean'], row['std'], row['metric'])}."
        for row in rows.to_dict("records")
    ]
