"""The end of `make repro`: brings MLflow up to date, prints the leaderboard that the stage `report` left, links, and
the time that all took; without importing what made them, where nothing has changed.
"""

import os
import re
import sys
import time
from pathlib import Path

from fedweave.pipelines import ROOT
from fedweave.pipelines.addresses import mlflow_address
from fedweave.pipelines.launching.lines import duration
from fedweave.pipelines.mlflow_records import stamp, synchronise

STYLES = re.compile(r"\x1b\[[0-9;]*m")


def main(begun: str = "") -> None:
    """Finish a reproduction of params.yaml's study that began at `begun`, in seconds since 1970."""
    name = re.search(r"^study: *['\"]?([^'\"\s#]+)", Path("params.yaml").read_text(encoding="utf-8"), re.M)
    study = name[1] if name else ""
    folder = Path("results", study)
    if study:
        synchronise.apart(folder, study)
    show(folder / "leaderboard.txt")
    for task, link in stamp.links(study).items():
        print(f"{task} in MLflow (make ui): {mlflow_address()}/{link}")
    if begun:
        print(f"all in {duration(time.time() - float(begun))}")


def show(file: Path) -> None:
    """Print the leaderboard; where it is not there, build it."""
    sys.stdout.flush()
    if not file.is_file():
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "fedweave.pipelines.stages.leaderboard"])
        return
    text = file.read_text(encoding="utf-8")
    print(text if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else STYLES.sub("", text), end="")


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
