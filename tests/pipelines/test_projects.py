"""A project of one's own: made by `fedweave init` outside of the checkout, with the package as a wheel installs it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedweave.pipelines.scheduling.flows import reproduce
from tests.servers import ROOT

pytestmark = [pytest.mark.xdist_group("projects"), pytest.mark.timeout(900)]

BENCH = '''
"""A method and a data set."""
from dataclasses import dataclass
import numpy as np
import fedweave as fw
from fedweave.data import Dataset
from fedweave.families import GlobalModel, SplitClient

@fw.method("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(SplitClient, GlobalModel):
    """FedAvg by another name."""
    label = "Mine"
    point = "pre"

@fw.dataset("blobs")
def blobs(root):
    """Blobs in two classes."""
    g = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = (y[:, None, None, None] + g.normal(size=(120, 1, 4, 4))).astype(np.float32)
    return Dataset("blobs", "images", x, y.astype(np.int64), classes=2)
'''
STUDY = """
about: A method and a data set of one's own.
uses: [../mybench/]
seeds: [0]
tasks:
  blobs:
    dataset: blobs
    partition: {name: iid, clients: 3, seed: 1}
    model: {name: mlp, hidden: 4}
    train: {rounds: 2, batch_size: 16, lr: 0.1}
    methods: [local, mine]
tune: {trials: 0}
"""


def installed(folder: Path) -> Path:
    """What the wheel puts into site-packages, by the build's own list."""
    ignored = shutil.ignore_patterns("__pycache__", "pipelines")
    shutil.copytree(ROOT / "src" / "fedweave", folder / "fedweave", ignore=ignored)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name, place in wheel["force-include"].items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / place)
    return folder


class Own:
    """A user's project, and commands in it."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        home = str(Path(sys.executable).parent)
        self.env = {**os.environ, "PYTHONPATH": str(site), "PATH": os.pathsep.join([home, os.environ["PATH"]])}

    def python(self, *words: str) -> str:
        """What `python -m words` prints here."""
        command, env = [sys.executable, "-m", *words], self.env
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """A new project with a plug-in and a study that has been run."""
    place = tmp_path_factory.mktemp("own")
    made = Own(place, installed(place / "site"))
    made.python("fedweave.pipelines.commands.main", "init", "lab")
    made.folder = place / "lab"
    (made.folder / "mybench").mkdir()
    (made.folder / "mybench" / "own.py").write_text(BENCH)
    (made.folder / "mine").mkdir()
    (made.folder / "mine" / "first-try.yaml").write_text(STUDY)
    made.python("fedweave.pipelines.commands.main", "study", "run", "mine/first-try.yaml")
    return made


def test_a_study_with_a_plug_in_is_run(own: Own) -> None:
    """From anywhere in the project, under the name of its file."""
    board = pd.read_csv(own.folder / "results" / "first-try" / "leaderboard.csv")
    assert {*board["method"]} == {"Local", "Mine"}
    assert yaml.safe_load((own.folder / "params.yaml").read_text())["uses"] == {"mybench": "mybench"}
    assert "Mine" in (own.folder / "results" / "first-try" / "report.html").read_text()


def test_nothing_runs_twice_and_a_comment_trains_nothing(own: Own) -> None:
    """DVC knows the plug-in's files."""
    assert re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro")) == []
    file = own.folder / "mybench" / "own.py"
    file.write_text(file.read_text() + "# a comment\n")
    assert re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro")) == ["code@mybench"]


def test_deployments_name_flows_of_the_package(own: Own) -> None:
    """There is no folder pipelines/ in a project of one's own."""
    deployments = yaml.safe_load((own.folder / "prefect.yaml").read_text())["deployments"]
    module = reproduce.fn.__module__
    assert {entry["entrypoint"] for entry in deployments} == {f"{module}.reproduce", f"{module}.perform"}
    assert "pipelines/" not in (own.folder / "dvc.yaml").read_text()


def test_init_completes_and_does_not_overwrite(own: Own) -> None:
    """As on another machine: the place of the package is written again, what the user wrote stays."""
    (own.folder / "README.md").write_text("mine")
    (own.folder / ".fedweave" / "installed.yaml").unlink()
    own.python("fedweave.pipelines.commands.main", "init", ".")
    assert (own.folder / "README.md").read_text() == "mine"
    assert (own.folder / ".fedweave" / "installed.yaml").is_file()
