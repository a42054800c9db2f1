"""The time of each part of a `make repro`: python -m benchmarks.startup [--direct].

Reproduces the study of params.yaml in a copy of the project, twice, and prints the seconds of each part:
  start     of a stage: Python and its imports, or a fork that has them
  training  of `train` and `ablate`, including the reading of their inputs; tuning: of `tune`
  writing   the results of `train` and `ablate`
  others    each other stage by its name
  exit      from the end of a stage's work to the end of its process
  DVC       everything between the stages
With --direct every stage is a Python process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from shutil import copy

from rich.console import Console
from rich.table import Table

from fedweave.pipelines import ROOT

TRAINING = {"train": "training", "ablate": "training", "tune": "tuning"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Where the time of a `make repro` goes.")
    parser.add_argument("--direct", action="store_true", help="without a fork server")
    direct = parser.parse_args().direct
    with tempfile.TemporaryDirectory() as name:
        folder = copy_project(Path(name))
        for title in ("first run", "second run, nothing to do"):
            notes = folder / "times"
            notes.write_text("")
            seconds = reproduce(folder, {"FEDWEAVE_TIMES": str(notes), **({"FEDWEAVE_DIRECT": "1"} if direct else {})})
            show(title, seconds, parts(seconds, (line.split() for line in notes.read_text().splitlines())))


def copy_project(folder: Path) -> Path:
    """Copy the files that git does not ignore, as they are now, to `folder`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "dvc", "config", "core.no_scm", "true"], cwd=folder, check=True)
    return folder


def reproduce(folder: Path, env: Mapping[str, str]) -> float:
    """Seconds of the command of `make repro` in `folder`."""
    imports = os.pathsep.join([str(folder / "src"), str(folder)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **env, "PYTHONPATH": imports, "PATH": path}
    start = time.perf_counter()
    command = [sys.executable, "-IS", "pipelines/launching/reproduce.py"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def parts(total: float, notes: Iterable[list[str]]) -> dict[str, float]:
    """Part -> its seconds. `notes` are the lines (stage, event, moment) of `record_time`, in the order of time."""
    spent: dict[str, float] = defaultdict(float)
    previous = 0.0
    for stage, event, moment in notes:
        time_ = float(moment)
        if event != "asked":
            spent[_part(stage, event)] += time_ - previous
        previous = time_
    return {**spent, "DVC": total - sum(spent.values())}


def _part(stage: str, event: str) -> str:
    """The part to which the time before `event` belongs."""
    if event in ("trained", "left"):
        return "writing" if event == "left" and stage in ("train", "ablate") else TRAINING.get(stage, stage)
    return {"begun": "start", "ended": "exit"}[event]


def show(title: str, total: float, seconds_of: Mapping[str, float]) -> None:
    """Print a table of parts, the largest first."""
    table = Table(title=f"{title}: {total:.1f} s", title_justify="left", box=None)
    for name in ("part", "seconds", "share"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for name, seconds in sorted(seconds_of.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{seconds:.1f}", f"{100 * seconds / total:.0f} %")
    Console().print(table)


if __name__ == "__main__":
    main()
