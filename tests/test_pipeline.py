"""The pipeline in a temporary copy of the project: whole, idle when nothing changed, and re-run only where something did."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from servers import DIGITS, Project

from pipelines import paths, train
from pipelines.studies import dump
from tests import trained

# One process runs them all: they share a project and change it in turn.
pytestmark = [pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent
GRAPH = {
    "dataset": "digits-graph",
    "setting": "overlap/clients10",
    "normalize": "none",
    "partition": {"name": "metis_overlap", "clients": 10, "seed": 666, "copies": 5, "split": {"train": 0.05, "val": 0.25, "test": 0.7}},
    "model": {"name": "gcn", "hidden": 8},
    "train": {"rounds": 2, "epochs": 1, "batch_size": 0, "optimizer": "adam", "lr": 0.01, "executor": "loop"},
    "evaluate": {"every": 1, "select": "best_val_round"},
}


def params(study: str = "small", lam: float = 1.0, searched: str = "lam") -> str:
    """A study of seconds: two methods on the digits, one of them also on their graph, with tuning and an ablation."""
    content = {
        "study": study,
        "about": "",
        "seeds": [0, 1],
        "datasets": ["digits", "digits-graph"],
        "tasks": {"digits": DIGITS, "digits-graph": GRAPH},
        "runs": {
            "digits-fedavg": {"task": "digits", "method": "fedavg"},
            "digits-ditto": {"task": "digits", "method": "ditto"},
            "digits-graph-fedavg": {"task": "digits-graph", "method": "fedavg"},
        },
        "methods": {"fedavg": {}, "ditto": {"lam": lam, "personal_epochs": 1}},
        "tune": {"trials": 2, "share": 0.5, "seeds": [1000], "workers": 2, "spaces": {"ditto": {searched: {"low": 0.1, "high": 2.0}}}},
        "ablate": {
            "pull": {"run": "digits-ditto", "variants": {"none": {"lam": 0.0}, "strong": {"lam": 5.0}}},
            "clients": {"run": "digits-fedavg", "grid": {"partition.clients": [5, 10]}},
        },
    }
    return dump(content)


def part(study: str, lam: float) -> str:
    """One run of it, with other settings, under another name."""
    content = yaml.safe_load(params(study, lam))
    runs = {"digits-ditto": content["runs"]["digits-ditto"]}
    content |= {"datasets": ["digits"], "tasks": {"digits": DIGITS}, "runs": runs, "ablate": {}}
    return dump(content)


def repro(project: Project) -> list[str]:
    """Reproduce and return the stages that ran."""
    done = project.python("dvc", "repro")
    return re.findall(r"Running stage '([^']+)'", done.stdout + done.stderr)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A reproduced small study."""
    made = Project(tmp_path_factory.mktemp("project"), params())
    ran = repro(made)
    assert {
        "download@digits",
        "partition@digits-graph",
        "tune@digits",
        "train@digits-ditto",
        "evaluate",
        "ablate@pull",
        "ablate@clients",
        "report",
    } <= {*ran}
    return made


def test_results_are_there(project: Project) -> None:
    """Leaderboard, report, MLflow's database, and what tuning found."""
    results = project.folder / "results" / "small"
    board = pd.read_csv(results / "leaderboard.csv")
    assert ",".join(board.columns) == (
        "study,dataset,setting,method,metric,mean,std,seeds,client_std,worst10,bytes_up,bytes_down,seconds,published_mean,published_std"
    )
    assert len(board) == 3
    assert board["seeds"].eq(2).all()
    assert board["published_mean"].isna().all()
    assert "Ditto" in (results / "report.html").read_text()
    record = json.loads((results / "tuned" / "digits" / "trials" / "digits-ditto.json").read_text())
    assert len(record["trials"]) == 2
    assert record["trials"][0]["params"] == {"lam": 1.0}
    assert json.loads((results / "tuned" / "digits" / "digits-ditto.json").read_text()) == {"run": "digits-ditto", "best": record["best"]}
    assert {"cpu_utilization_percentage", "time"} <= {*pd.read_csv(results / "runs" / "digits-ditto" / "system.csv")}
    assert (project.folder / "mlflow.db").is_file()
    assert not [*(project.folder / ".fedweave" / "checkpoints").rglob("*.pt")]


def test_ablations_stand_beside_the_run_as_it_is_declared(project: Project) -> None:
    """What equals it is not trained again; other clients are another deal of the rows and are not paired."""
    results = project.folder / "results" / "small"
    board = pd.read_csv(results / "leaderboard.csv").set_index(["dataset", "method"])["mean"]
    pull = pd.read_csv(results / "ablations" / "pull" / "table.csv").set_index("variant")
    assert [*pull.index] == ["as declared", "none", "strong"]
    assert pull.loc["as declared", "mean"] == pytest.approx(board["digits", "Ditto"])
    assert pull.loc[["none", "strong"], "p_adjusted"].between(0, 1).all()
    values = pd.read_csv(results / "ablations" / "pull" / "values.csv").groupby("variant")["value"].mean()
    assert values.to_dict() == pytest.approx(pull["mean"].to_dict())
    clients = pd.read_csv(results / "ablations" / "clients" / "table.csv").set_index("variant")
    assert clients["declared"].to_dict() == {"clients = 5": 0, "clients = 10": 1}
    assert clients.loc["clients = 10", "mean"] == pytest.approx(board["digits", "FedAvg"])
    assert clients["p_adjusted"].isna().all()
    assert pd.read_csv(results / "ablations" / "clients" / "values.csv").groupby("variant")["client"].nunique().to_dict() == {
        "clients = 5": 5, "clients = 10": 10,
    }  # fmt: skip
    assert (results / "ablations" / "clients" / "plot.svg").is_file()


def test_second_time_runs_nothing(project: Project) -> None:
    """Nothing changed, nothing runs."""
    assert repro(project) == []


def test_a_methods_block_and_file_are_its_own(project: Project) -> None:
    """Editing Ditto trains Ditto again and not FedAvg; going back runs nothing, because DVC remembers."""
    file = project.folder / "src" / "fedweave" / "methods" / "ditto.py"
    before = file.read_text()
    file.write_text(before + "# changed\n")
    ran = repro(project)
    assert [stage for stage in ran if stage.startswith("train@")] == ["train@digits-ditto"]
    file.write_text(before)
    assert repro(project) == []


def test_switching_studies_and_back_runs_nothing(project: Project) -> None:
    """Another study is computed once; the first one comes back from the run cache."""
    (project.folder / "params.yaml").write_text(part("other", lam=3.0))
    assert "train@digits-ditto" in repro(project)
    (project.folder / "params.yaml").write_text(params())
    assert [stage for stage in repro(project) if not stage.startswith("tune@")] == []


def test_bad_input_stops_before_work(project: Project) -> None:
    """One line that names the key; no stage is taken for done."""
    (project.folder / "params.yaml").write_text(params(searched="lamm"))
    done = project.python("dvc", "repro", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode
    assert "lamm" in printed
    assert "Traceback" not in printed
    (project.folder / "params.yaml").write_text(params())


def test_progress_counts_the_rounds_of_all_the_stages_of_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SHN trains a plain hypernetwork first: three rounds, and three more."""
    monkeypatch.chdir(tmp_path)
    run = trained.study("images", {"shn": {"k": 1}}, seeds=[0]).run("blobs-shn")
    train.train(run, (trained.dataset("images"), trained.partition("images")), "toy")
    assert re.findall(r"round (\d+)/(\d+)", capsys.readouterr().out) == [("2", "6"), ("4", "6"), ("6", "6")]


def test_every_stage_is_a_child_of_dvc_itself() -> None:
    """A shell in between would outlive DVC, and the stage with it."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
    assert all(stage.get("do", stage)["cmd"].startswith("exec python -m ") for stage in stages)


@pytest.mark.parametrize("stage", ["tune", "train"])
def test_every_module_a_stage_imports_is_a_dependency(stage: str) -> None:
    """No shared code can change without the stages that use it knowing, and what only reads results retrains nothing."""
    code = f"import sys, pipelines.{stage}; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('fedweave.')))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    printed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    imported = {Path(file) for file in printed.split()}
    shared = {*paths.shared_sources()}
    assert {file for file in imported - shared if file.parent.name != "methods"} == set()
    assert shared & {*(ROOT / "src/fedweave/methods").glob("*"), *(ROOT / "src/fedweave/report").glob("*")} == set()
    for name in ("tune", "train"):
        assert "results/${study}/sources.csv" in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][name]["do"]["deps"]
