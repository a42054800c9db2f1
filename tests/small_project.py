"""A copy of the project under DVC, with a study of seconds."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fedweave import catalogue
from pipelines.studies import dump

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("src", "pipelines", "studies", "dvc.yaml", ".env", ".dvcignore", "pyproject.toml")


def params(**methods: dict) -> str:
    """A study of seconds: two methods on the digits, one of them also on their graph, with tuning and an ablation."""
    content = catalogue.expand("quick", ROOT / "studies")
    for task in content["tasks"].values():
        task["train"] = {**task["train"], "rounds": 2, "epochs": 1}
    runs = {key: content["runs"][key] for key in ("digits-fedavg", "digits-ditto", "digits-graph-fedavg")}
    blocks = {"fedavg": {}, "ditto": {"personal_epochs": 1, **methods.get("ditto", {})}}
    tune = {"trials": 2, "share": 0.5, "seeds": [1000], "workers": 2, "spaces": {"ditto": {"lam": {"low": 0.1, "high": 2.0}}}}
    ablate = {
        "pull": {"run": "digits-ditto", "variants": {"none": {"lam": 0.0}, "strong": {"lam": 5.0}}},
        "clients": {"run": "digits-fedavg", "grid": {"partition.clients": [5, 10]}},
    }
    return dump({**content, "study": "small", "seeds": [0, 1], "runs": runs, "methods": blocks, "tune": tune, "ablate": ablate})


class Project:
    """A copy of the project under DVC without git."""

    def __init__(self, folder: Path):
        self.folder = folder
        paths = os.pathsep.join([str(folder / "src"), str(folder)])
        # Imports come from the copy, commands from the environment that runs the tests.
        bin_folder = str(Path(sys.executable).parent)
        self.env = {
            **os.environ,
            "PYTHONPATH": paths,
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "OMP_NUM_THREADS": "1",
        }
        for part in PARTS:
            source = ROOT / part
            ignore = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=ignore)
            else:
                shutil.copy(source, folder / part)
        self.dvc("init", "--no-scm", "-q")
        self.dvc("config", "core.check_update", "false")

    def dvc(self, *words: str, fails: bool = False) -> str:
        """Run DVC here and return what it printed."""
        command = [sys.executable, "-m", "dvc", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def repro(self) -> list[str]:
        """Reproduce and return the stages that ran."""
        return re.findall(r"Running stage '([^']+)'", self.dvc("repro"))
