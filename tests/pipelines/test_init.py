"""`fedweave init` in a folder that is already a project."""

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import typer

from fedweave.errors import BadInput
from fedweave.pipelines import linked
from fedweave.pipelines.commands import main, projects
from fedweave.pipelines.project import repository
from fedweave.study.code import PACKAGE
from tests.servers import ROOT, python


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, made without starting git and DVC."""
    monkeypatch.setattr(projects, "_init_git", lambda _: False)
    monkeypatch.setattr(projects, "_init_dvc", lambda *_: None)
    projects.init(tmp_path)
    return tmp_path


def test_no_file_of_the_user_is_changed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for every file. A file that changes with fedweave is named."""
    for name in (*projects.contents(), "params.yaml"):
        file = project / name
        file.write_text(file.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    before = {name: (project / name).read_text(encoding="utf-8") for name in projects.contents()}
    capsys.readouterr()
    projects.init(project)
    assert {name: (project / name).read_text(encoding="utf-8") for name in before} == before
    output = capsys.readouterr().out
    assert [name for name in before if f"{name}: has changes of your own" in output] == ["prefect.yaml", "dvc.yaml"]
    assert (project / "params.yaml").read_text(encoding="utf-8").endswith("# mine\n")


def test_the_next_command_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a space is quoted. The commands that the project's README.md names exist."""
    monkeypatch.setattr(projects, "_init_git", lambda _: False)
    monkeypatch.setattr(projects, "_init_dvc", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    projects.init(Path("my lab"))
    assert capsys.readouterr().out.endswith("next: cd 'my lab' && fedweave study run first\n")
    named = re.findall(r"^    fedweave (\w+)", Path("my lab", "README.md").read_text(), re.MULTILINE)
    assert {*named} == {"study", "flow", "ui"} <= typer.main.get_group(main.app).commands.keys()


def test_requirements_are_the_installed_versions(project: Path) -> None:
    """Those of the library and of the pipeline, and no tool of the tests."""
    lines = [line for line in (project / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert {"fedweave", "torch", "pandas", "mlflow", "prefect", "dvc", "optuna"} <= {*pins}
    assert not {"pytest", "ruff", "ray", "flwr"} & {*pins}
    assert {
        name: version for name, version in pins.items() if metadata.version(name).partition("+")[0] != version
    } == {}


def test_a_package_other_than_the_linked_one_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage, every flow and `fedweave cluster` refuse it in one line. `fedweave init .` is the way out."""
    monkeypatch.chdir(project)
    link, older = Path(linked.LINK), project / "older" / "fedweave"
    assert linked.difference() == ""
    older.mkdir(parents=True)
    link.unlink()
    link.symlink_to(older)
    line = f"packages.yaml: fedweave is linked to {older}, but this command runs {PACKAGE.resolve()}; "
    with pytest.raises(BadInput, match=re.escape(line) + r"run: fedweave init \.$"):
        repository()
    for words in (["launcher", "names"], ["reproduce"]):
        done = python("-m", f"fedweave.pipelines.launching.{words[0]}", *words[1:])
        assert (done.returncode, done.stderr) == (2, f"error: {line}run: fedweave init .\n")
    projects.init(Path())
    assert linked.difference() == ""


def test_a_link_of_another_host_is_ignored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may share the folder and have the same code at another path."""
    monkeypatch.chdir(project)
    Path(linked.LINK).unlink()
    Path(linked.LINK).symlink_to("/no/such/fedweave")
    assert linked.difference() == ""


def test_an_unchanged_pipeline_is_replaced(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of fedweave writes another dvc.yaml."""
    expected = projects.contents()
    newer = {**expected, "dvc.yaml": projects.signed_files.sign("Newer.", "stages: {}\n"), ".env": "A=1\n"}
    monkeypatch.setattr(projects, "contents", lambda: newer)
    projects.init(project)
    assert (project / "dvc.yaml").read_text(encoding="utf-8") == newer["dvc.yaml"]
    assert (project / ".env").read_text(encoding="utf-8") == expected[".env"]


@pytest.mark.parametrize(
    "ignored", [(ROOT / ".gitignore").read_text(), projects.GITIGNORE], ids=["checkout", "project"]
)
def test_git_ignores_the_files_that_a_federation_writes(tmp_path: Path, ignored: str) -> None:
    """Rows of clients and secret keys, by the names in README.md and docs/federation.md. Code is not ignored."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    written = (
        "app/spec.json",
        "app-data/client-0.pt",
        "client.pt",
        "federation/keys/client-0",
        "my-keys/hospital-1",
        "server-keys/server.key",
        "state/client.pt",
        "superlink.db",
    )
    for name in (*written, ".gitignore", "src/federation/code.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ignored)
    output = subprocess.run(
        ["git", "status", "--short", "--untracked-files=all"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["??", ".gitignore", "??", "src/federation/code.py"]
