"""MLflow brought up to date with results/: at the end of `make repro` and of flows, when the UI starts, in the stage
`report`. Without any import of MLflow where nothing has changed.
"""

import os
import subprocess
import sys
from pathlib import Path

from fedweave.pipelines.mlflow_records import stamp

STORE = "MLFLOW_TRACKING_URI"


def is_due(folder: Path, study: str) -> bool:
    """Whether results/<study> has results that MLflow may not hold."""
    finished = (folder / "leaderboard.csv").is_file() and any(folder.glob("runs/*/run.json"))
    return finished and not stamp.is_current(folder, study, os.environ.get(STORE, ""))


def here(folder: Path, study: str) -> None:
    """Synchronise in this process; a failure is one line on standard error."""
    if is_due(folder, study):
        from fedweave.pipelines.mlflow_records import tracking

        tracking.report(folder)


def apart(folder: Path, study: str) -> None:
    """Synchronise in a process of its own, for callers that have not imported PyTorch; a failure is one line."""
    if is_due(folder, study):
        subprocess.run([sys.executable, "-m", __name__, str(folder), study], check=False)


if __name__ == "__main__":
    here(Path(sys.argv[1]), sys.argv[2])
