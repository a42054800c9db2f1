"""A user's own project, made by `fedweave init` outside of the checkout, with the package as a wheel installs it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.servers import ROOT, python

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("projects"), pytest.mark.timeout(900)]

BENCH = '''
"""A method, a model and a data set."""
from dataclasses import dataclass
import numpy as np
import torch
import fedweave as fw
from fedweave.data import Dataset
from fedweave.families import GlobalModel, SplitClient

@fw.method("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(SplitClient, GlobalModel):
    """FedAvg by another name."""
    label = "Mine"
    point = "pre"

@fw.model("tiny")
class Tiny(fw.models.ClientModel):
    """A linear map."""
    head = ("out",)
    def __init__(self, shape, outputs):
        super().__init__()
        self.out = torch.nn.Linear(16, outputs)
    def features(self, x, *, key=None, mask=None):
        return x.flatten(1)

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
    model: {name: tiny}
    train: {rounds: 2, batch_size: 16, lr: 0.1}
    methods: [local, mine, packed]
tune: {trials: 0}
"""


PACKED = '''
"""A method of an installed package."""
from dataclasses import dataclass
import fedweave as fw
from packed.part import SHARE

@fw.method("packed")
@dataclass(frozen=True, kw_only=True)
class Packed(fw.methods.FedAvg):
    """FedAvg that goes a part of the way."""
    label = "Packed"

    def merge(self, old, mean):
        return {name: value + SHARE * (mean[name] - value) for name, value in old.items()}
'''


def add_package(site: Path) -> Path:
    """Adds a package with a plug-in, as pip installs it. Returns its folder."""
    place, about = site / "packed", site / "packed-1.0.dist-info"
    place.mkdir()
    about.mkdir()
    (place / "__init__.py").write_text(PACKED)
    (place / "part.py").write_text("SHARE = 0.5\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedweave.plugins]\nany-name = packed\n")
    return place


def installed(folder: Path) -> Path:
    """Copies the files of the wheel to site-packages, by the list of the build."""
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
        self.folder, self.site = folder, site
        home = str(Path(sys.executable).parent)
        self.env = {"PYTHONPATH": str(site), "PATH": os.pathsep.join([home, os.environ["PATH"]])}

    def python(self, *words: str) -> str:
        """The output of `python -m words` in the project."""
        done = python("-m", *words, folder=self.folder, **self.env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """A new project with a plug-in and a study that has been run."""
    place = tmp_path_factory.mktemp("own")
    project = Own(place, installed(place / "site"))
    add_package(place / "site")
    project.python("fedweave.pipelines.commands.main", "init", "lab")
    project.folder = place / "lab"
    (project.folder / "mybench").mkdir()
    (project.folder / "mybench" / "own.py").write_text(BENCH)
    (project.folder / "mine").mkdir()
    (project.folder / "mine" / "first-try.yaml").write_text(STUDY)
    project.python("fedweave.pipelines.commands.main", "study", "run", "mine/first-try.yaml")
    return project


def test_a_study_with_a_plug_in_is_run(own: Own) -> None:
    """The command works in any folder of the project, with the name of the study's file."""
    board = pd.read_csv(own.folder / "results" / "first-try" / "leaderboard.csv")
    assert {*board["method"]} == {"Local", "FedAvg-FT", "Mine", "Packed"}
    assert yaml.safe_load((own.folder / "params.yaml").read_text())["uses"] == {"mybench": "mybench"}
    assert "Mine" in (own.folder / "results" / "first-try" / "report.html").read_text()


def test_a_second_run_and_a_changed_comment_train_nothing(own: Own) -> None:
    """DVC knows the plug-in's files."""
    assert re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro")) == []
    file = own.folder / "mybench" / "own.py"
    file.write_text(file.read_text() + "# a comment\n")
    assert re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro")) == ["code@mybench"]


def test_the_code_of_an_installed_package_trains_its_runs_again(own: Own) -> None:
    """A change in another file of the package does, and a comment does not."""
    file = own.site / "packed" / "part.py"
    file.write_text("SHARE = 0.5  # a comment\n")
    assert re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro")) == ["code@packed"]
    file.write_text("SHARE = 0.25\n")
    ran = re.findall(r"Running stage '([^']+)'", own.python("dvc", "repro"))
    assert {"code@packed", "sources", "train@blobs-packed", "evaluate"} <= {*ran}
    assert not {"train@blobs-local", "train@blobs-mine"} & {*ran}


def test_models_that_the_stages_trained_predict(own: Own) -> None:
    """The call in Python uses the plug-ins of the project."""
    code = (
        "import numpy as np; import fedweave as fw; import mybench.own;"
        "done = fw.load('results/first-try'); x = np.zeros((3, 1, 4, 4));"
        "print([done[name].predict(x, 'client 1').shape for name in ('local', 'mine', 'packed')])"
    )
    env = {**own.env, "PYTHONPATH": f"{own.env['PYTHONPATH']}{os.pathsep}."}
    done = python("-c", code, folder=own.folder, **env)
    assert done.stdout == "[(3,), (3,), (3,)]\n", done.stderr


def test_models_of_plug_ins_are_served(own: Own, tmp_path: Path) -> None:
    """MLflow loads the models of the leader in another folder, without the plug-in."""
    code = (
        "import mlflow; import numpy as np; m = mlflow.pyfunc.load_model('models:/first-try-blobs@best');"
        "print(m.predict(np.zeros((3, 1, 4, 4), np.float32), {'client': 2, 'seed': 0}).shape)"
    )
    env = {**own.env, "MLFLOW_TRACKING_URI": f"sqlite:///{own.folder / 'mlflow.db'}"}
    done = python("-c", code, folder=tmp_path, **env)
    assert done.stdout.splitlines()[-1:] == ["(3, 2)"], done.stderr


def test_deployments_name_flows_of_the_package(own: Own) -> None:
    """A user's project has no folder pipelines/."""
    from fedweave.pipelines.scheduling.flows import reproduce

    deployments = yaml.safe_load((own.folder / "prefect.yaml").read_text())["deployments"]
    module = reproduce.fn.__module__
    assert {entry["entrypoint"] for entry in deployments} == {f"{module}.reproduce", f"{module}.perform"}
    assert "pipelines/" not in (own.folder / "dvc.yaml").read_text()


def orders(seed: int) -> pd.DataFrame:
    """Orders of three shops. Large orders tend to be late."""
    draws = np.random.default_rng(seed)
    size = draws.normal(size=120)
    late = np.where(size + draws.normal(size=120) > 0, "late", "on time")
    kinds = draws.choice(["a", "b"], 120)
    return pd.DataFrame({"shop": [f"shop {i % 3}" for i in range(120)], "size": size, "kind": kinds, "late": late})


def test_an_imported_file_runs_through_dvc(tmp_path: Path) -> None:
    """`git init`, `fedweave init .`, `fedweave import` and `dvc repro`. Only a changed file trains again."""
    subprocess.run(["git", "init", "--quiet", tmp_path / "lab"], check=True)
    project = Own(tmp_path / "lab", installed(tmp_path / "site"))
    project.python("fedweave.pipelines.commands.main", "init", ".")
    file = project.folder / "orders.csv"
    orders(0).to_csv(file, index=False)
    words = ["import", "orders.csv", "--client", "shop", "--label", "late", "--methods", "local,fedavg"]
    command = ["fedweave.pipelines.commands.main", *words, "--rounds", "2", "--seeds", "1", "--force"]
    assert "next: dvc repro" in project.python(*command)
    ran = re.findall(r"Running stage '([^']+)'", project.python("dvc", "repro"))
    assert {"partition@orders", "train@orders-local", "train@orders-fedavg", "report"} <= {*ran}
    board = pd.read_csv(project.folder / "results" / "orders" / "leaderboard.csv")
    assert {*board["method"]} == {"Local", "FedAvg", "FedAvg-FT"}
    subprocess.run(["git", "add", "--all"], cwd=project.folder, check=True)
    names = subprocess.run(["git", "ls-files"], cwd=project.folder, capture_output=True, text=True, check=True).stdout
    assert {"imports/own_orders.py", "imports/orders.csv", "studies/orders.yaml", "dvc.lock"} <= {*names.split()}
    project.python(*command)  # the same file
    assert re.findall(r"Running stage '([^']+)'", project.python("dvc", "repro")) == []
    orders(1).to_csv(file, index=False)
    project.python(*command)
    assert "train@orders-local" in re.findall(r"Running stage '([^']+)'", project.python("dvc", "repro"))


def test_init_on_another_machine_keeps_files_of_the_user(own: Own) -> None:
    """The path of the package is written again."""
    (own.folder / "README.md").write_text("mine")
    shutil.rmtree(own.folder / ".fedweave" / "packages")
    (own.folder / "packages.yaml").unlink()
    own.python("fedweave.pipelines.commands.main", "init", ".")
    assert (own.folder / "README.md").read_text() == "mine"
    names = yaml.safe_load((own.folder / "packages.yaml").read_text())["uses"]
    assert names == {name: f".fedweave/packages/{name}" for name in ("fedweave", "packed")}
    assert all((own.folder / place / "__init__.py").is_file() for place in names.values())
