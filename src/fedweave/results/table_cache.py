"""The tables of a study as `write` stored them, which are read instead of computed again."""

from pathlib import Path

import pandas as pd

from fedweave.errors import BadInput
from fedweave.files.atomic import read_table
from fedweave.results.formats import AS_WRITTEN
from fedweave.results.marks import CONTROLS, control_column
from fedweave.results.runs import MARGINS, Study, read_margins
from fedweave.results.tables import COLUMNS, FILES, Tables, compute_tables

REEVALUATE_HINT = "make it again with: dvc repro evaluate"
# Columns of names, which are text even where they look like numbers or are empty.
TEXT_COLUMNS = (
    "run",
    "task",
    "dataset",
    "setting",
    "method",
    "name",
    "other",
    "verdict",
    "over",
    "mark",
    *map(control_column, CONTROLS),
    "quantity",
    "part",
    "stage",
    "table",
    "cohort",
    "control",
    "kind",
)
# Field of `Tables` -> columns without which the file is of an older version.
REQUIRED_COLUMNS = {
    "board": COLUMNS,
    "significance": ["verdict", "over"],
    "clients": ["name"],
    "controls": ["control", "kind"],
}


def load_tables(study: Study, partitions: Path | None = None) -> Tables:
    """The tables of `read_stored_tables`, or else of `compute_tables`.

    Raises:
        BadInput: a stored table is damaged.
    """
    return read_stored_tables(study) or compute_tables(study, partitions)


def read_stored_tables(study: Study) -> Tables | None:
    """The stored tables, if they are complete, of this version, newer than every run, by the same metric and margin.

    Raises:
        BadInput: a stored table is damaged.
    """
    files = {field: study.folder / f"{name}.csv" for field, name in FILES.items()}
    changed = any(run.info.get("selected_by") for run in study.runs) or read_margins(study.folder) != {**study.margins}
    if changed or not all(file.is_file() for file in files.values()):
        return None
    runs = [run.folder / name for run in study.all_runs for name in ("run.json", "evaluations.parquet", "rounds.csv")]
    runs += [file for file in [study.folder / MARGINS] if file.is_file()]
    tables = {field: _read(file) for field, file in files.items()}
    if any(not {*names} <= {*tables[field]} for field, names in REQUIRED_COLUMNS.items()):
        return None  # written by a version without these columns
    oldest = min(file.stat().st_mtime_ns for file in files.values())
    if oldest < max(file.stat().st_mtime_ns for file in runs) or {*tables["clients"]["run"]} != {
        run.name for run in study.runs
    }:
        return None
    return Tables(**{**tables, "board": _add_run_columns(tables["board"], study, files["board"])})


def _read(file: Path) -> pd.DataFrame:
    needed = ("control",) if file.stem == FILES["controls"] else ("method",)
    table = read_table(file, needed, REEVALUATE_HINT, dtype=dict.fromkeys(TEXT_COLUMNS, "str"), **AS_WRITTEN)
    return table.fillna({name: "" for name in TEXT_COLUMNS if name in table})


def _add_run_columns(board: pd.DataFrame, study: Study, file: Path) -> pd.DataFrame:
    """The leaderboard with the columns `run` and `task` in front; the file is sorted by task, but does not name it."""
    names = {(run.task, run.label): run.name for run in study.runs}
    tasks = sorted(run.task for run in study.runs)
    if sorted(names) != sorted(zip(tasks, board["method"], strict=False)):
        raise BadInput(f"{file}: its rows are not the runs that are there; {REEVALUATE_HINT}")
    runs = [names[key] for key in zip(tasks, board["method"], strict=True)]
    return pd.concat([pd.DataFrame({"run": runs, "task": tasks}), board], axis="columns")
