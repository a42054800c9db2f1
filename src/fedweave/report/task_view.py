"""The section of the page on one task: its leaderboard, its verdict in a sentence, its figures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.errors import format_count
from fedweave.plots import SeriesStyle
from fedweave.report import answers, graphs, method_views, optional_files, picture
from fedweave.report.board import CSS_CLASSES, columns_of, describe_comparison, rows_of
from fedweave.report.method_views import POINTS, PageFigure
from fedweave.report.rounds import round_figures
from fedweave.results import Run, Study, Tables, parts, published
from fedweave.results.contestants import contestant_notes
from fedweave.results.gains import client_differences
from fedweave.results.marks import CONTROLS, REFERENCES, SYMBOLS, assign_marks, control_tests, outcome
from fedweave.results.nonfinite import client_notes
from fedweave.results.ranking import Ranking
from fedweave.results.verdicts import (
    describe_fixed,
    describe_test,
    join_names,
    reason_without_power,
    short_reason,
    verdict,
)

BOLD = 3  # best methods that figures draw in colour, in addition to the controls
WIDE = 30  # with more clients, a collaboration graph takes the whole width

RULES = {
    "best_val_round": "round with the best mean validation score",
    "per_client_best_val": "best validation round of each client",
    "last": "last round",
}


def view(
    task: str, study: Study, tables: Tables, styles: Mapping[str, SeriesStyle], partitions: Path, anchor: str
) -> dict[str, Any]:
    """Everything the page shows about `task`: the variables of `task_section` in parts.html."""
    runs = results.by_task(study)[task]
    board, significance = _task_rows(tables.board, task), _task_rows(tables.significance, task)
    measures, marks = _task_rows(tables.measures, task), assign_marks(board, significance)
    by_name, metric = {run.name: run for run in runs}, str(board["metric"].iloc[0])
    ordered = [by_name[name] for name in board["run"]]
    margin, has_verdicts = study.margin(metric).describe(metric), (significance["verdict"] != "").any()
    curves, cohorts = _task_rows(tables.curves, task), _task_rows(tables.cohorts, task)
    leaks, found = method_views.leak_notes(tables.leaky, task), answers.answer(study, tables, task)
    rows, controls = list(rows_of(board, ordered, significance, styles)), _task_rows(tables.controls, task)
    stored = {run.name: results.graphs_by_seed(run) for run in runs}
    return {
        "anchor": anchor,
        "title": f"{board['dataset'].iloc[0]} · {board['setting'].iloc[0]}",
        "answers": found,
        "picture": picture.draw(board, rows, controls, study.margin(metric)),
        "gains": _gains(ordered, tables.clients, found.method),
        "facts": [*_facts(task, ordered), *_tests(ordered, tables.clients, margin)],
        "verdict": verdict(study, tables, task),
        "has_verdicts": bool(has_verdicts),
        "margin": margin,
        "interval": "95 % interval" + " over clients" * int(board["seeds"].max() == 1),
        "notes": [*_notes(ordered, marks, tables), *_convergence_note(board), *leaks],
        "metric": metric,
        "higher_is_better": runs[0].higher_is_better,
        "columns": columns_of(board, ordered, significance),
        "rows": rows,
        "controls": [(row["method"], row["score"]) for row in results.control_rows(controls)],
        "curves": round_figures(curves, ordered, styles, metric, coloured_methods(board)),
        "clients": _clients(ordered, tables.clients, styles),
        "cost": _cost(board, styles, metric),
        "labels": _labels(partitions / task / "labels.csv", ordered[0]),
        "graphs": list(graphs.graph_figures(ordered, stored, tables.measures, tables.clients)),
        "wide": len(ordered[0].client_names) > WIDE,
        "evolution": list(graphs.evolution(ordered, stored)),
        "maps": list(graphs.maps(ordered, stored)),
        "diagnostics": method_views.diagnostics(ordered, styles),
        "grids": [grid for grid in (method_views.cohorts(cohorts), method_views.printed_quantities(measures)) if grid],
        "shares": list(method_views.shares(measures)),
        "pairs": _pairs(list(board["method"]), significance, metric),
        "ranks": _ranks(tables.ranks, task, "splits" if runs[0].has_splits else parts.name_parts(runs)),
        "marks": marks,
    }


def coloured_methods(board: pd.DataFrame) -> list[str]:
    """The methods of a task that figures draw in colour: the best few, and the controls."""
    methods = [name for name in board["method"] if name not in REFERENCES]
    return [*methods[:BOLD], *(name for name in REFERENCES if name in set(board["method"]))]


def _convergence_note(board: pd.DataFrame) -> list[str]:
    """A warning that names every method whose best validation round is the last one."""
    unconverged = list(results.unconverged_rows(board)["method"])
    start = "Not converged, validation was best at the last round in at least half of the seeds"
    return [f"{start}: {', '.join(unconverged)}."] if unconverged else []


def _task_rows(table: pd.DataFrame, task: str) -> pd.DataFrame:
    return table[table["task"] == task]


def _facts(task: str, runs: list[Run]) -> list[tuple[str, str]]:
    info = runs[0].info
    spec = info.get("spec") or {}
    train = spec.get("train") or {}
    block = spec.get("task")
    model = (block.get("model") or {}) if isinstance(block, Mapping) else {}
    steps, epochs = train.get("steps"), train.get("epochs", "?")
    local = format_count(steps, "local step") if steps else format_count(epochs, "local epoch")
    rounds = _format_range(run.trained_rounds for run in runs)
    points = sorted({POINTS.get(run.info["point"], run.info["point"]) for run in runs})
    rules = sorted({RULES.get(run.info["select"], run.info["select"]) for run in runs})
    clients, evaluated = len(runs[0].client_names), len(runs[0].evaluated_clients)
    parameters = _format_range(run.info.get("parameters", 0) for run in runs)
    return [
        ("task", task),
        ("clients", str(clients) if evaluated == clients else f"{clients}, {evaluated} of them evaluated"),
        ("model", f"{model.get('name', '?')}, {parameters} parameters"),
        ("training", f"{rounds} round{'s' * (rounds != '1')}, {local}"),
        ("seeds", _format_range(run.evaluations["seed"].nunique() for run in runs)),
        ("selected", "; ".join(rules)),
        ("evaluated", "; ".join(points)),
    ]


def _tests(runs: list[Run], clients: pd.DataFrame, margin: str) -> list[tuple[str, str]]:
    """Which test compares the methods, which clients it counts as one, and what is equivalent."""
    test, parts_text = describe_test(runs), parts.describe(runs, clients)
    words = "; ".join(filter(None, (test, parts_text)))
    equivalent = [("margin of equivalence", margin)] if len(runs) > 1 else []
    return ([("test" if test else "interval", words)] if words else []) + equivalent


def _format_range(numbers: Iterable[int]) -> str:
    values = list(numbers)
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _cost(board: pd.DataFrame, styles: Mapping[str, SeriesStyle], metric: str) -> PageFigure:
    figure = plots.cost(board, styles, metric)
    caption = "Best score first. Costs are of one seed, over all rounds and clients, averaged over the seeds."
    return PageFigure("Score against cost", figure, caption)


def _notes(runs: list[Run], marks: Mapping[str, str], tables: Tables) -> list[str]:
    notes = list(dict.fromkeys(str(run.info["note"]) for run in runs if run.info.get("note")))
    notes += contestant_notes(runs)
    if chosen_by := runs[0].info.get("selected_by"):
        notes.append(f"Scores by {runs[0].info['metric']} are at the rounds that {chosen_by} chose on validation data.")
    notes += client_notes(runs, tables.clients)
    for reason in dict.fromkeys(run.shortfall for run in runs if run.shortfall):
        labels = [run.label for run in runs if run.shortfall == reason]
        who = "" if len(labels) == len(runs) else f" ({', '.join(labels)})"
        notes.append(f"Reduced budget{who}: {reason}, so no printed number is shown for it.")
    papers = {run.reference.paper for run in runs if run.reference and not run.shortfall}
    if papers & published.STD_OVER_CLIENTS:
        notes.append("The paper's ± is over clients, ours over seeds.")
    diverged = [method for method, mark in marks.items() if mark == "diverged"]
    if diverged:
        notes.append(f"Without a finite score in some seed: {', '.join(diverged)}.")
    notes += _incidents(runs)
    tests = _task_rows(tables.significance, runs[0].task)
    notes += filter(None, (describe_fixed(tests),))
    if no_power := reason_without_power(runs, tables.clients):
        said = short_reason(runs, tests).capitalize()  # by the verdict
        notes.append(no_power.removeprefix(f"{said}. "))
    elif runs[0].evaluations["seed"].nunique() == 1:
        notes.append("One seed only: nothing is known about the spread over seeds.")
    return notes


def _incidents(runs: list[Run]) -> list[str]:
    """Notes on uploads: how many were dropped as broken, and which were differentially private."""
    dropped = [f"{run.label} {run.info['dropped']}" for run in runs if run.info.get("dropped")]
    trained_privately = [run for run in runs if run.info.get("epsilon")]
    private = [f"{one.label} ε = {one.info['epsilon']:.3g} at δ = {one.info['delta']:g}" for one in trained_privately]
    notes = [f"Broken uploads that the server dropped: {', '.join(dropped)}."] if dropped else []
    return notes + ([f"Differentially private uploads, worst seed: {', '.join(private)}."] if private else [])


def _clients(runs: list[Run], table: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> PageFigure:
    ticks, metric = client_ticks(runs, table), str(runs[0].info["metric"])
    caption = "client of one split" if runs[0].has_splits else "client, averaged over seeds"
    return PageFigure("Clients", plots.client_spread(ticks, styles, metric), f"Every tick is one {caption}.")


def _gains(runs: Sequence[Run], table: pd.DataFrame, method: str) -> PageFigure | None:
    """Who gains and who loses with what is deployed, or with the leader where that is Local or open."""
    differences = client_differences(runs, table)
    with_scores = [run for run in runs if np.isfinite(differences.get(run.name, np.nan)).any()]
    run = next((run for run in with_scores if run.label == method), next(iter(with_scores), None))
    if run is None:
        return None
    arguments = (differences[run.name], list(run.client_names), str(run.info["metric"]))
    caption = f"{run.label} against Local, mean over seeds, one dot a client. Single clients are not tested."
    wide, narrow = (plots.client_gains(*arguments, narrow=narrow) for narrow in (False, True))
    return PageFigure("Who gains and who loses", wide, caption, narrow)


def client_ticks(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Label -> scores of the clients in one task, one for each; where repetitions have splits of their own, one for
    each client of every split.
    """
    scores = {run.label: results.score_matrix(table, run.name).to_numpy() for run in runs}
    return {label: values.ravel() if runs[0].has_splits else values.mean(axis=0) for label, values in scores.items()}


def _labels(path: Path, run: Run) -> PageFigure | None:
    counts = optional_files.label_counts(path)
    if not counts:
        return None
    figure = plots.labels(*counts, graphs.names_of(run, len(counts[0])))
    return PageFigure("Labels", figure, "Rows of each label that a client holds.")


def _ranks(ranks: pd.DataFrame, task: str, blocks: str) -> PageFigure | None:
    ranked = ranking(ranks, task)
    if ranked is None:
        return None
    caption = "1 is best; a thick bar joins methods whose ranks differ by less than Nemenyi's critical difference."
    facts = f"Average over {ranked.tasks} {blocks}, Friedman p = {ranked.p:.2g}."
    facts += "" if blocks == "splits" else " Seeds are averaged: it says nothing of models that other seeds would give."
    return PageFigure(f"Ranks over {blocks}", plots.critical_difference(ranked), f"{caption} {facts}")


def ranking(ranks: pd.DataFrame, task: str = "") -> Ranking | None:
    """The average ranks over the clients or splits of `task`, or over all tasks; None where too little is there."""
    table = ranks[ranks["task"] == task]
    if table.empty:
        return None
    blocks, difference, p = (table[name].iloc[0] for name in ("blocks", "critical_difference", "p"))
    return Ranking(tuple(table["method"]), table["rank"].to_numpy(), int(blocks), float(p), float(difference))


def _pairs(methods: list[str], significance: pd.DataFrame, metric: str) -> dict[str, Any]:
    """Methods, a square of cells (symbol, style, title): is the row's method better than the column's?, and the
    controls that the leaderboard compares with by another correction.
    """
    square = {(a, a): ("", "", "") for a in methods}
    for test in significance[significance["family"] == "pairs"].to_dict("records"):
        for first, second in ((test["method"], test["other"]), (test["other"], test["method"])):
            word = outcome(test, first)
            square[first, second] = (SYMBOLS[word], CSS_CLASSES[word], describe_comparison(test, first, metric))
    controls = [control for control in CONTROLS if control_tests(significance, control)]
    return {
        "methods": methods,
        "cells": [[square[a, b] for b in methods] for a in methods],
        "controls": join_names([f"vs {control}" for control in controls]) if controls else "",
    }
