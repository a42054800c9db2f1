"""Whether MLflow still holds what results/ says of a study, found without MLflow: two digests, compared with those of
the last synchronisation.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

FOLDER = Path(".fedweave", "mlflow")
# What is logged of a study, relative to its folder; sizes and times of these files are compared, not their content.
LOGGED = ("runs/*/*", "tuned/*/trials/*.json", "ablations/*/table.csv", "leaderboard.csv", "significance.csv")
# All that a page of MLflow shows of an experiment. The UI writes into the same tables.
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
SQLITE = "sqlite:///"


def is_current(folder: Path, study: str, uri: str) -> bool:
    """Whether neither results/<study> nor its record has changed since `write`.

    A record that is no file of SQLite is taken to be as it was left.

    Args:
        folder: results/<study>.
        uri: of the tracking store.
    """
    try:
        stored = json.loads(_stamp_file(study).read_text(encoding="utf-8"))["stamp"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(stored == _stamp(results_digest(folder), study, uri))


def links(study: str) -> dict[str, str]:
    """Task -> where its runs are, below MLflow's address; empty where the study was never logged."""
    try:
        return dict(json.loads(_stamp_file(study).read_text(encoding="utf-8"))["links"])
    except (OSError, ValueError, KeyError):
        return {}


def write(results: str, study: str, uri: str, links: Mapping[str, str]) -> None:
    """Note what MLflow holds.

    Args:
        results: `results_digest` from before the files were read.
        uri: of the tracking store.
        links: task -> where its runs are, below MLflow's address.
    """
    file = _stamp_file(study)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"stamp": _stamp(results, study, uri), "links": {**links}}), encoding="utf-8")
    temporary.replace(file)
    _failure_file(study).unlink(missing_ok=True)


def record_failure(study: str) -> None:
    """Note that MLflow could not be brought up to date just now."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _failure_file(study).touch()


def last_failure(study: str) -> float:
    """When it could not, in seconds since 1970; 0 where nothing has failed since the last success."""
    try:
        return _failure_file(study).stat().st_mtime
    except OSError:
        return 0.0


def _failure_file(study: str) -> Path:
    return _stamp_file(study).with_suffix(".failed")


def _stamp_file(study: str) -> Path:
    return FOLDER / f"{study.replace('/', '-')}.json"


def results_digest(folder: Path) -> str:
    """A digest of what is there to be logged."""
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
    """Name, size, time and number of every file that is logged; restoring a file changes its time or its number."""
    for pattern in LOGGED:
        for file in sorted(folder.glob(pattern)):
            with suppress(FileNotFoundError):
                about = file.stat()
                yield f"{file.relative_to(folder)} {about.st_size} {about.st_mtime_ns} {about.st_ino}"


def _code() -> Iterator[str]:
    """What decides how a study is logged."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        yield file.read_text(encoding="utf-8")


def _record_digest(study: str, uri: str) -> str:
    """A digest of the experiment's rows; empty where there is no database to be read."""
    file = Path(uri.removeprefix(SQLITE).partition("?")[0])
    if not uri.startswith(SQLITE):
        return "elsewhere"
    if not file.is_file():
        return ""
    try:
        with closing(sqlite3.connect(file, timeout=10)) as base:
            return _digest(repr(row) for query in QUERIES for row in base.execute(query, (study,)))
    except sqlite3.Error:  # damaged, or of another version: MLflow itself says what is wrong
        return ""
