"""The page as data for its template: the study at a glance, its tasks, tuning, ablations, environment."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots, results, stats
from fedweave.plots import Look
from fedweave.report import extras, task_view
from fedweave.report.inside import Figure
from fedweave.report.sweeps import sweeps
from fedweave.report.task_view import TaskView
from fedweave.results import EMPTY, Run, Study, Tables, shown


class Glance(NamedTuple):
    """One method over the tasks: mean rank, label, series, and (text, mark) for each task."""

    rank: str
    method: str
    series: int
    cells: list[tuple[str, str]]


class Search(NamedTuple):
    """One search as the page shows it."""

    run: str
    best: list[tuple[str, str]]
    budget: str
    svg: str


def context(study: Study, made: Tables, partitions: Path) -> dict[str, Any]:
    """Names for the template."""
    looks = plots.looks([run.label for run in study.runs])
    grouped = results.by_task(study)
    views = [task_view.view(task, runs, made, looks, partitions, f"task-{i}") for i, (task, runs) in enumerate(grouped.items())]
    ranked = ranking(study, made.board)
    return {
        "study": study.name,
        "tiles": _tiles(study, views),
        "views": views,
        "glance": glance(made.board, views, looks),
        "ranking": ranked,
        "rank_figure": plots.critical_difference(ranked) if ranked else "",
        "sweeps": sweeps(made.board, made.cohorts, looks),
        "leak": _leak(made),
        "unfinished": study.unfinished,
        "searches": list(_searches(study)),
        "ablations": list(_ablations(study.folder)),
        "settings": [(run.name, run.label, list(_flat(run.info.get("spec") or {}))) for run in study.runs],
        "machines": _machines(study.runs),
        "versions": _versions(study.runs),
        "hues": {"light": plots.LIGHT, "dark": plots.DARK},
        "looks": looks,
    }


def _tiles(study: Study, views: list[TaskView]) -> list[tuple[str, str]]:
    seeds = {run.evaluations["seed"].nunique() for run in study.runs}
    counts = [(len(views), "task"), (len({run.label for run in study.runs}), "method"), (len(study.runs), "run")]
    tiles = [(f"{count}", word + "s" * (count != 1)) for count, word in counts]
    seconds = sum(run.rounds["seconds"].sum() for run in study.runs)
    spent = next(f"{seconds / size:.1f} {unit}" for size, unit in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= size or size == 1)
    spread = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return [*tiles, (spread, "seeds each" if seeds != {1} else "seed each"), (spent, "of training")]


def glance(board: pd.DataFrame, views: list[TaskView], looks: Mapping[str, Look]) -> list[Glance]:
    """The study in one table, best mean rank first; ranks are averaged over the tasks that a method ran on."""
    marks = dict(zip(dict.fromkeys(board["task"]), (view.marks for view in views), strict=True))
    texts: dict[str, dict[str, tuple[str, str]]] = {}
    for row in board.to_dict("records"):
        text = shown(row["mean"], np.nan, row["metric"])
        texts.setdefault(row["method"], {})[row["task"]] = (text, marks[row["task"]][row["method"]])
    place = board.groupby("task").cumcount() + 1
    mean = place.where(board["mean"].notna()).groupby(board["method"]).mean()
    return [
        Glance(f"{mean[m]:.1f}" if np.isfinite(mean[m]) else EMPTY, m, looks[m].series, [texts[m].get(t, ("", "")) for t in marks])
        for m in sorted(texts, key=lambda m: (np.nan_to_num(mean[m], nan=np.inf), m))
    ]


def ranking(study: Study, board: pd.DataFrame) -> stats.Ranking | None:
    """Average ranks of the methods that have a finite score on every task; None where that is too few."""
    table = board.pivot(index="task", columns="method", values="mean").dropna(axis="columns")
    if len(table) < 2 or len(table.columns) < 3:
        return None
    higher = {run.task: run.higher_is_better for run in study.runs}
    return stats.ranking(list(table.columns), table.to_numpy(), [higher[task] for task in table.index])


def _leak(made: Tables) -> str:
    """How much better the accuracies would look had rounds been picked on the test set."""
    both = made.board.merge(made.leaky[["run", "mean"]], on="run", suffixes=("", "_leaky"))
    both = both[both["metric"] == "accuracy"]
    gain = (both["mean_leaky"] - both["mean"]).dropna()
    return f"{gain.max():.2f}" if len(gain) else ""


def _searches(study: Study) -> Iterable[Search]:
    directions = {run.name: run.higher_is_better for run in study.runs}
    for found in extras.tuning(study.folder):
        svg = plots.tuning(found.trials, found.best, directions.get(found.run, True))
        done = int(found.trials["value"].notna().sum())
        budget = [f"{done} of {len(found.trials)} trials finished", *(f"{k} {v}" for k, v in found.budget.items())]
        yield Search(found.run, [(key, _plain(value)) for key, value in found.best.items()], " · ".join(budget), svg)


def _ablations(folder: Path) -> Iterable[tuple[Figure, list[tuple[str, str]]]]:
    table = extras.ablations(folder)
    for (name, task, method), part in table.groupby(["ablation", "task", "method"], sort=False):
        rows = [(str(r["variant"]), shown(r["mean"], r["std"], r["metric"])) for r in part.to_dict("records")]
        yield Figure(f"{name}: {method} on {task}", plots.ablation(part)), rows


def _flat(block: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _machines(runs: tuple[Run, ...]) -> list[list[str]]:
    rows = []
    for run in runs:
        facts = (run.info.get(key, EMPTY) for key in ("device", "executor", "parameters"))
        rows.append([run.name, *(f"{f:,}" if isinstance(f, int) else str(f) for f in facts), str(run.trained_rounds),
                     f"{run.rounds['seconds'].sum():,.1f}", str(run.info.get("spec_hash", EMPTY))[:12]])  # fmt: skip
    return rows


def _versions(runs: tuple[Run, ...]) -> list[tuple[str, str]]:
    """Libraries that trained the runs, as the runs recorded them."""
    named: dict[str, set[str]] = {}
    for run in runs:
        for name, version in (run.info.get("versions") or {}).items():
            named.setdefault(name, set()).add(str(version))
    return [(name, ", ".join(sorted(found))) for name, found in sorted(named.items())]
