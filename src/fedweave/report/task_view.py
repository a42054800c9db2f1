"""What the page says about one task: its leaderboard, its verdict in a sentence, its figures."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots, published, results, stats
from fedweave.plots import Look
from fedweave.report import extras, inside
from fedweave.report.inside import POINTS, Figure, Grid
from fedweave.results import EMPTY, Run, Tables, shown
from fedweave.results.verdicts import blind, marked, verdict

RULES = {
    "best_val_round": "round with the best mean validation score",
    "per_client_best_val": "best validation round of each client",
    "last": "last round",
}


class Row(NamedTuple):
    """One method on one task, ready to print; `numbers` are what its cells sort by."""

    method: str
    series: int
    mark: str
    score: str
    interval: Mapping[str, float]
    interval_text: str
    cells: Mapping[str, str]
    numbers: Mapping[str, float]
    remark: str


class TaskView(NamedTuple):
    """One section of the page."""

    anchor: str
    title: str
    facts: list[tuple[str, str]]
    verdict: str
    notes: list[str]
    metric: str
    higher_is_better: bool
    columns: list[tuple[str, str]]
    rows: list[Row]
    curves: list[Figure]
    clients: Figure
    cost: Figure
    labels: Figure | None
    graphs: list[Figure]
    evolution: list[Figure]
    maps: list[Figure]
    diagnostics: list[Figure]
    grids: list[Grid]
    shares: list[Grid]
    pairs: Mapping[str, Any]
    ranks: Figure | None
    marks: Mapping[str, str]


def view(task: str, runs: list[Run], made: Tables, looks: Mapping[str, Look], partitions: Path, anchor: str) -> TaskView:
    """Everything the page shows about `task`."""
    board, significance = _of(made.board, task), _of(made.significance, task)
    scores = results.values(runs, made.clients)
    marks = marked(board, significance)
    by_name = {run.name: run for run in runs}
    ordered = [by_name[name] for name in board["run"]]
    columns = _columns(board, ordered)
    metric = str(board["metric"].iloc[0])
    return TaskView(
        anchor=anchor,
        title=f"{board['dataset'].iloc[0]} · {board['setting'].iloc[0]}",
        facts=_facts(task, ordered),
        verdict=verdict(board, marks),
        notes=[*_notes(ordered, marks, scores), *inside.leaking(made.leaky, task)],
        metric=metric,
        higher_is_better=runs[0].higher_is_better,
        columns=columns,
        rows=_rows(board, ordered, scores, significance, marks, looks, columns),
        curves=_curves(made.curves[made.curves["task"] == task], ordered, looks, metric),
        clients=Figure("Clients", _clients(board, scores, looks, metric), "Every tick is one client, averaged over seeds."),
        cost=Figure("Score against cost", plots.cost(board, looks, metric), "Totals of one run, all rounds and clients."),
        labels=_labels(partitions / task / "labels.csv"),
        graphs=list(inside.graphs(ordered)),
        evolution=list(inside.evolution(ordered)),
        maps=list(inside.maps(ordered)),
        diagnostics=inside.diagnostics(ordered, looks),
        grids=[grid for grid in (inside.cohorts(_of(made.cohorts, task)), inside.others(_of(made.measures, task))) if grid],
        shares=list(inside.shares(_of(made.measures, task))),
        pairs=_pairs(list(board["method"]), significance[significance["family"] == "pairs"]),
        ranks=_ranks(made.ranks, task),
        marks=marks,
    )


def _of(table: pd.DataFrame, task: str) -> pd.DataFrame:
    return table[table["task"] == task]


def _facts(task: str, runs: list[Run]) -> list[tuple[str, str]]:
    info = runs[0].info
    spec = info.get("spec") or {}
    train = spec.get("train") or {}
    block = spec.get("task")
    model = (block.get("model") or {}) if isinstance(block, Mapping) else {}
    local = f"{train['steps']} local steps" if train.get("steps") else f"{train.get('epochs', '?')} local epochs"
    points = sorted({POINTS.get(run.info["point"], run.info["point"]) for run in runs})
    rules = sorted({RULES.get(run.info["select"], run.info["select"]) for run in runs})
    return [
        ("task", task),
        ("clients", str(info.get("clients", "?"))),
        ("model", f"{model.get('name', '?')}, {_span(run.info.get('parameters', 0) for run in runs)} parameters"),
        ("training", f"{_span(run.trained_rounds for run in runs)} rounds, {local}"),
        ("seeds", _span(run.evaluations["seed"].nunique() for run in runs)),
        ("selected", "; ".join(rules)),
        ("evaluated", "; ".join(points)),
    ]


def _span(numbers: Iterable[int]) -> str:
    found = list(numbers)
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _notes(runs: list[Run], marks: Mapping[str, str], scores: Mapping[str, np.ndarray]) -> list[str]:
    notes = list(dict.fromkeys(str(run.info["note"]) for run in runs if run.info.get("note")))
    for reason in dict.fromkeys(run.shortfall for run in runs if run.shortfall):
        labels = [run.label for run in runs if run.shortfall == reason]
        who = "" if len(labels) == len(runs) else f" ({', '.join(labels)})"
        notes.append(f"Reduced budget{who}: {reason}, so no printed number stands beside it.")
    beside = {run.reference.paper for run in runs if run.reference and not run.shortfall}
    if beside & published.STD_OVER_CLIENTS:
        notes.append("The paper's ± is over clients, ours over seeds.")
    diverged = [method for method, mark in marks.items() if mark == "diverged"]
    if diverged:
        notes.append(f"Without a finite score in some seed: {', '.join(diverged)}.")
    notes += _incidents(runs)
    notes += [told] if (told := blind(runs, scores)) else []
    if runs[0].evaluations["seed"].nunique() == 1:
        notes.append("One seed only: nothing is known about the spread over seeds.")
    return notes


def _incidents(runs: list[Run]) -> list[str]:
    """What happened to uploads on their way: those that were dropped as broken, and what privacy they were given."""
    dropped = [f"{run.label} {run.info['dropped']}" for run in runs if run.info.get("dropped")]
    private = [f"{run.label} ε = {run.info['epsilon']:.3g} at δ = {run.info['delta']:g}" for run in runs if run.info.get("epsilon")]
    notes = [f"Broken uploads that the server dropped: {', '.join(dropped)}."] if dropped else []
    return notes + ([f"Differentially private uploads, worst seed: {', '.join(private)}."] if private else [])


def _columns(board: pd.DataFrame, runs: list[Run]) -> list[tuple[str, str]]:
    columns = [("point", "evaluated")] if len({run.info["point"] for run in runs}) > 1 else []
    columns += [("worst10", "worst 10 %"), ("spread", "± clients")]
    columns += [("below", "below local")] if len(runs) > 1 and any(_alone(run) for run in runs) else []
    columns += [("gap", "to leader"), ("p", "p, clients")]
    columns += [("seeds", "p, seeds")] if runs[0].evaluations["seed"].nunique() > 1 and len(runs) > 1 else []
    if board["published_mean"].notna().any():
        columns += [("printed", "paper"), ("off", "ours \N{MINUS SIGN} paper")]
    return [*columns, ("mib", "MiB"), ("seconds", "seconds")]


def _alone(run: Run) -> bool:
    """Whether its clients learn from nobody: what every client could have had without the federation."""
    return bool(run.info["method"] == "local" and run.printed_label == run.label)


def _below(runs: list[Run], scores: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Percentage of clients that a method leaves with less than they would have had alone, averages over seeds compared."""
    alone = next((scores[run.label].mean(0) for run in runs if _alone(run)), None)
    if alone is None:
        return {}
    sign = 1.0 if runs[0].higher_is_better else -1.0
    return {run.label: 100.0 * float((sign * (scores[run.label].mean(0) - alone) < 0).mean()) for run in runs if not _alone(run)}


def _rows(
    board: pd.DataFrame, runs: list[Run], scores: Mapping[str, np.ndarray], significance: pd.DataFrame,
    marks: Mapping[str, str], looks: Mapping[str, Look], columns: list[tuple[str, str]],
) -> list[Row]:  # fmt: skip
    intervals = {method: stats.bootstrap(scores[method]) for method in board["method"]}
    ends = np.array([*intervals.values()])
    low, high = (np.nanmin(ends), np.nanmax(ends)) if np.isfinite(ends).any() else (0.0, 1.0)
    scale = 100 / ((high - low) or 1.0)
    tests = significance[significance["family"] == "leader"].set_index("other")
    below = _below(runs, scores)
    found = []
    for run, row in zip(runs, board.to_dict("records"), strict=True):
        method, metric = row["method"], row["metric"]
        a, b = intervals[method]
        interval = {"left": (a - low) * scale, "width": (b - a) * scale, "at": (row["mean"] - low) * scale}
        keys = _keys(row, float(board["mean"].iloc[0])) | {"below": below.get(method, np.nan)}
        keys |= {key: float(tests[column].get(method, np.nan)) for key, column in (("p", "p_adjusted"), ("seeds", "p_seeds_adjusted"))}
        text = f"95 % interval {shown(a, np.nan, metric)} to {shown(b, np.nan, metric)}"
        cells = {key: _cell(key, keys[key], row) for key, _ in columns if key in keys}
        cells["point"] = {"pre": "received", "post": "trained"}.get(run.info["point"], "")
        remark = published.remark(run.reference, run.printed_label) if run.reference and pd.notna(row["published_mean"]) else ""
        score = shown(row["mean"], row["std"], metric)
        found.append(Row(method, looks[method].series, marks[method], score, interval if a == a else {}, text,
                         cells, {**keys, "score": row["mean"]}, remark))  # fmt: skip
    return found


def _keys(row: Mapping[str, Any], leader: float) -> dict[str, float]:
    return {
        "worst10": row["worst10"], "spread": row["client_std"], "gap": row["mean"] - leader,
        "printed": row["published_mean"], "off": row["mean"] - row["published_mean"],
        "mib": (row["bytes_up"] + row["bytes_down"]) / results.MIB, "seconds": row["seconds"],
    }  # fmt: skip


def _cell(key: str, value: float, row: Mapping[str, Any]) -> str:
    if not np.isfinite(value) or (key == "gap" and value == 0):
        return EMPTY
    if key == "below":
        return f"{value:.0f} %"
    if key in ("p", "seeds"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if key in ("mib", "seconds"):
        return f"{value:,.1f}"
    if key == "printed":
        return shown(value, row["published_std"], row["metric"])
    sign = "+" if key in ("gap", "off") and value > 0 else ""
    return sign + shown(value, np.nan, row["metric"]).replace("-", "\N{MINUS SIGN}")


def _curves(curves: pd.DataFrame, runs: list[Run], looks: Mapping[str, Look], metric: str) -> list[Figure]:
    """As reported (each run at its own point), on validation, and at every point that is not the reported one."""
    points = {run.name: run.info["point"] for run in runs}
    reported = curves[curves["point"] == curves["run"].map(points)]
    parts = {"Test, as reported": reported[reported["split"] == "test"]}
    parts["Validation: what selection sees"] = reported[reported["split"] == "val"]
    for point, title in POINTS.items():
        if set(points.values()) != {point}:
            parts[f"Test, {title}"] = curves[(curves["split"] == "test") & (curves["point"] == point)]
    caption = "Mean over clients; the band is one standard deviation over seeds."
    drawn = [Figure(title, plots.convergence(part, looks, metric), caption) for title, part in parts.items() if len(part)]
    spent = pd.concat([_spent(run) for run in runs])
    tests = parts["Test, as reported"].merge(spent, on=["run", "round"])
    costs = {"Test against traffic": "MiB sent so far, both ways", "Test against time": "seconds so far, without evaluation"}
    return drawn + [
        Figure(title, plots.convergence(tests, looks, metric, column), caption) for title, column in costs.items() if len(tests)
    ]


def _spent(run: Run) -> pd.DataFrame:
    """What a run has cost by each round, averaged over seeds."""
    totals = run.rounds.groupby("round")[["bytes_up", "bytes_down", "seconds"]].mean().cumsum()
    sent = (totals["bytes_up"] + totals["bytes_down"]) / results.MIB
    columns = {"MiB sent so far, both ways": sent, "seconds so far, without evaluation": totals["seconds"]}
    return pd.DataFrame(columns).reset_index().assign(run=run.name)


def _clients(board: pd.DataFrame, scores: Mapping[str, np.ndarray], looks: Mapping[str, Look], metric: str) -> str:
    return plots.client_spread({method: scores[method].mean(axis=0) for method in board["method"]}, looks, metric)


def _labels(path: Path) -> Figure | None:
    found = extras.label_counts(path)
    return Figure("Labels", plots.labels(*found), "Rows of each label that a client holds.") if found else None


def _ranks(ranks: pd.DataFrame, task: str) -> Figure | None:
    ranked = ranking(ranks, task)
    if ranked is None:
        return None
    caption = "1 is best; a thick bar joins methods that Nemenyi's test does not tell apart."
    facts = f"Average over {ranked.tasks} clients, Friedman p = {ranked.p:.2g}."
    return Figure("Ranks over clients", plots.critical_difference(ranked), f"{caption} {facts}")


def ranking(ranks: pd.DataFrame, task: str = "") -> stats.Ranking | None:
    """The average ranks over the clients of `task`, or over all tasks; None where there is too little to rank."""
    table = ranks[ranks["task"] == task]
    if table.empty:
        return None
    blocks, difference, p = (table[name].iloc[0] for name in ("blocks", "critical_difference", "p"))
    return stats.Ranking(tuple(table["method"]), table["rank"].to_numpy(), int(blocks), float(p), float(difference))


def _pairs(methods: list[str], tests: pd.DataFrame) -> dict[str, Any]:
    """Methods and a square of cells (symbol, title): does the row's method beat the column's?"""
    square = {(a, a): ("", "") for a in methods}
    for test in tests.to_dict("records"):
        a, b, p = test["method"], test["other"], test["p_adjusted"]
        title = f"{a} \N{MINUS SIGN} {b}: {test['difference']:+.3g} [{test['low']:+.3g}, {test['high']:+.3g}], p = {p:.2g}"
        won = {"": ("·", "·"), a: ("▲", "▽"), b: ("▽", "▲")}[test["better"]]
        square[a, b], square[b, a] = (won[0], title), (won[1], title)
    return {"methods": methods, "cells": [[square[a, b] for b in methods] for a in methods]}
