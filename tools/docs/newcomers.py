"""The tables of docs/newcomers.md: what methods are worth to clients that come later.

python -m tools.docs.newcomers take [STUDY]    copy the rows of newcomers from results/STUDY, by default that of the
same name, to docs, then rewrite the page
python -m tools.docs.newcomers                 rewrite the page
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedweave import results
from fedweave.metrics import METRICS
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.results.cohorts import JOINED, NEWCOMERS
from fedweave.results.formats import format_score
from fedweave.results.marks import CONTROLS, SYMBOLS, control_column
from tools.pages import markdown, read_stored, refresh, rewrite, store

STUDY = "newcomers"
PAGE = Path(f"docs/{STUDY}.md")
POINTS = {JOINED: "after their first round", "pre": "as received", "post": "after training"}
HEADER = ("method", *POINTS.values(), *(f"vs {control}" for control in CONTROLS))


def main(action: str = "", study: str = STUDY) -> None:
    """Rewrite the page; with "take", first copy what its tables need."""
    refresh(action, partial(take, study), lambda: rewrite(PAGE, newcomers=table))


def take(study: str) -> None:
    """Store the scores of newcomers."""
    cohorts = results.compute_tables(results.load_study(paths.RESULTS / study)).cohorts
    store(cohorts[cohorts["cohort"] == NEWCOMERS].drop(columns=["run"]), file_of(study))


def file_of(study: str) -> Path:
    """The stored scores of a study."""
    return Path("docs/boards") / f"{study.replace('/', '-')}.csv"


def table(name: str) -> str:
    """The table of a task as Markdown, best method first; the score of the method's own point is bold."""
    study, _, task = name.rpartition(":")
    rows = read_stored(file_of(study or STUDY), ("task", "method", "point", "mean"))
    rows = rows[rows["task"] == task]
    reported = rows[rows["reported"]]
    higher = METRICS[reported["metric"].iloc[0]].higher_is_better
    cells = {(row["method"], row["point"]): _score(row) for row in rows.to_dict("records")}
    lines: list[Sequence[str]] = [HEADER]
    for row in reported.sort_values("mean", ascending=not higher, kind="stable").to_dict("records"):
        marks = [SYMBOLS.get(row[control_column(control)], "") for control in CONTROLS]
        lines.append((row["method"], *(cells[row["method"], point] for point in POINTS), *marks))
    return markdown(lines)


def _score(row: Mapping[str, Any]) -> str:
    score = format_score(row["mean"], row["std"], row["metric"])
    return f"**{score}**" if row["reported"] else score


if __name__ == "__main__":
    run_main(main)
