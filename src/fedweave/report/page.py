"""The page as data for its template: an overview, the tasks, tuning, ablations, environment."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.errors import format_count
from fedweave.metrics import spell_out, unit
from fedweave.plots import SeriesStyle
from fedweave.report import ablations, optional_files, task_view
from fedweave.report.summary import summary
from fedweave.report.sweeps import sweeps
from fedweave.results import EMPTY, Run, Study, Tables, format_score
from fedweave.results.marks import REFERENCES
from fedweave.results.ranking import Ranking
from fedweave.results.verdicts import describe_margins
from fedweave.study.spec import flatten

MIN_RANKED_TASKS = 5  # fewest tasks for a diagram of ranks over tasks


class OverviewRow(NamedTuple):
    """One method over the tasks: mean rank, label, series, (text, mark) for each task, and on how many tasks it has a
    score, where these are not all.
    """

    rank: str
    method: str
    series: int
    cells: list[tuple[str, str]]
    part: str


def context(study: Study, tables: Tables, partitions: Path, stale: Collection[str] = ()) -> dict[str, Any]:
    """Variables of the template."""
    untuned = optional_files.untuned_runs(study.folder)
    styles = plots.assign_styles([run.label for run in study.runs], emphasised_methods(tables.board))
    tasks = results.by_task(study)
    views = [task_view.view(task, study, tables, styles, partitions, f"task-{i}") for i, task in enumerate(tasks)]
    marks = {task: view["marks"] for task, view in zip(tasks, views, strict=True)}
    ranking = ranking_over_tasks(tables.ranks)
    return {
        "name": study.name,
        "tiles": _tiles(study, views),
        "summary": summary(study, tables),
        "views": views,
        "overview": overview(tables.board, marks, styles),
        "ranking": ranking,
        "rank_figure": plots.critical_difference(ranking) if ranking else "",
        "sweeps": sweeps(tables.board, tables.cohorts, styles),
        "leak": _leak(tables),
        "margins": describe_margins(study),
        "splits": any(run.has_splits for run in study.runs),
        "unfinished": study.unfinished,
        "stale": stale,
        "searches": list(_searches(study)),
        "untuned": [run.name for run in study.runs if run.name in untuned],
        "ablations": ablations.views(study, styles),
        "settings": [(run.name, run.label, _settings(run)) for run in study.runs],
        "machines": _machines(study.runs),
        "versions": _versions(study.runs),
        "styles": styles,
        "unit": unit,
        "spell_out": spell_out,
    }


def ranking_over_tasks(ranks: pd.DataFrame) -> Ranking | None:
    """The ranks of methods over tasks, if there are enough tasks for a diagram."""
    ranking = task_view.ranking(ranks)
    return ranking if ranking and ranking.tasks >= MIN_RANKED_TASKS else None


def _tiles(study: Study, views: Sequence[Any]) -> list[tuple[str, str]]:
    seeds = {run.evaluations["seed"].nunique() for run in study.runs}
    counts = [(len(views), "task"), (len({run.label for run in study.runs}), "method"), (len(study.runs), "run")]
    tiles = [(f"{count}", word + "s" * (count != 1)) for count, word in counts]
    seconds = sum(run.rounds["seconds"].sum() for run in study.runs)
    size, word = next(pair for pair in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= pair[0] or pair[0] == 1)
    duration = f"{seconds / size:.1f} {word}"
    seed_count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return [*tiles, (seed_count, "seeds each" if seeds != {1} else "seed each"), (duration, "of training")]


def emphasised_methods(board: pd.DataFrame) -> list[str]:
    """The methods that figures emphasise: the best three by mean rank, the controls, and the best three of each task.

    Styles are assigned in this order, so that they differ within one figure.
    """
    methods = [name for name in _mean_ranks(board).sort_values(kind="stable").index if name not in REFERENCES]
    controls = [name for name in REFERENCES if name in set(board["method"])]
    best = [name for _, part in board.groupby("task", sort=False) for name in task_view.coloured_methods(part)]
    return [*dict.fromkeys([*methods[: task_view.BOLD], *controls, *best])]


def _mean_ranks(board: pd.DataFrame) -> pd.Series:
    """Method -> its rank averaged over the tasks that it ran on; NaN where it has no finite score."""
    ranks = board.groupby("task").cumcount() + 1
    return ranks.where(board["mean"].notna()).groupby(board["method"]).mean()


def overview(
    board: pd.DataFrame, marks: Mapping[str, Mapping[str, str]], styles: Mapping[str, SeriesStyle]
) -> list[OverviewRow]:
    """The study in one table, best mean rank first; ranks are averaged over the tasks that a method has a score on.
    Methods without a score on some task are below, because their ranks are of other tasks.

    Args:
        marks: task -> method -> its mark.
    """
    texts: dict[str, dict[str, tuple[str, str]]] = {}
    for row in board.to_dict("records"):
        text = format_score(row["mean"], np.nan, row["metric"])
        texts.setdefault(row["method"], {})[row["task"]] = (text, marks[row["task"]][row["method"]])
    mean, scored = _mean_ranks(board), board[board["mean"].notna()].groupby("method")["task"].nunique()
    count = {m: int(scored.get(m, 0)) for m in texts}
    rows = []
    for m in sorted(texts, key=lambda m: (-count[m], np.nan_to_num(mean[m], nan=np.inf), m)):
        rank = f"{mean[m]:.1f}" if np.isfinite(mean[m]) else EMPTY
        part = f"{count[m]} of {len(marks)} tasks" if count[m] < len(marks) else ""
        rows.append(OverviewRow(rank, m, styles[m].series, [texts[m].get(t, (EMPTY, "")) for t in marks], part))
    return rows


def _leak(tables: Tables) -> str:
    """How much larger the accuracies would be if rounds were selected on the test set."""
    both = tables.board.merge(tables.leaky[["run", "mean"]], on="run", suffixes=("", "_leaky"))
    both = both[both["metric"] == "accuracy"]
    gain = (both["mean_leaky"] - both["mean"]).dropna()
    return f"{gain.max():.2f}" if len(gain) else ""


def _searches(study: Study) -> Iterable[dict[str, Any]]:
    """Each search: its trials as a figure, or (score, values) of each where they are few."""
    metrics = {run.name: run.info["metric"] for run in study.runs}
    for search in optional_files.tuning(study.folder):
        metric = metrics.get(search.run, "")
        names = sorted(search.names, key=lambda name: -search.importance.get(name, 0.0))
        finished = int(search.trials["value"].notna().sum())
        first = search.trials["value"].iloc[0]
        trials = f"{format_count(len(search.trials), 'trial')}, {len(search.trials) - finished} of them pruned"
        yield {
            "run": search.run,
            "declared": format_score(first, np.nan, metric),
            "value": format_score(search.value, np.nan, metric),
            "sent": _traffic_change(search),
            "best": [(name, _format_value(search.best[name])) for name in names if name in search.best],
            "budget": " · ".join([trials, *_budget(search.budget)]),
            # A list shows a few trials better than a figure does.
            "trials": [] if search.importance else list(_trial_rows(search, names, metric)),
            "svg": plots.tuning(search.trials, names, search.best) if search.importance else "",
            "importance": plots.importance(search.importance) if search.importance else "",
        }


def _trial_rows(
    search: optional_files.Tuning, names: Iterable[str], metric: str
) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Validation score and values of every trial; of a pruned one the best score that it had reached."""
    for trial in search.trials.to_dict("records"):
        pruned = not np.isfinite(trial["value"])
        score = format_score(trial["reached"] if pruned else trial["value"], np.nan, metric)
        yield score + " (pruned)" * pruned, [(name, _format_value(trial[name])) for name in names]


def _traffic_change(search: optional_files.Tuning) -> str:
    """MiB of the declared and of the best trial, where the search was about bytes too."""
    if optional_files.BYTES not in search.trials:
        return ""
    first, best = (search.trials[optional_files.BYTES].iloc[row] / results.MIB for row in (0, search.best_row))
    return f"{first:,.1f} → {best:,.1f}"


def _budget(block: Mapping[str, Any]) -> Iterable[str]:
    if "share" in block:
        yield f"{100 * block['share']:g} % of the rounds each"
    if "seeds" in block:
        yield f"seed {' and '.join(map(str, block['seeds']))}, which no result has"
    if len(block.get("objectives", ())) > 1:
        yield "of the Pareto front the fewest bytes whose score is within one standard error of the best"


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _settings(run: Run) -> list[tuple[str, str]]:
    """The settings of a run, without those that are off."""
    settings = flatten(run.info.get("spec") or {})
    return [(name, _format_value(value)) for name, value in settings.items() if value is not None]


def _machines(runs: tuple[Run, ...]) -> list[list[str]]:
    rows = []
    for run in runs:
        facts = (run.info.get(key, EMPTY) for key in ("device", "executor", "parameters"))
        shown = (f"{fact:,}" if isinstance(fact, int) else str(fact) for fact in facts)
        seconds, digest = f"{run.rounds['seconds'].sum():,.1f}", str(run.info.get("spec_hash", EMPTY))[:12]
        rows.append([run.name, *shown, str(run.trained_rounds), seconds, digest])
    return rows


def _versions(runs: tuple[Run, ...]) -> list[tuple[str, str]]:
    """Libraries and processors that trained the runs, as the runs recorded them."""
    named: dict[str, set[str]] = {}
    for run in runs:
        facts = {"processor": run.info.get("processor"), **(run.info.get("versions") or {})}
        for name, fact in facts.items():
            named.setdefault(name, set()).update([str(fact)] if fact else [])
    return [(name, ", ".join(sorted(facts))) for name, facts in sorted(named.items()) if facts]
