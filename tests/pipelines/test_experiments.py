"""DVC as a user types it, in a project of `fedweave init`: experiments, their changes, switched studies, restored
results. After every command MLflow shows the same as results/.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.mlflow_store import Shown, current
from tests.servers import ROOT

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("experiments"), pytest.mark.timeout(1800)]

STUDY = """
about: Two methods on handwritten digits.
seeds: [0, 1]
tasks:
  digits: {methods: [%s], train: {rounds: 2}}
tune: {trials: 0}
"""
GIT = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "me"), ("EMAIL", "me@localhost"))
}


class Lab:
    """A project, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        sources = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.env = {**os.environ, **GIT, "PATH": path, "PYTHONPATH": sources, "MLFLOW_TRACKING_URI": self.uri}

    def run(self, *words: str) -> str:
        """The output of a command."""
        done = subprocess.run(words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fedweave(self, *words: str) -> str:
        """The output of `fedweave words`."""
        return self.run(sys.executable, "-m", "fedweave.pipelines.commands.main", *words)

    def repro(self, study: str = "one") -> Shown:
        """The runs of a study in MLflow after `make repro`."""
        self.run(sys.executable, "-m", "fedweave.pipelines.launching.reproduce")
        return self.shown(study)

    def shown(self, study: str = "one") -> Shown:
        """The runs of a study in MLflow, which agree with results/."""
        return current(self.uri, self.folder / "results" / study)

    def scores(self) -> dict[str, float]:
        """Method -> score."""
        board = pd.read_csv(self.folder / "results" / "one" / "leaderboard.csv")
        return board.set_index("method")["mean"].to_dict()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A project under git. Its study has been run and committed, and an experiment has changed it."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.fedweave("init", ".")
    for name, methods in (("one", "fedavg, ditto"), ("two", "fedavg")):
        (lab.folder / "studies" / f"{name}.yaml").write_text(STUDY % methods)
    lab.fedweave("study", "run", "one", "--force")
    lab.run("git", "add", "--all")
    assert "dvc.lock" in lab.run("git", "diff", "--cached", "--name-only").split()
    lab.run("git", "commit", "--quiet", "--message", "one, as it is")
    return lab


@pytest.fixture(scope="module")
def before(lab: Lab) -> tuple[Shown, dict[str, float]]:
    """The runs in MLflow, and the scores, before the experiment."""
    return lab.shown(), lab.scores()


@pytest.fixture(scope="module")
def weaker(lab: Lab, before: object) -> tuple[Shown, dict[str, float]]:
    """The runs in MLflow, and the scores, of an experiment that changes one value."""
    lab.run("dvc", "exp", "run", "-S", "methods.ditto.lam=0.01", "-n", "weaker")
    return lab.shown(), lab.scores()


def test_an_experiment_is_compared_with_the_commit(
    lab: Lab, before: tuple[Shown, dict[str, float]], weaker: tuple[Shown, dict[str, float]]
) -> None:
    """Only the run with the changed value is new, and DVC shows the difference.

    The p value of every other run may change: the variances of all methods are judged together.
    """
    (first, old), (second, new) = before, weaker
    kept, unchanged = (
        (run, {**metrics, "": {name: value for name, value in metrics[""].items() if name != "p_adjusted"}})
        for run, metrics in (second["digits-fedavg"], first["digits-fedavg"])
    )
    assert kept == unchanged
    assert second["digits-ditto"][0] != first["digits-ditto"][0]
    assert new["Ditto"] != old["Ditto"]
    shown = json.loads(lab.run("dvc", "metrics", "diff", "--json"))
    changed = {Path(file).stem: numbers for file, numbers in shown.items() if numbers["accuracy"].get("diff")}
    assert [*changed] == ["digits-ditto"]
    score = changed["digits-ditto"]["accuracy"]
    assert (score["old"], score["new"]) == (old["Ditto"], new["Ditto"])


def test_the_table_of_experiments_is_narrow_and_has_both(
    lab: Lab, before: tuple[Shown, dict[str, float]], weaker: tuple[Shown, dict[str, float]]
) -> None:
    header, *rows = csv.reader(lab.run("dvc", "exp", "show", "--csv", "--only-changed").splitlines())
    assert len(header) <= 16, header
    place = next(i for i, name in enumerate(header) if name.endswith("digits-ditto.json:accuracy"))
    scores = {row[0] or row[1]: row[place] for row in rows}  # an experiment has a name, a commit the branch
    assert float(scores["weaker"]) == pytest.approx(weaker[1]["Ditto"], abs=0.01)
    branch = lab.run("git", "branch", "--show-current").strip()
    assert float(scores[branch]) == pytest.approx(before[1]["Ditto"], abs=0.01)


def test_the_page_of_curves_needs_no_network(lab: Lab) -> None:
    lab.run("dvc", "plots", "show")
    folder = lab.folder / "dvc_plots"
    page = (folder / "index.html").read_text()
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page)
    files = [name for name in re.findall(r"src=\"([^\"]+)\"", page) if not name.startswith("data:")]
    assert any("digits" in name for name in files)
    assert all((folder / name).is_file() for name in files)


def test_mlflow_shows_reverted_applied_lost_and_switched_results(
    lab: Lab, before: tuple[Shown, dict[str, float]], weaker: tuple[Shown, dict[str, float]]
) -> None:
    """Each time all earlier runs are there, with every metric."""
    lab.run("git", "checkout", "--quiet", ".")
    lab.run("dvc", "checkout", "--quiet")
    assert (lab.repro(), lab.scores()) == before
    lab.run("dvc", "exp", "apply", "weaker")
    assert (lab.repro(), lab.scores()) == weaker
    lab.run("git", "checkout", "--quiet", ".")
    shutil.rmtree(lab.folder / "results")
    lab.run("dvc", "checkout", "--quiet")
    assert (lab.repro(), lab.scores()) == before
    lab.fedweave("study", "use", "two")
    assert lab.repro("two").keys() == {"digits-fedavg", "digits-fedavg_ft", "digits-local"}
    lab.fedweave("study", "use", "one")
    assert (lab.repro(), lab.scores()) == before
