"""Two projects with one store of MLflow. Each has a study of the same name and task."""

import json
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from fedweave import results
from fedweave.pipelines import addresses
from fedweave.pipelines.mlflow_records import owner, registry, tracking, versions, writer
from tests import trained
from tests.mlflow_store import logged, small
from tests.servers import answers, free_port, process, until

# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project the current folder. Returns its path."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    return folder


def by_project(runs: list[Run], tag: str) -> dict[str, Counter[str]]:
    """Project -> how often its runs have each value of `tag`."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        counts.setdefault(run.data.tags["project"], Counter())[run.data.tags[tag]] += 1
    return counts


def test_projects_do_not_change_each_others_runs(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different results have the same names. All stay current, even if each project logs several times."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    for place in ("of 0", "of 3"):
        tracking.log_study(small(enter(tmp_path / place, monkeypatch) / "results" / "toy"), store)
    names = {}
    for place in sorted(tmp_path.glob("of *")):
        record = tracking.log_study(enter(place, monkeypatch) / "results" / "toy", store)
        assert (record.new, record.restored, record.superseded) == (0, 0, 0)
        names[place.name] = owner.name_in_store(store)
        own = [run for run in logged(store, "toy") if run.data.tags["project"] == names[place.name]]
        assert {*record.ids} <= {run.info.run_id for run in own if run.data.tags["record"] == "current"}
    assert [name[:-8] for name in names.values()] == ["of-0-", "of-3-"]
    runs = logged(store, "toy")
    assert by_project(runs, "record") == {name: {"current": 2 * (1 + 2)} for name in names.values()}
    assert {run.data.tags["folder"] for run in runs} == {str(tmp_path / place) for place in names}
    assert all(run.data.tags["user"] and run.data.tags["host"] for run in runs)
    tags = MlflowClient(store).get_experiment_by_name("toy").tags
    for name in names.values():
        view = json.loads(json.loads(tags[f"mlflow.sharedViewState.blobs-{name}"])["state"])
        assert f"tags.project = '{name}'" in view["searchFilter"]
        assert f"viewStateShareKey=blobs-{name}" in tags["mlflow.note.content"]


def test_runs_that_another_project_is_writing_are_not_deleted(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are incomplete, and so look like interrupted runs."""
    folder = small(enter(tmp_path / "first", monkeypatch) / "results" / "toy")
    place = writer.connect("toy", store)
    half = place.client.create_run(place.experiment, tags={writer.RUN: "blobs-local", **place.provenance})
    other = small(enter(tmp_path / "second", monkeypatch) / "results" / "toy")
    tracking.log_study(other, store)
    assert place.client.get_run(half.info.run_id).info.lifecycle_stage == "active"
    enter(tmp_path / "first", monkeypatch)
    tracking.log_study(folder, store)
    assert place.client.get_run(half.info.run_id).info.lifecycle_stage == "deleted"


def test_each_project_has_its_own_best(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, named = MlflowClient(store), {}
    for place in ("first", "second"):
        enter(tmp_path / place, monkeypatch)
        record = tracking.log_study(trained.train("images", {"local": {}}), store)
        named[f"{owner.name_in_store(store)}-toy-blobs"] = record.ids
    assert {model.name for model in client.search_registered_models()} == {*named}
    for name, ids in named.items():
        assert [client.get_model_version_by_alias(name, registry.ALIAS).run_id] == ids


def test_in_the_projects_own_file_every_run_is_its_own(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a run from before projects had names. No run is tagged with a name."""
    folder = small(tmp_path / "results" / "toy")
    tracking.log_study(folder, store)
    assert not any("project" in run.data.tags for run in logged(store, "toy"))
    assert not owner.FILE.exists()
    place = writer.connect("toy", store)
    run = results.load_study(folder).runs[0].name
    assert [family.parent.data.tags[writer.RUN] for family in versions._run_trees(place)].count(run) == 1
    enter(tmp_path / "elsewhere", monkeypatch)
    assert versions._run_trees(writer.connect("toy", store)) == []


@pytest.mark.parametrize(
    ("uri", "own"),
    [
        ("sqlite:///mlflow.db", True),
        ("sqlite:///{here}/deep/mlflow.db?timeout=9", True),
        ("{here}/mlruns", True),
        ("sqlite:///../mlflow.db", False),
        ("http://127.0.0.1:5000", False),
        ("postgresql+psycopg2://u@h/mlflow", False),
        ("databricks", False),
    ],
)
def test_a_file_in_the_folder_is_the_projects_own(
    uri: str, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert addresses.is_own(uri.format(here=tmp_path)) is own


def test_the_name_of_a_project_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads make the name at the same time."""
    enter(tmp_path / "übung (2)", monkeypatch)
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(owner.name_in_store("http://host"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*made}) == 1
    assert made[0][:-8] == "bung-2-"
    assert [file.name for file in owner.FILE.parent.iterdir()] == ["project"]


@pytest.mark.acceptance
def test_a_server_gets_all_runs_and_the_terminal_no_line_about_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    enter(tmp_path / "project", monkeypatch)
    uri = f"http://127.0.0.1:{(port := free_port())}"
    (place := tmp_path / "server").mkdir()
    command = f"-m mlflow server --workers 1 --port {port} --backend-store-uri sqlite:///mlflow.db".split()
    with process([sys.executable, *command], place, {}, place / "log"):
        assert until(lambda: answers(f"{uri}/health"), 120), (place / "log").read_text()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        capfd.readouterr()
        record = tracking.log_study(small(Path("results", "toy")), uri)
        assert capfd.readouterr().out == ""
        assert record.new == len(record.ids)
        assert {run.info.run_id for run in logged(uri, "toy")} >= {*record.ids}
