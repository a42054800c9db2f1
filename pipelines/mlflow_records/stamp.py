"""Whether MLflow is up to date with the results of a study, without an import of MLflow.

A digest of the results and of the code is compared with that of the last synchronisation, and so are the names of the
database and of the folders of artifacts: nothing in the database is read.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedweave.files.atomic import write_atomic
from fedweave.study.spec import STATE

from ..addresses import SQLITE

FOLDER = STATE / "mlflow"
# Files that are logged of a study, relative to its folder; their sizes and times are compared, not their content.
LOGGED = ("runs/*/*", "tuned/*/trials/*.json", "ablations/*/table.csv", "leaderboard.csv", "significance.csv")


def is_current(folder: Path, study: str, uri: str) -> bool:
    """Whether results/<study> has not changed since `write`, and its database and artifacts are there.

    A record that is not a file of SQLite is assumed to be there. Changes in MLflow itself are not looked for.
    """
    try:
        content = json.loads(_stamp_file(study).read_text(encoding="utf-8"))
        return bool(content["stamp"] == _stamp(results_digest(folder), uri, content["artifacts"]))
    except (OSError, ValueError, KeyError):
        return False


def links(study: str) -> dict[str, str]:
    """Task -> page of its runs, relative to MLflow's address; empty where the study was never logged."""
    try:
        return dict(json.loads(_stamp_file(study).read_text(encoding="utf-8"))["links"])
    except (OSError, ValueError, KeyError):
        return {}


def write(results: str, study: str, uri: str, links: Mapping[str, str], artifacts: str) -> None:
    """Record that MLflow is up to date.

    Args:
        results: `results_digest` from before the files were read.
        links: task -> page of its runs, relative to MLflow's address.
        artifacts: folder of its artifacts, as MLflow names it.
    """
    content = {"stamp": _stamp(results, uri, artifacts), "links": {**links}, "artifacts": artifacts}
    write_atomic(_stamp_file(study), json.dumps(content))


def report_failure(reason: str) -> None:
    """Print why MLflow could not be brought up to date; results are there all the same."""
    print(f"not logged to MLflow: {reason}", file=sys.stderr)


def is_lost(folder: str) -> bool:
    """Whether `folder`, as MLflow names it, is one of this machine that does not exist."""
    path = Path(folder.removeprefix("file://"))
    return path.is_absolute() and not path.exists()


def _stamp_file(study: str) -> Path:
    """The file of a study, in folders as its name has them: `a/b` and `a-b` are two studies."""
    return FOLDER / f"{study}.json"


def results_digest(folder: Path) -> str:
    """A digest of the files of a study that are logged."""
    return _digest(_files(folder))


def _stamp(results: str, uri: str, artifacts: str) -> dict[str, Any]:
    folder, code = str(Path.cwd()), _digest(_code())
    return {"uri": uri, "folder": folder, "code": code, "results": results, "record": _record_digest(uri, artifacts)}


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


def _record_digest(uri: str, artifacts: str) -> str:
    """A digest of which database it is, and of the names of the folders with artifacts; empty without a database."""
    if not uri.startswith(SQLITE):
        return "elsewhere"
    file, folder = Path(uri.removeprefix(SQLITE).partition("?")[0]), Path(artifacts.removeprefix("file://"))
    if not file.is_file():
        return ""
    names = sorted(str(path) for pattern in ("*", "models/*") for path in folder.glob(pattern))
    return _digest(iter([str(file.stat().st_ino), *names]))
