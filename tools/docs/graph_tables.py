"""The tables of docs/graphs.md: whether a method recovers the true graph, and whether its graph improves scores.

python -m tools.docs.graph_tables take    copy what the tables need from results/graphs to
docs/boards, then rewrite the page
python -m tools.docs.graph_tables         rewrite the page

docs/boards/graphs.csv is the leaderboard, graphs.tests.csv has the tests of the learned graph against its controls,
graphs.rounds.csv the AUC after every recorded round (mean over seeds and layers), and graphs.clients.csv.gz the scores
of all clients behind the verdicts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import BadInput
from fedweave.graphs.quality import AUC, quality
from fedweave.graphs.setting import is_control
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.results.formats import with_minus_sign
from fedweave.results.marks import SYMBOLS
from tools.docs import boards, claims
from tools.docs.stored_numbers import CLIENTS
from tools.pages import markdown, read_stored, refresh, rewrite, store

STUDY = "graphs"
PAGE = Path("docs/graphs.md")
AUC_THRESHOLD = 0.9  # smallest AUC at which a graph counts as showing the true groups
CONTROLS = ("uniform", "shuffled", "oracle")
MEASURES = {"group_auc": ".2f", "group_mass": ".2f", "row_variation": ".2f", "edge_value_correlation": "+.2f"}
COLUMNS = (
    *("method", "score", "AUC", "round", "on group", "rows differ", "weight ~ gain"),
    *(f"minus {word}" for word in CONTROLS),
)


def main(action: str = "") -> None:
    """Rewrite the page; with "take", first copy what its tables need."""
    refresh(action, copy_results, lambda: rewrite(PAGE, graphs=table))


def copy_results() -> None:
    """Copy leaderboard, tests of graphs, curves of AUC and scores of clients, with six digits; other tasks stay."""
    folder = paths.RESULTS / STUDY
    if not (folder / "leaderboard.csv").is_file():
        raise BadInput(f"{folder}: has no leaderboard; make it with: fedweave study use {STUDY} && dvc repro")
    study = results.load_study(folder)
    tasks = {(run.info["dataset"], run.info["setting"]): run.task for run in study.runs}
    board = pd.read_csv(folder / "leaderboard.csv")
    board.insert(1, "task", [tasks[key] for key in zip(board["dataset"], board["setting"], strict=True)])
    tests = pd.read_csv(folder / "significance.csv").query("family == 'graph'")
    for ending, part in {"": board, ".tests": tests, ".rounds": pd.DataFrame(_curves(study))}.items():
        target = boards.FOLDER / f"{STUDY}{ending}.csv"
        if target.is_file():
            stored = read_stored(target, ("task",))
            part = pd.concat([stored[~stored["task"].isin(set(tasks.values()))], part])
        store(part, target)
    claims.store_clients(study, boards.FOLDER / f"{STUDY}{CLIENTS}", ("dataset", "setting"))


def _curves(study: results.Study) -> Iterator[dict[str, Any]]:
    for run in study.runs:
        learned = not is_control(str(run.info["spec"]["method"].get("graph", "")))
        graphs = [*results.graphs_by_seed(run).values()] if learned else []
        for i, round in enumerate(graphs[0].rounds if graphs else ()):
            areas = [_mean_auc(stored, i) for stored in graphs]
            yield {"task": run.task, "method": run.label, "round": round, "auc": float(np.mean(areas))}


def _mean_auc(graphs: results.Graphs, i: int) -> float:
    """The AUC of the `i`-th graph, averaged over layers; NaN where no groups are known."""
    return quality(graphs.weights[i], graphs.group, None).get(AUC, float("nan"))


def table(task: str) -> str:
    """The table of a task as Markdown: methods with their own graph, best first."""
    board, tests, curves = (
        read_stored(boards.FOLDER / f"{STUDY}{ending}.csv", needed)
        for ending, needed in {"": ("task", "mean"), ".tests": ("task", "verdict"), ".rounds": ("task", "auc")}.items()
    )
    rows = board[(board["task"] == task) & ~board["method"].str.contains("-(?:" + "|".join(CONTROLS) + r")\]$")]
    if rows.empty:
        raise BadInput(f"{PAGE}: {task!r} is not a task of {STUDY}, only {', '.join(sorted(set(board['task'])))}")
    tests, curves = (part[part["task"] == task] for part in (tests, curves))
    best_first = rows.sort_values("mean", ascending=False).to_dict("records")
    return markdown([COLUMNS, *(_cells(row, tests, curves) for row in best_first)])


def _cells(row: Mapping[str, Any], tests: pd.DataFrame, curves: pd.DataFrame) -> tuple[str, ...]:
    method_tests = tests[tests["method"] == row["method"]].set_index("other")
    differences = [
        next((_difference(test) for other, test in method_tests.iterrows() if str(other).endswith(f"-{word}]")), "–")
        for word in CONTROLS
    ]
    area, *others = (_number(row[key], spec) for key, spec in MEASURES.items())
    curve = curves[curves["method"] == row["method"]]
    return str(row["method"]), f"{row['mean']:.1f}", area, first_stable_round(curve), *others, *differences


def first_stable_round(curve: pd.DataFrame) -> str:
    """The first round from which on the AUC of a `curve` is at least `AUC_THRESHOLD`; a dash if it ends below."""
    curve = curve[curve["auc"].notna()]
    below = curve.loc[curve["auc"] < AUC_THRESHOLD, "round"]
    later = curve.loc[curve["round"] > below.max(), "round"] if len(below) else curve["round"]
    return str(later.min()) if len(later) else "–"


def _difference(test: Mapping[str, Any]) -> str:
    """A difference with its interval, and the mark of its verdict if it has one."""
    ends = " to ".join(_number(test[name], "+.1f") for name in ("low", "high"))
    mark = SYMBOLS["" if pd.isna(test["verdict"]) else test["verdict"]]
    return f"{_number(test['difference'], '+.1f')} ({ends}) {mark}".rstrip()


def _number(value: Any, spec: str) -> str:
    return "–" if pd.isna(value) else with_minus_sign(format(value, spec))


if __name__ == "__main__":
    run_main(main)
