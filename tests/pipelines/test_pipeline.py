"""The pipeline in a temporary copy of the project: complete, idle without changes, and re-run only where something
changed.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedweave.files.atomic import write_atomic
from fedweave.pipelines.launching import forkserver
from fedweave.pipelines.stages import train
from fedweave.runs import checkpoints
from tests import trained
from tests.mlflow_store import Shown, current
from tests.servers import ROOT, Project
from tests.small_project import params, part, repro

# One process runs all tests: they share a project and change it one after the other.
pytestmark = [pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A reproduced study."""
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
    """Leaderboard, report, MLflow's database, and the result of tuning."""
    folder = project.folder / "results" / "small"
    board = pd.read_csv(folder / "leaderboard.csv")
    assert ",".join(board.columns) == (
        "study,dataset,setting,method,metric,mean,std,seeds,pooled,client_std,worst10,low,high,mark,vs_local,"
        "vs_fedavg_ft,gain,loss,clients,pre,post,best_round,at_last,group_auc,group_precision,group_mass,"
        "similarity_correlation,row_variation,effective_sources,distance_to_uniform,distance_to_self,"
        "edge_value_correlation,bytes_up,bytes_down,seconds,published_mean,published_std"
    )
    assert len(board) == 3
    assert board["seeds"].eq(2).all()
    assert board["published_mean"].isna().all()
    assert "Ditto" in (folder / "report.html").read_text()
    record = json.loads((folder / "tuned" / "digits" / "trials" / "digits-ditto.json").read_text())
    assert len(record["trials"]) == 2
    assert record["trials"][0]["params"] == {"lam": 1.0}
    assert json.loads((folder / "tuned" / "digits" / "digits-ditto.json").read_text()) == {
        "run": "digits-ditto",
        "best": record["best"],
    }
    assert {"cpu_utilization_percentage", "time"} <= {*pd.read_csv(folder / "runs" / "digits-ditto" / "system.csv")}
    assert "Ditto" in (folder / "leaderboard.txt").read_text()
    assert (project.folder / "mlflow.db").is_file()
    stored = [*(project.folder / ".fedweave" / "checkpoints").rglob("*.pt")]
    assert stored
    assert {path.stem.rpartition("-")[2] for path in stored} == {"finished"}


def test_variants_of_an_ablation_are_compared_with_the_declared_run(project: Project) -> None:
    """A variant equal to it is not trained again. A partition with other clients is not paired."""
    folder = project.folder / "results" / "small"
    board = pd.read_csv(folder / "leaderboard.csv").set_index(["dataset", "method"])["mean"]
    pull = pd.read_csv(folder / "ablations" / "pull" / "table.csv").set_index("variant")
    assert [*pull.index] == ["as declared", "none", "strong"]
    assert pull.loc["as declared", "mean"] == pytest.approx(board["digits", "Ditto"])
    assert {*pull.loc[["none", "strong"], "over"]} == {"two seeds"}
    values = pd.read_csv(folder / "ablations" / "pull" / "values.csv").groupby("variant")["value"].mean()
    assert values.to_dict() == pytest.approx(pull["mean"].to_dict())
    clients = pd.read_csv(folder / "ablations" / "clients" / "table.csv").set_index("variant")
    assert clients["declared"].to_dict() == {"clients = 5": 0, "clients = 10": 1}
    assert clients.loc["clients = 10", "mean"] == pytest.approx(board["digits", "FedAvg"])
    assert clients["p_adjusted"].isna().all()
    values = pd.read_csv(folder / "ablations" / "clients" / "values.csv")
    assert values.groupby("variant")["client"].nunique().to_dict() == {"clients = 5": 5, "clients = 10": 10}
    assert (folder / "ablations" / "clients" / "plot.svg").is_file()


def test_a_second_run_without_changes_runs_nothing(project: Project) -> None:
    assert repro(project) == []


def test_a_stored_repetition_is_trained_again(project: Project) -> None:
    """It has the bits of the results, which stay as they are. A changed score is found, with its client."""
    file = project.folder / "results" / "small" / "runs" / "digits-ditto" / "evaluations.parquet"
    verify, stored = ("fedweave.pipelines.commands.main", "verify", "digits-ditto", "--seed", "1"), file.read_bytes()
    assert project.python(*verify).stdout.splitlines()[-1].endswith("scores of 10 clients, the same bits")
    assert file.read_bytes() == stored
    table = pd.read_parquet(file)
    chosen = table["seed"].eq(1) & table["client"].eq(3) & table["split"].eq("test") & table["round"].eq(2)
    table.loc[table[chosen].index[:1], "value"] += 1.5
    table.to_parquet(file, index=False)
    try:
        done = project.python(*verify, check=False)
    finally:
        file.write_bytes(stored)
    line = done.stdout.splitlines()[-1]
    assert done.returncode == 1
    assert re.search(
        r"1 of \d+ scores of 10 clients differ, by at most 1.5 \(client client 3, round 2, test\), on the", line
    )
    assert "1000" in project.python(*verify[:-1], "1000", check=False).stderr


@pytest.mark.acceptance
def test_a_change_of_a_methods_code_trains_that_method_only(project: Project) -> None:
    """A changed comment or message runs no training. Changed code of Ditto trains Ditto again and not FedAvg. After a
    revert nothing runs, because DVC has the results in its cache.
    """
    file = project.folder / "src" / "fedweave" / "methods" / "ditto.py"
    before = file.read_text()
    file.write_text(before + "# changed\n")
    assert repro(project) == ["code@fedweave"]
    file.write_text(
        before.replace("loss=pulled", "loss=pulled, epochs=slice(0, 1)").replace(
            ", epochs=slice(0, self._personal_epochs)", ""
        )
    )
    ran = repro(project)
    assert [stage for stage in ran if stage.startswith("train@")] == ["train@digits-ditto"]
    file.write_text(before)
    assert repro(project) == []


@pytest.mark.acceptance
def test_switching_studies_and_back_runs_nothing(project: Project) -> None:
    """Another study is computed once. The first one is restored from the run cache."""
    (project.folder / "params.yaml").write_text(part("other", lam=3.0))
    assert "train@digits-ditto" in repro(project)
    (project.folder / "params.yaml").write_text(params())
    assert repro(project) == []


def reproduced(project: Project) -> list[str]:
    """The output lines of `make repro`."""
    return project.python("fedweave.pipelines.launching.reproduce").stdout.splitlines()


@pytest.mark.acceptance
def test_mlflow_agrees_with_the_results_after_a_change_and_its_revert(project: Project) -> None:
    """A run from DVC's cache is current again, with every metric that it had."""
    reproduced(project)
    assert not any(line.startswith("MLflow: ") for line in reproduced(project))
    before = record(project)
    (project.folder / "params.yaml").write_text(params(lam=0.3))
    lines = reproduced(project)
    assert sum("train@digits-ditto" in line for line in lines) == 1
    assert [line for line in lines if line.startswith("all in ")] == lines[-1:]
    changed = record(project)
    assert changed["digits-ditto"][0] != before["digits-ditto"][0]
    assert changed["digits-fedavg"][0] == before["digits-fedavg"][0]
    (project.folder / "params.yaml").write_text(params())
    assert any("restored" in line for line in reproduced(project))
    assert record(project) == before


def record(project: Project) -> Shown:
    """The runs of the study in MLflow, which agree with the tables."""
    return current(project.env["MLFLOW_TRACKING_URI"], project.folder / "results" / "small")


def test_bad_input_stops_before_work(project: Project) -> None:
    """One line names the key. No stage runs after the refusing stage, which does not count as done."""
    lock = yaml.safe_load((project.folder / "dvc.lock").read_text())["stages"]
    (project.folder / "params.yaml").write_text(params(searched="lamm"))
    try:
        done = project.python("dvc", "repro", check=False)
    finally:
        (project.folder / "params.yaml").write_text(params())
    printed = done.stdout + done.stderr
    assert done.returncode
    (line,) = (line for line in printed.splitlines() if line.startswith("error: "))
    assert "lamm" in line
    assert "Traceback" not in printed
    assert re.findall(r"Running stage '([^']+)'", printed) == ["names", "sources"]
    after = yaml.safe_load((project.folder / "dvc.lock").read_text())["stages"]
    assert {name for name in after.keys() | lock.keys() if after.get(name) != lock.get(name)} == {"names"}


def test_progress_counts_the_rounds_of_all_the_stages_of_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SHN trains a plain hypernetwork first: three rounds, and then three more."""
    monkeypatch.chdir(tmp_path)
    run = trained.study("images", {"shn": {"k": 1}}, seeds=[0]).run("blobs-shn")
    train.train(run, (trained.dataset("images"), trained.partition("images")), "toy")
    assert re.findall(r"round (\d+)/(\d+)", capsys.readouterr().out) == [("2", "6"), ("4", "6"), ("6", "6")]


def test_training_continues_from_checkpoints_of_the_same_data_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a correction of the features, the result is that of a training on the new features from the first round."""
    monkeypatch.chdir(tmp_path)
    study = trained.study("images", {"fedavg": {}}, seeds=[0])
    run, rows, old = study.run("blobs-fedavg"), trained.partition("images"), trained.dataset("images")
    digest_file = Path("data", "partitions", run.name, "dataset.json")
    write_atomic(digest_file, "before")
    before = train.train(run, (old, rows), "toy")
    assert train.train(run, (old, rows), "toy").histories[0].ledger == before.histories[0].ledger  # with its seconds
    write_atomic(digest_file, "after")
    after = train.train(run, (replace(old, x=-2 * old.x), rows), "toy")
    assert after.checkpoints != before.checkpoints
    assert after.histories[0].scores != before.histories[0].scores


def test_further_seeds_are_trained_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same seeds are trained again, as `dvc repro -f` asks for; so are those that there was no room for, and all
    where a library has another version.
    """
    monkeypatch.chdir(tmp_path)
    rows, data = trained.partition("images"), trained.dataset("images")

    def train_seeds(*seeds: int, written: bool = True) -> tuple[train.TrainingResult, set[int]]:
        """The result, and the seeds that were trained."""
        result = train.train(
            trained.study("images", {"fedavg": {}}, seeds=seeds).run("blobs-fedavg"), (data, rows), "t"
        )
        if written:
            checkpoints.record_written(result.checkpoints, result.prepared)
        return result, {int(seed) for seed in re.findall(r"seed (\d+): round", capfd.readouterr().out)}

    (first, _), (more, trained_seeds) = train_seeds(0, 1), train_seeds(0, 1, 2)
    assert trained_seeds == {2}
    assert [*more.histories] == [0, 1, 2]
    assert [more.histories[seed].ledger for seed in (0, 1)] == [first.histories[seed].ledger for seed in (0, 1)]
    again, trained_seeds = train_seeds(0, 1, 2)
    assert trained_seeds == {0, 1, 2}
    assert {seed: history.scores for seed, history in again.histories.items()} == {
        seed: history.scores for seed, history in more.histories.items()
    }
    assert train_seeds(2, 1)[1] == set()
    assert train_seeds(1, 2)[1] == {1, 2}
    assert train_seeds(0, 1, 2, written=False)[1] == {0}  # whose results are not written, as if it were interrupted
    assert train_seeds(0, 1, 2, written=False)[1] == set()
    monkeypatch.setattr(checkpoints, "describe_machine", lambda prepared: {"versions": "newer"})
    assert train_seeds(0, 1)[1] == {0, 1}
    for other in ("small", "large"):  # of which one has no room
        folder = tmp_path / ".fedweave" / "checkpoints" / other
        folder.mkdir()
        write_atomic(folder / "a-0-finished.pt", b"0" * (10 if other == "small" else 10**6))
        write_atomic(folder / "a-written.json", "{}")
    monkeypatch.setattr(checkpoints, "MOST_FINISHED", 500_000)
    train_seeds(0, 1, 3)
    assert [*(tmp_path / ".fedweave").rglob("a-0-finished.pt")] == [folder.with_name("small") / "a-0-finished.pt"]
    assert train_seeds(0, 1)[1] == set()


def test_every_stage_is_a_child_of_dvc_itself() -> None:
    """A shell in between would outlive DVC, and so would the stage. Quotes keep a name one word, and `code` has no
    quotes.
    """
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        argument = re.escape(" '${key}'" if "do" in stage and name != "code" else "")
        argument = argument.replace("key", "(key|item)")
        assert re.fullmatch(
            f"exec python -IS pipelines/launching/launcher.py {name}{argument}", stage.get("do", stage)["cmd"]
        )
    assert {*stages} == {*forkserver.STAGES}
