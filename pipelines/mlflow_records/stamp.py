"""Whether MLflow is up to date with the results of a study, without an import of MLflow.

Digests of the results, of the code and of MLflow's database are compared with those of the last synchronisation.
"""

import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput

FOLDER = Path(".fedweave", "mlflow")
# Files that are logged of a study, relative to its folder; their sizes and times are compared, not their content.
LOGGED = ("runs/*/*", "tuned/*/trials/*.json", "ablations/*/table.csv", "leaderboard.csv", "significance.csv")
# Everything that MLflow shows of an experiment. Changes that a user makes in the UI are in the same tables.
QUERIES = (
    "SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ?",
    "SELECT r.run_uuid, r.name, r.status, r.lifecycle_stage FROM runs r JOIN experiments e USING (experiment_id) "
    "WHERE e.name = ? ORDER BY 1",
    "SELECT t.run_uuid, t.key, t.value FROM tags t JOIN runs r USING (run_uuid) JOIN experiments e "
    "USING (experiment_id) WHERE e.name = ? ORDER BY 1, 2",
    "SELECT m.run_uuid, m.key, m.value, m.is_nan, m.step FROM latest_metrics m JOIN runs r USING (run_uuid) "
    "JOIN experiments e USING (experiment_id) WHERE e.name = ? ORDER BY 1, 2",
    "SELECT t.key, t.value FROM experiment_tags t JOIN experiments e USING (experiment_id) WHERE e.name = ? ORDER BY 1",
)
# The folders of everything that MLflow shows of an experiment; a user may delete them.
FOLDERS = (
    "SELECT r.artifact_uri FROM runs r JOIN experiments e USING (experiment_id) WHERE e.name = ? ORDER BY 1",
    "SELECT m.artifact_location FROM logged_models m JOIN experiments e USING (experiment_id) WHERE e.name = ? "
    "ORDER BY 1",
)
SQLITE = "sqlite:///"


def is_current(folder: Path, study: str, uri: str) -> bool:
    """Whether neither results/<study> nor its record in MLflow has changed since `write`.

    A record that is not a file of SQLite is assumed to be unchanged.

    Args:
        folder: results/<study>.
        study: its name.
        uri: of the tracking store.
    """
    try:
        stored = json.loads(_stamp_file(study).read_text(encoding="utf-8"))["stamp"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(stored == _stamp(results_digest(folder), study, uri))


def links(study: str) -> dict[str, str]:
    """Task -> page of its runs, relative to MLflow's address; empty where the study was never logged."""
    try:
        return dict(json.loads(_stamp_file(study).read_text(encoding="utf-8"))["links"])
    except (OSError, ValueError, KeyError):
        return {}


def write(results: str, study: str, uri: str, links: Mapping[str, str]) -> None:
    """Record that MLflow is up to date.

    Args:
        results: `results_digest` from before the files were read.
        study: its name.
        uri: of the tracking store.
        links: task -> page of its runs, relative to MLflow's address.
    """
    file = _stamp_file(study)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"stamp": _stamp(results, study, uri), "links": {**links}}), encoding="utf-8")
    temporary.replace(file)
    _failure_file(study).unlink(missing_ok=True)


def report_failure(study: str, error: Exception) -> None:
    """Print and record that MLflow could not be brought up to date; a `BadInput` already says what the user can do."""
    reason = str(error).partition("\n")[0]
    explanation = f": {reason}" if isinstance(error, BadInput) else f" ({reason}); later: fedweave log {study}"
    print(f"not logged to MLflow{explanation}", file=sys.stderr)
    record_failure(study)


def record_failure(study: str) -> None:
    """Record that MLflow could not be brought up to date at this moment."""
    file = _failure_file(study)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def last_failure(study: str) -> float:
    """The time of `record_failure`, in seconds since 1970; 0 if nothing has failed since the last success."""
    try:
        return _failure_file(study).stat().st_mtime
    except OSError:
        return 0.0


def is_lost(folder: str) -> bool:
    """Whether `folder`, as MLflow names it, is one of this machine that does not exist."""
    path = Path(folder.removeprefix("file://"))
    return path.is_absolute() and not path.exists()


def _failure_file(study: str) -> Path:
    return _stamp_file(study).with_suffix(".failed")


def _stamp_file(study: str) -> Path:
    """The file of a study, in folders as its name has them: `a/b` and `a-b` are two studies."""
    return FOLDER / f"{study}.json"


def results_digest(folder: Path) -> str:
    """A digest of the files of a study that are logged."""
    return _digest(_files(folder))


def _stamp(results: str, study: str, uri: str) -> dict[str, Any]:
    code, record = _digest(_code()), _record_digest(study, uri)
    return {"uri": uri, "folder": str(Path.cwd()), "code": code, "results": results, "record": record}


def _digest(lines: Iterator[str]) -> str:
    content = hashlib.sha256()
    for line in lines:
        content.update(line.encode() + b"\n")
    return content.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    """Name, size, time and inode of every file that is logged; restoring a file changes its time or its inode."""
    for pattern in LOGGED:
        for file in sorted(folder.glob(pattern)):
            with suppress(FileNotFoundError):
                status = file.stat()
                yield f"{file.relative_to(folder)} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _code() -> Iterator[str]:
    """The code that decides how a study is logged."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        yield file.read_text(encoding="utf-8")


def _record_digest(study: str, uri: str) -> str:
    """A digest of the experiment's rows, and of which folders exist; empty where there is no database to be read."""
    file = Path(uri.removeprefix(SQLITE).partition("?")[0])
    if not uri.startswith(SQLITE):
        return "elsewhere"
    if not file.is_file():
        return ""
    try:
        with closing(sqlite3.connect(file, timeout=10)) as database:
            rows = [repr(row) for query in QUERIES for row in database.execute(query, (study,))]
            folders = [folder for query in FOLDERS for (folder,) in database.execute(query, (study,))]
            return _digest(iter([*rows, *(f"{folder} {is_lost(folder)}" for folder in folders)]))
    except sqlite3.Error:  # damaged, or of another version: MLflow itself says what is wrong
        return ""
