"""The end of a reproduction: print the leaderboard of the stage `report`, synchronise MLflow, print links and time.

Where nothing has changed, it imports none of the code that makes the leaderboard and the record in MLflow.
"""

import os
import sys
import time
from pathlib import Path

from .. import paths
from ..addresses import is_reachable, mlflow_address, start_command
from ..mlflow_records import stamp, synchronise
from .lines import format_duration


def main(start: float) -> None:
    """Finish a reproduction of params.yaml's study; `start` is when it began, in seconds since 1970."""
    study = paths.current_study()
    folder = paths.RESULTS / study
    show(folder / "leaderboard.txt")
    store = os.environ.get(synchronise.STORE, "")
    if study:
        synchronise.run_in_subprocess(folder, study)
    if study and stamp.is_current(folder, study, store) and is_reachable(store):
        for task, link in stamp.links(study).items():
            print(f"{task} in MLflow ({start_command('ui')}): {mlflow_address()}/{link}")
    print(f"all in {format_duration(time.time() - start)}")


def show(file: Path) -> None:
    """Print the leaderboard in `file`; build it if the file is missing."""
    sys.stdout.flush()
    if not file.is_file():
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "fedweave.pipelines.stages.leaderboard"])
        return
    print(file.read_text(encoding="utf-8"), end="", flush=True)
