"""`fedweave init` in a folder that is a project already."""

from pathlib import Path

import pytest

from fedweave.pipelines.commands import projects


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project; git and DVC are not started."""
    monkeypatch.setattr(projects, "_git", lambda _: False)
    monkeypatch.setattr(projects, "_dvc", lambda *_: None)
    projects.init(tmp_path)
    return tmp_path


def test_no_file_of_the_user_is_changed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it was; one that changes with fedweave is named."""
    for name in (*projects.contents(), "params.yaml"):
        file = project / name
        file.write_text(file.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    before = {name: (project / name).read_text(encoding="utf-8") for name in projects.contents()}
    capsys.readouterr()
    projects.init(project)
    assert {name: (project / name).read_text(encoding="utf-8") for name in before} == before
    said = capsys.readouterr().out
    assert [name for name in before if f"{name}: has changes of your own" in said] == ["prefect.yaml", "dvc.yaml"]
    assert (project / "params.yaml").read_text(encoding="utf-8").endswith("# mine\n")


def test_an_unchanged_pipeline_is_renewed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another fedweave writes another dvc.yaml."""
    wanted = projects.contents()
    newer = {**wanted, "dvc.yaml": projects.signed_files.sign("Newer.", "stages: {}\n"), ".env": "A=1\n"}
    monkeypatch.setattr(projects, "contents", lambda: newer)
    projects.init(project)
    assert (project / "dvc.yaml").read_text(encoding="utf-8") == newer["dvc.yaml"]
    assert (project / ".env").read_text(encoding="utf-8") == wanted[".env"]
