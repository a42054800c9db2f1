"""Leaderboards of whole studies in the docs, from docs/boards/<study>.csv and <study>.controls.csv.

python -m tools.docs.boards STUDY...    copy results/<study>/leaderboard.csv and controls.csv, store
the scores of all clients in <study>.clients.csv.gz and those of newcomers in <study>.newcomers.csv, then rewrite the
pages; rows of tasks that were not run stay
python -m tools.docs.boards             rewrite the pages
"""

from pathlib import Path
from typing import Any

import pandas as pd

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.results.cohorts import NEWCOMERS
from fedweave.results.formats import format_score
from fedweave.results.marks import SYMBOLS
from tools.docs import claims
from tools.docs.stored_numbers import CLIENTS
from tools.pages import join_cells, read_stored, rewrite, store, with_others

FOLDER = Path("docs/boards")
PAGES = (Path("docs/zoo.md"), Path("docs/natural.md"), Path("docs/adapters-study.md"))
FILES = {".csv": "leaderboard.csv", ".controls.csv": "controls.csv"}
COLUMNS = {
    "rank": "",
    "method": "method",
    "score": "mean ± std",
    "interval": "95 % interval",
    "pre": "as received",
    "post": "after training",
    "worst10": "worst 10 %",
    "vs_local": "vs Local",
    "vs_fedavg_ft": "vs FedAvg-FT",
    "gain": "gain / loss",
    "mib": "MiB",
}
# Where clients come later: their scores at the reported point, and the verdict against Local on their rows.
LATE = {"late": "newcomers", "late_local": "newcomers vs Local"}
NEWCOMERS_ENDING, KEYS = ".newcomers.csv", ("dataset", "setting")
OUTCOMES = ("vs_local", "vs_fedavg_ft", "mark")  # empty where no test was possible
READING: dict[str, Any] = {"dtype": dict.fromkeys(OUTCOMES, str), **results.AS_WRITTEN}


def main(*studies: str) -> None:
    """Copy the leaderboards of `studies` to docs/boards and rewrite the pages that show leaderboards."""
    for study in studies:
        copy_board(study)
    for page in PAGES:
        rewrite(page, board=board)


def copy_board(study: str) -> None:
    """Copy the leaderboard of `study`, its controls and the scores of its clients to docs/boards, with six digits."""
    tables = {ending: _read(study, name) for ending, name in FILES.items()}
    if (paths.RESULTS / study / "cohorts.csv").is_file():
        rows = _read(study, "cohorts.csv")
        rows = rows[(rows["cohort"] == NEWCOMERS) & rows["reported"]]
        tables |= {NEWCOMERS_ENDING: rows} if len(rows) else {}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for ending, rows in tables.items():
        target = FOLDER / f"{study}{ending}"
        store(with_others(rows, target, KEYS, tables[".csv"], **READING), target)
    claims.store_clients(results.load_study(paths.RESULTS / study), FOLDER / f"{study}{CLIENTS}", KEYS)


def _read(study: str, name: str) -> pd.DataFrame:
    source = paths.RESULTS / study / name
    if not source.is_file():
        raise BadInput(f"{source}: does not exist yet; make it with: fedweave study use {study} && dvc repro")
    return pd.read_csv(source, **READING)


def board(study: str, task: str) -> str:
    """The leaderboard of a task as Markdown: methods, best first, then controls.

    Raises:
        BadInput: docs/boards has no leaderboard of `study`, or the leaderboard has no such task.
    """
    rows, controls = (_rows(FOLDER / f"{study}{ending}", task) for ending in FILES)
    cells = [*results.leaderboard_rows(rows), *results.control_rows(controls)]
    late = _late_cells(study, task)
    columns = dict([*COLUMNS.items()][:4]) | (LATE if late else {}) | COLUMNS
    lines = [columns, dict.fromkeys(columns, "--:") | {"method": "---"}]
    lines += [line | late.get(line["method"], {}) for line in cells]
    return join_cells([line.get(key, "") for key in columns] for line in lines)


def _late_cells(study: str, task: str) -> dict[str, dict[str, str]]:
    """Method -> the cells `LATE` of its row; none where all clients are there from the start."""
    if not (source := FOLDER / f"{study}{NEWCOMERS_ENDING}").is_file():
        return {}
    rows = read_stored(source, (*KEYS, "method", "mean")).query("dataset == @task")
    return {
        row["method"]: {
            "late": format_score(row["mean"], row["std"], row["metric"]),
            "late_local": SYMBOLS.get(row["vs_local"], ""),
        }
        for row in rows.to_dict("records")
    }


def _rows(source: Path, task: str) -> pd.DataFrame:
    if not source.is_file():
        raise BadInput(f"{source}: not found; take it with: python -m tools.docs.boards STUDY")
    rows = read_stored(source, ("dataset", "setting", "mean"))
    rows = rows.assign(**{key: rows[key].astype(object).fillna("") for key in OUTCOMES if key in rows})
    tasks = rows["task"] if "task" in rows else rows["dataset"]
    if "/" in task:  # such as names-pieces/lora, where several tasks share a data set
        tasks = rows["dataset"] + "/" + rows["setting"]
    if task not in tasks.to_numpy():
        raise BadInput(f"{source}: has no task {task!r}, only {', '.join(sorted(set(tasks)))}")
    return rows[tasks == task]


if __name__ == "__main__":
    run_main(main)
