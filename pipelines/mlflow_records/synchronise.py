"""Synchronisation of MLflow with results/: at the end of `make repro` and of flows, in the stage `report` and the UI.

Where nothing has changed, MLflow is not imported.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedweave.errors import BadInput

from .. import addresses, project
from . import stamp

STORE = "MLFLOW_TRACKING_URI"


def is_due(folder: Path, study: str) -> bool:
    """Whether results/<study> has results that MLflow may not hold."""
    finished = (folder / "leaderboard.csv").is_file() and any(folder.glob("runs/*/run.json"))
    return finished and not stamp.is_current(folder, study, os.environ.get(STORE, ""))


def run_here(folder: Path, study: str) -> None:
    """Synchronise in this process; a failure is one line on standard error."""
    if not is_due(folder, study):
        return
    try:
        addresses.check_store(os.environ.get(STORE, ""), study)
        project.load_plugins()  # they define methods and models whose trained models are logged too
    except BadInput as error:
        stamp.report_failure(str(error))
        return
    from . import tracking  # takes seconds

    tracking.try_log_study(folder)


@contextmanager
def run_in_fork(folder: Path, study: str) -> Iterator[None]:
    """Synchronise in a forked process while the block runs; the block ends after it. A failure is one line."""

    def report_loss() -> None:
        stamp.report_failure(f"its process was lost; later: fedweave log {study}")

    if not is_due(folder, study):
        yield
        return
    from fedweave.processes import parallel

    with parallel.run_in_background(partial(run_here, folder, study), report_loss):
        yield


def run_in_subprocess(folder: Path, study: str) -> None:
    """Synchronise in a process of its own, which may be lost; a failure is one line."""
    if is_due(folder, study) and subprocess.call([sys.executable, "-m", __name__, str(folder), study]):
        stamp.report_failure(f"its process was lost; later: fedweave log {study}")


def watch_results(folder: Path, end: threading.Event, pause: float = 5.0) -> threading.Thread:
    """Keep MLflow up to date with every study under `folder` in the background, until `end` is set.

    It waits while DVC writes or reads results. A study that could not be logged is tried again when its files have
    changed.
    """

    def poll() -> None:
        attempts: dict[str, str] = {}
        while not end.wait(pause):
            with suppress(OSError):  # DVC may remove a folder that is being read; the next look finds the new one
                _synchronise_all(folder, attempts)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    return thread


def _synchronise_all(folder: Path, attempts: dict[str, str]) -> None:
    """Synchronise every study under `folder` that is due; `attempts` has the digest of the last attempt for each."""
    for study in _finished_studies(folder):
        digest = stamp.results_digest(folder / study)
        if attempts.get(study) != digest and not _is_dvc_busy() and is_due(folder / study, study):
            attempts[study] = digest
            run_in_subprocess(folder / study, study)


def _finished_studies(folder: Path) -> Iterator[str]:
    for board in sorted(folder.rglob("leaderboard.csv")):
        yield board.parent.relative_to(folder).as_posix()


def _is_dvc_busy() -> bool:
    """Whether DVC's lock file says that a process reads or writes something."""
    try:
        return any(json.loads(Path(".dvc", "tmp", "rwlock").read_text(encoding="utf-8")).values())
    except (OSError, ValueError, AttributeError):
        return False


if __name__ == "__main__":
    from fedweave.processes.signals import die_with_parent

    die_with_parent()  # the next synchronisation repairs one that was interrupted
    run_here(Path(sys.argv[1]), sys.argv[2])
