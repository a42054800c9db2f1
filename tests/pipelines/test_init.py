"""`fedweave init` in a folder that is a project already."""

import re
import subprocess
from pathlib import Path

import pytest
import typer

from fedweave.pipelines.commands import main, projects

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_next_command_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a space is one word, and the commands that its README.md names are there."""
    monkeypatch.setattr(projects, "_git", lambda _: False)
    monkeypatch.setattr(projects, "_dvc", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    projects.init(Path("my lab"))
    assert capsys.readouterr().out.endswith("next: cd 'my lab' && fedweave study run first\n")
    named = re.findall(r"^    fedweave (\w+)", Path("my lab", "README.md").read_text(), re.MULTILINE)
    assert {*named} == {"study", "flow", "ui"} <= typer.main.get_group(main.app).commands.keys()


def test_an_unchanged_pipeline_is_renewed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another fedweave writes another dvc.yaml."""
    wanted = projects.contents()
    newer = {**wanted, "dvc.yaml": projects.signed_files.sign("Newer.", "stages: {}\n"), ".env": "A=1\n"}
    monkeypatch.setattr(projects, "contents", lambda: newer)
    projects.init(project)
    assert (project / "dvc.yaml").read_text(encoding="utf-8") == newer["dvc.yaml"]
    assert (project / ".env").read_text(encoding="utf-8") == wanted[".env"]


@pytest.mark.parametrize("ignored", [(ROOT / ".gitignore").read_text(), projects.IGNORED], ids=["checkout", "project"])
def test_git_leaves_out_what_a_federation_writes(tmp_path: Path, ignored: str) -> None:
    """Rows of clients and secret keys, by the names of README.md and docs/federation.md; code is not left out."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    written = ("app/spec.json", "app-data/client-0.pt", "client.pt", "federation/keys/client-0", "my-keys/hospital-1",
               "server-keys/server.key", "state/client.pt", "superlink.db")  # fmt: skip
    for name in (*written, ".gitignore", "src/federation/code.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ignored)
    said = subprocess.run(
        ["git", "status", "--short", "--untracked-files=all"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["??", ".gitignore", "??", "src/federation/code.py"]
