"""Leaderboards of whole studies in the docs, from docs/boards/<study>.csv and <study>.controls.csv.

python -m tools.docs.boards STUDY...    copy results/<study>/leaderboard.csv and controls.csv, store
the scores of all clients in <study>.clients.csv.gz, then rewrite the pages
python -m tools.docs.boards             rewrite the pages
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fedweave import results
from fedweave.errors import BadInput
from fedweave.files.atomic import read_table
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from tools.docs import claims
from tools.docs.stored_numbers import CLIENTS
from tools.pages import rewrite, store

FOLDER = Path("docs/boards")
PAGES = (Path("docs/zoo.md"), Path("docs/natural.md"))
BLOCK = re.compile(r"(<!-- board: (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)  # study, task
FILES = {".csv": "leaderboard.csv", ".controls.csv": "controls.csv"}
COLUMNS = {
    "rank": "", "method": "method", "score": "mean ± std", "interval": "95 % interval", "pre": "as received",
    "post": "after training", "worst10": "worst 10 %", "vs_local": "vs Local", "vs_fedavg_ft": "vs FedAvg-FT",
    "gain": "gain / loss", "mib": "MiB",
}  # fmt: skip
RESTORE_HINT = "git restore brings it back"
OUTCOMES = ("vs_local", "vs_fedavg_ft", "mark")  # empty where no test was possible


def main(*studies: str) -> None:
    """Copy the leaderboards of `studies` to docs/boards and rewrite the pages that show leaderboards.

    Raises:
        BadInput: a study without results.
    """
    for study in studies:
        copy_board(study)
    for page in PAGES:
        rewrite(page, fill_blocks)


def copy_board(study: str) -> None:
    """Copy the leaderboard of `study`, its controls and the scores of its clients to docs/boards, with six digits.

    Raises:
        BadInput: the study has no leaderboard.
    """
    for ending, name in FILES.items():
        source = paths.RESULTS / study / name
        if not source.is_file():
            raise BadInput(f"{source}: does not exist yet; make it with: fedweave study use {study} && dvc repro")
        rows = pd.read_csv(source, dtype=dict.fromkeys(OUTCOMES, str), **results.AS_WRITTEN)
        target = FOLDER / f"{study}{ending}"
        target.parent.mkdir(parents=True, exist_ok=True)
        store(rows, target)
    claims.store_clients(results.load_study(paths.RESULTS / study), FOLDER / f"{study}{CLIENTS}")


def fill_blocks(page: str) -> str:
    """The text of a page with the current leaderboards in its blocks."""
    return BLOCK.sub(lambda match: match[1] + board(match[2], match[3]) + match[4], page)


def board(study: str, task: str) -> str:
    """The leaderboard of a task as Markdown: methods, best first, then controls.

    Raises:
        BadInput: docs/boards has no leaderboard of `study`, or the leaderboard has no such task.
    """
    rows, controls = (_rows(FOLDER / f"{study}{ending}", task) for ending in FILES)
    cells = [*results.leaderboard_rows(rows), *results.control_rows(controls)]
    return "".join(map(_line, [COLUMNS, dict.fromkeys(COLUMNS, "--:") | {"method": "---"}, *cells]))


def _rows(source: Path, task: str) -> pd.DataFrame:
    if not source.is_file():
        raise BadInput(f"{source}: not found; take it with: python -m tools.docs.boards STUDY")
    rows = read_table(source, ("dataset", "setting", "mean"), RESTORE_HINT, **results.AS_WRITTEN)
    rows = rows.assign(**{key: rows[key].astype(object).fillna("") for key in OUTCOMES if key in rows})
    tasks = rows["task"] if "task" in rows else rows["dataset"]
    if task not in tasks.to_numpy():
        raise BadInput(f"{source}: has no task {task!r}, only {', '.join(sorted(set(tasks)))}")
    return rows[tasks == task]


def _line(cells: Mapping[str, str]) -> str:
    return f"| {' | '.join(cells.get(key, '') for key in COLUMNS)} |\n"


if __name__ == "__main__":
    run_main(main)
