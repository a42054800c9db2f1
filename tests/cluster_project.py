"""A DVC project of three stages that take no time, for tests of a cluster. Files in `knobs` hold or fail a stage."""

import sys
from pathlib import Path

from dvc.repo import Repo

ROOT = Path(__file__).resolve().parents[2]
DVC_YAML = """
stages:
  before:
    cmd: exec PYTHON step.py before
    deps: [step.py]
    outs: [results/before.txt]
  make:
    foreach: ${names}
    do:
      cmd: exec PYTHON step.py ${item}
      deps: [results/before.txt]
      params: [size]
      outs: ["results/${item}.txt"]
      meta: {gpu: 1}
  last:
    cmd: exec PYTHON step.py last
    deps: [results/a.txt]
    outs: [results/last.txt]
    meta: {gpu: 1}
"""
STEP = """
import pathlib, sys, time
name = sys.argv[1]
with open("knobs/starts", "a") as starts:
    starts.write(name + "\\n")
if pathlib.Path("knobs/refuse-" + name).exists():
    print("error: asked to refuse")
    sys.exit(2)
while pathlib.Path("knobs/hold-" + name).exists():
    time.sleep(0.05)
pathlib.Path("results", name + ".txt").write_text(name + pathlib.Path("params.yaml").read_text())
"""


def make(folder: Path) -> None:
    """Write the project into `folder`. No stage has run."""
    for name in ("knobs", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "params.yaml").write_text("names: [a, b]\nsize: 1\nstudy: toy\n")
    (folder / "dvc.yaml").write_text(DVC_YAML.replace("PYTHON", sys.executable))
    (folder / "step.py").write_text(STEP)
    (folder / "cluster.yaml").write_text("executor: local\n")
    Repo.init(str(folder), no_scm=True).close()


def starts(folder: Path = Path()) -> list[str]:
    """The stages that started, in order."""
    file = folder / "knobs" / "starts"
    return file.read_text().split() if file.is_file() else []
