"""A DVC project of four stages that take no time. Files, its knobs, make a stage fail, refuse or wait."""

import sys
from pathlib import Path

from dvc.repo import Repo

ROOT = Path(__file__).resolve().parent.parent
DVC_YAML = """
stages:
  make:
    foreach: ${names}
    do:
      cmd: exec PYTHON step.py made-${item}.txt
      deps: [step.py]
      params: [size]
      outs: ["made-${item}.txt"]
      meta: {gpu: 1}
  join:
    cmd: exec PYTHON step.py joined.txt
    deps: [made-a.txt, made-b.txt]
    outs: [joined.txt]
  aside:
    cmd: exec PYTHON step.py aside.txt
    deps: [step.py]
    outs: [aside.txt]
"""
# The folder `seen` gets a file per start: name, GPU, process.
STEP = """
import os, pathlib, sys, time
sys.path[:0] = [{src!r}, {root!r}]
from fedweave.pipelines.processes import die_with_parent
die_with_parent()
pathlib.Path("seen", "_".join([sys.argv[1], os.environ.get("CUDA_VISIBLE_DEVICES", "none"), str(os.getpid())])).touch()
for word, code in (("fail", 1), ("refuse", 2)):
    if pathlib.Path(word).exists() and sys.argv[1] == "made-b.txt":
        print("error: asked to", word)
        sys.exit(code)
while pathlib.Path("hold").exists():
    pathlib.Path("pids", str(os.getpid())).touch()
    time.sleep(0.05)
pathlib.Path(sys.argv[1]).write_text(sys.argv[1] + pathlib.Path("params.yaml").read_text())
"""


def make(folder: Path) -> None:
    """Write the project into `folder`. No stage has run."""
    (folder / "params.yaml").write_text("names: [a, b]\nsize: 1\nstudy: toy\n")
    (folder / "dvc.yaml").write_text(DVC_YAML.replace("PYTHON", sys.executable))
    (folder / "step.py").write_text(STEP.format(src=str(ROOT / "src"), root=str(ROOT)))
    for name in ("pids", "seen"):
        (folder / name).mkdir()
    (folder / "prefect.yaml").symlink_to(ROOT / "prefect.yaml")
    Repo.init(str(folder), no_scm=True).close()


def seen(folder: Path = Path()) -> list[tuple[str, str]]:
    """(stage's file, GPU) of every start of a stage, sorted."""
    return sorted((name, gpu) for name, gpu, _ in (path.name.rsplit("_", 2) for path in (folder / "seen").iterdir()))
