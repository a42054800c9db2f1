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
        notes=[*_notes(ordered, marks, len(next(iter(scores.values()))[0])), *inside.leaking(made.leaky, task)],
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
        marks=marks,
    )


def _of(table: pd.DataFrame, task: str) -> pd.DataFrame:
    return table[table["task"] == task]


def marked(board: pd.DataFrame, significance: pd.DataFrame) -> dict[str, str]:
    """Method -> "best" (ahead of all others by the test), "lead" (highest, but not so), "tied" (not told apart from the
    leader), "behind", or "diverged".
    """
    tests = significance[significance["family"] == "leader"]
    marks = dict.fromkeys(board["method"], "behind")
    for test in tests.to_dict("records"):
        marks[test["other"]] = "behind" if test["better"] else "tied"
    finite = board[board["mean"].notna()]["method"]
    marks |= dict.fromkeys(board[board["mean"].isna()]["method"], "diverged")
    if len(finite) and len(board) > 1:
        leader = tests["method"].iloc[0] if len(tests) else finite.iloc[0]
        rest = [mark for method, mark in marks.items() if method != leader]
        marks[leader] = "best" if "behind" in rest and "tied" not in rest else "lead"
    return marks


def verdict(board: pd.DataFrame, marks: Mapping[str, str]) -> str:
    """The outcome in one sentence that claims no more than the test does."""
    leader = next((method for method, mark in marks.items() if mark in ("best", "lead")), board["method"].iloc[0])
    if board["mean"].isna().all():
        return "No method reached a finite score."
    row = board[board["method"] == leader].iloc[0]
    score = shown(row["mean"], row["std"], row["metric"]) + (" %" if row["metric"] == "accuracy" else "")
    tied = [method for method in board["method"] if marks[method] == "tied"]
    behind = sum(mark == "behind" for mark in marks.values())
    if len(board) == 1 or not (tied or behind):
        return f"{leader} reaches {score}; there is nothing to compare it with."
    if not tied:
        return f"{leader} is best with {score}, significantly ahead of {_count(behind)}."
    return f"{leader} leads with {score}, but the test does not tell it apart from {_listed(tied)}" + (
        f"; it is significantly ahead of {_count(behind)}." if behind else "."
    )


def _count(behind: int) -> str:
    return "the one other method" if behind == 1 else f"{behind} other methods"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


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


def _notes(runs: list[Run], marks: Mapping[str, str], clients: int) -> list[str]:
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
    if len(runs) > 1 and 2.0 ** (1 - clients) * (len(runs) - 1) >= stats.ALPHA:
        notes.append(f"With {clients} clients and {len(runs)} methods the test cannot call anything significant.")
    if runs[0].evaluations["seed"].nunique() == 1:
        notes.append("One seed only: nothing is known about the spread over seeds.")
    return notes


def _columns(board: pd.DataFrame, runs: list[Run]) -> list[tuple[str, str]]:
    columns = [("point", "evaluated")] if len({run.info["point"] for run in runs}) > 1 else []
    columns += [("worst10", "worst 10 %"), ("spread", "± clients"), ("gap", "to leader"), ("p", "p (Holm)")]
    if board["published_mean"].notna().any():
        columns += [("printed", "paper"), ("off", "ours \N{MINUS SIGN} paper")]
    return [*columns, ("up", "MiB up"), ("down", "MiB down"), ("seconds", "seconds")]


def _rows(
    board: pd.DataFrame, runs: list[Run], scores: Mapping[str, np.ndarray], significance: pd.DataFrame,
    marks: Mapping[str, str], looks: Mapping[str, Look], columns: list[tuple[str, str]],
) -> list[Row]:  # fmt: skip
    intervals = {method: stats.bootstrap(scores[method]) for method in board["method"]}
    ends = np.array([*intervals.values()])
    low, high = (np.nanmin(ends), np.nanmax(ends)) if np.isfinite(ends).any() else (0.0, 1.0)
    scale = 100 / ((high - low) or 1.0)
    tests = significance[significance["family"] == "leader"].set_index("other")["p_holm"]
    found = []
    for run, row in zip(runs, board.to_dict("records"), strict=True):
        method, metric = row["method"], row["metric"]
        a, b = intervals[method]
        interval = {"left": (a - low) * scale, "width": (b - a) * scale, "at": (row["mean"] - low) * scale}
        keys = _keys(row, float(board["mean"].iloc[0]), float(tests.get(method, np.nan)))
        text = f"95 % interval {shown(a, np.nan, metric)} to {shown(b, np.nan, metric)}"
        cells = {key: _cell(key, keys[key], row) for key, _ in columns if key in keys}
        cells["point"] = {"pre": "received", "post": "trained"}.get(run.info["point"], "")
        remark = published.remark(run.reference, run.printed_label) if run.reference and pd.notna(row["published_mean"]) else ""
        score = shown(row["mean"], row["std"], metric)
        found.append(Row(method, looks[method].series, marks[method], score, interval if a == a else {}, text,
                         cells, {**keys, "score": row["mean"]}, remark))  # fmt: skip
    return found


def _keys(row: Mapping[str, Any], leader: float, p: float) -> dict[str, float]:
    return {
        "worst10": row["worst10"], "spread": row["client_std"], "gap": row["mean"] - leader, "p": p,
        "printed": row["published_mean"], "off": row["mean"] - row["published_mean"],
        "up": row["bytes_up"] / results.MIB, "down": row["bytes_down"] / results.MIB, "seconds": row["seconds"],
    }  # fmt: skip


def _cell(key: str, value: float, row: Mapping[str, Any]) -> str:
    if not np.isfinite(value) or (key == "gap" and value == 0):
        return EMPTY
    if key == "p":
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if key in ("up", "down", "seconds"):
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
    return [Figure(title, plots.convergence(part, looks, metric), caption) for title, part in parts.items() if len(part)]


def _clients(board: pd.DataFrame, scores: Mapping[str, np.ndarray], looks: Mapping[str, Look], metric: str) -> str:
    return plots.client_spread({method: scores[method].mean(axis=0) for method in board["method"]}, looks, metric)


def _labels(path: Path) -> Figure | None:
    found = extras.label_counts(path)
    return Figure("Labels", plots.labels(*found), "Rows of each label that a client holds.") if found else None


def _pairs(methods: list[str], tests: pd.DataFrame) -> dict[str, Any]:
    """Methods and a square of cells (symbol, title): does the row's method beat the column's?"""
    square = {(a, a): ("", "") for a in methods}
    for test in tests.to_dict("records"):
        a, b, p = test["method"], test["other"], test["p_holm"]
        title = f"{a} \N{MINUS SIGN} {b}: {test['difference']:+.3g} [{test['low']:+.3g}, {test['high']:+.3g}], p = {p:.2g}"
        won = {"": ("·", "·"), a: ("▲", "▽"), b: ("▽", "▲")}[test["better"]]
        square[a, b], square[b, a] = (won[0], title), (won[1], title)
    return {"methods": methods, "cells": [[square[a, b] for b in methods] for a in methods]}
