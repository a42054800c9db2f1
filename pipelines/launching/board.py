"""The end of `make repro`: prints the leaderboard that the stage `report` left, brings MLflow up to date, prints links
and the time that all took; without importing what made them, where nothing has changed.
"""

import os
import sys
import time
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.pipelines import ROOT, paths
from fedweave.pipelines.addresses import is_reachable, mlflow_address, start_command
from fedweave.pipelines.launching.lines import format_duration
from fedweave.pipelines.mlflow_records import stamp, synchronise
from fedweave.pipelines.stages import text_styles


def main(begun: str = "") -> None:
    """Finish a reproduction of params.yaml's study that began at `begun`, in seconds since 1970."""
    study = paths.current_study()
    folder = Path("results", study)
    show(folder / "leaderboard.txt")
    # What the stage `report` has just told is not tried again.
    if study and stamp.last_failure(study) < float(begun or "inf"):
        synchronise.run_in_subprocess(folder, study)
    if study and not stamp.last_failure(study) and is_reachable(os.environ.get(synchronise.STORE, "")):
        for task, link in stamp.links(study).items():
            print(f"{task} in MLflow ({start_command('ui')}): {mlflow_address()}/{link}")
    if begun:
        print(f"all in {format_duration(time.time() - float(begun))}")


def show(file: Path) -> None:
    """Print the leaderboard; where it is not there, build it."""
    sys.stdout.flush()
    if not file.is_file():
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "fedweave.pipelines.stages.leaderboard"])
        return
    with_styles = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(text_styles.read(file) if with_styles else file.read_text(encoding="utf-8"), end="", flush=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        main(*sys.argv[1:])
    except BadInput as error:
        sys.exit(f"error: {error}")
