"""Files of a project that DVC cannot read end every command in one line, before a server or a stage starts."""

import threading
from pathlib import Path

import pytest
from dvc.repo import Repo
from zc.lockfile import LockFile

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import dvc_graph, flows

STAGES = "stages:\n  download:\n    foreach: ${datasets}\n    do:\n      cmd: echo ${item}\n"
DAMAGES = {
    "params.yaml": ("study: first\n", "Could not find 'datasets'; correct params.yaml .write it again: fedweave study"),
    "dvc.lock": ("stages: [\n", r"'dvc.lock', YAML file structure is corrupted; correct params.yaml .*dvc.lock$"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of DVC with a stage for each data set."""
    Repo.init(str(tmp_path), no_scm=True).close()
    (tmp_path / "dvc.yaml").write_text(STAGES)
    (tmp_path / "params.yaml").write_text("study: first\ndatasets: [digits]\n")
    monkeypatch.chdir(tmp_path)
    dvc_graph.check()
    return tmp_path


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_reported_in_one_line(name: str, project: Path) -> None:
    text, words = DAMAGES[name]
    (project / name).write_text(text)
    for function in (dvc_graph.check, dvc_graph.plan):
        with pytest.raises(BadInput, match=words):
            function()


def test_a_plan_waits_for_the_lock_of_dvc(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting, the plan would be refused as if files were damaged."""
    monkeypatch.setattr("dvc.lock.DEFAULT_TIMEOUT", 0.6)
    lock = LockFile(str(project / ".dvc" / "tmp" / "lock"))
    threading.Timer(1.5, lock.close).start()
    assert [stage.name for stage in dvc_graph.plan().stale] == ["download@digits"]


def test_a_flow_starts_no_server(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "params.yaml").write_text("study: first\n")
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it started"))
    with pytest.raises(BadInput, match="DVC cannot read the project"):
        flows.start(study="", where="here")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("target", "meant"), [("downlod", "download"), ("download@mnist", "download@digits")])
def test_a_flow_of_an_unknown_target_starts_no_server(target: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it started"))
    with pytest.raises(BadInput, match=f"targets: '{target}' is unknown; did you mean '{meant}'"):
        flows.start(study="", where="here", targets=[target])
