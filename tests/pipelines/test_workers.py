"""Stages on other hosts: work orders, workers in clones of their own, and a cancelled flow."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toy_project
from dvc.repo import Repo

from fedweave.errors import BadInput
from fedweave.pipelines import signed_files
from fedweave.pipelines.scheduling import foreign_params, remote_stages
from fedweave.pipelines.scheduling.dvc_graph import stale_stages
from fedweave.study.config import read_yaml
from tests.servers import python

pytestmark = [pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writer's folder in which everything is ready for the stage `join`, and a clone. Tests copy both."""
    parent = tmp_path_factory.mktemp("made")
    for name in ("writer", "clone"):
        (parent / name).mkdir()
        toy_project.make(parent / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_NO_ANALYTICS", "1")
        patch.chdir(parent / "writer")
        with Repo() as repo:
            repo.reproduce(["make@a", "make@b", "aside"])
    return parent


@pytest.fixture
def folders(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Copies of the writer's folder, which is current, and of the clone. Both have the same DVC remote."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    remote = f"[core]\n    remote = shared\n['remote \"shared\"']\n    url = {tmp_path / 'remote'}\n"
    copies = tmp_path / "writer", tmp_path / "clone"
    for folder in copies:
        shutil.copytree(originals / folder.name, folder, symlinks=True)
        (folder / ".dvc" / "config.local").write_text(remote)
    monkeypatch.chdir(copies[0])
    return copies


def work(work_order: remote_stages.WorkOrder) -> list[dict[str, str]]:
    """The work of a worker in the current folder."""
    with remote_stages.prepare(work_order) as command:
        subprocess.run(command, check=True, capture_output=True)
    return remote_stages.deliver(work_order)


def test_outputs_travel_through_the_remote(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone had none of the inputs. The writer's dvc.lock is as if the stage had run there."""
    writer, clone = folders
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(clone)
        assert not work_order.is_here
        assert not Path("made-a.txt").exists()
        outputs = work(work_order)
        assert Path("made-a.txt").read_text() == (writer / "made-a.txt").read_text()
        monkeypatch.chdir(writer)
        assert not Path("joined.txt").exists()
        remote_stages.accept(work_order, outputs)
    assert Path("joined.txt").read_bytes() == (clone / "joined.txt").read_bytes()
    assert stale_stages() == []


def test_a_shared_folder_needs_no_remote(folders: tuple[Path, Path]) -> None:
    """The worker runs only the command. Earlier outputs are removed first, as by DVC."""
    Path("joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order:
        assert work_order.is_here
        assert work(work_order) == []
        remote_stages.accept(work_order, [])
    assert not work_order.is_here
    assert stale_stages() == []


def test_a_clone_follows_the_writers_parameters(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study in the clone does not affect the stage, and neither do the parameters of another work order."""
    text = "names: [a, b]\nsize: 9\nstudy: other\n"
    (folders[1] / "params.yaml").write_text(signed_files.sign("Written by a command.", text))
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[1])
        work(work_order)
        assert "size: 1" in Path("joined.txt").read_text()
        with foreign_params.apply(text):
            assert Path("params.yaml").read_text().endswith(f"\n{text}")
        with foreign_params.apply(work_order.params):
            assert Path("params.yaml").read_text().endswith(f"\n{work_order.params}")


def test_parameters_of_work_orders_are_known_from_those_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next work order replaces the parameters of the earlier one, and not a change by hand."""
    monkeypatch.chdir(tmp_path)
    for size in (1, 2):
        with foreign_params.apply(f"study: toy\nsize: {size}\n"):
            assert read_yaml(Path("params.yaml")) == {"study": "toy", "size": size}
    with Path("params.yaml").open("a") as file:
        file.write("more: 1\n")
    with pytest.raises(BadInput, match="was changed by hand"), foreign_params.apply("study: toy\n"):
        pass


@pytest.mark.parametrize(
    ("by_hand", "message"),
    [
        ("more: 1\n", r"clone/params\.yaml: .* was changed by hand; save it as"),
        ("", "clone: is not the writer's folder, and has no DVC remote; share that"),
    ],
)
def test_a_clone_that_cannot_work_changes_nothing(
    by_hand: str, message: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters were changed by hand, or it has no remote."""
    text = signed_files.sign("Written by a command.", "names: [a, b]\nsize: 9\nstudy: other\n") + by_hand
    (folders[1] / "params.yaml").write_text(text)
    if not by_hand:
        (folders[1] / ".dvc" / "config.local").unlink()
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[1])
        with pytest.raises(BadInput, match=message):
            work(work_order)
    assert Path("params.yaml").read_text() == text
    assert not Path("made-a.txt").exists()


ATTACKS = [
    ({"token": "../../README.md"}, "32 hexadecimal digits"),
    ({"token": "../params.yaml"}, "32 hexadecimal digits"),
    ({"token": "A" * 32}, "32 hexadecimal digits"),
    ({"token": "0" * 31 + "\n"}, "32 hexadecimal digits"),
    ({"stage": "--help"}, "is not the name of a stage"),
    ({"stage": "join; id"}, "is not the name of a stage"),
    ({"stage": "../other/dvc.yaml:join"}, "is not the name of a stage"),
    ({"stage": "joim"}, "dvc.yaml: stages: 'joim' is unknown; did you mean 'join'"),
    ({"code": "0" * 16}, "check out the same commit"),
    ({"params": "study: ../../x\n"}, "study: '../../x' is not a name"),
    ({"params": "study: toy\ndatasets: [a; id]\n"}, "datasets: 'a; id' is not a name"),
    ({"params": "study: toy\ntasks: {$(id): {}}\n"}, "is not a name"),
    ({"params": "study: toy\nruns: {a: {task: ../../x, method: local}}\n"}, "runs.a.task: '../../x' is not a name"),
    (
        {"params": "study: toy\nuses: {evil: /tmp/x.py}\n"},
        "uses: {'evil': '/tmp/x.py'} is not what params.yaml has here",
    ),
    ({"params": "study: toy\nuses: [/tmp/x.py]\n"}, "uses: ['/tmp/x.py'] is not what params.yaml has here"),
    ({"params": "study: toy\nuses: {\"x' $(id) '\": step.py}\n"}, "uses: \"x' $(id) '\" is not a name of a plug-in"),
    ({"params": "- 1\n"}, "params: is not a mapping"),
    ({"params": "["}, "not YAML"),
]


@pytest.mark.parametrize(("changes", "words"), ATTACKS)
@pytest.mark.parametrize("where", ["writer", "clone"])
def test_a_forged_work_order_is_refused(
    changes: dict[str, str], words: str, where: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs nothing, removes nothing and changes no file, even if its token leads to an existing file."""
    (folders[0] / "README.md").write_text("mine")
    (folders[0] / "joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[where == "clone"])
        before = {path: path.read_bytes() for path in Path().glob("*.*") if path.is_file()}
        bad = dataclasses.replace(work_order, **changes)
        with pytest.raises(BadInput) as caught, remote_stages.prepare(bad) as command:
            pytest.fail(f"it would run {command}")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        if "stage" not in changes or "joim" not in changes["stage"]:
            assert {path: path.read_bytes() for path in Path().glob("*.*") if path.is_file()} == before


def test_command_and_outputs_are_those_of_the_workers_own_stage(folders: tuple[Path, Path]) -> None:
    """A work order has no field for them."""
    assert {field.name for field in dataclasses.fields(remote_stages.WorkOrder)} == {
        "stage",
        "inputs",
        "params",
        "code",
        "basis",
        "token",
    }
    Path("joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order, remote_stages.prepare(work_order) as command:
        assert command == ["/bin/sh", "-c", f"exec {sys.executable} step.py joined.txt"]
        assert not Path("joined.txt").exists()
        assert Path("made-a.txt").exists()


ENTRIES = [
    {"path": "README.md", "hash": "md5", "md5": "0" * 32},
    {"path": "../writer/README.md", "hash": "md5", "md5": "0" * 32},
    {"path": "/tmp/evil", "hash": "md5", "md5": "0" * 32},
    {"path": "joined.txt", "hash": "md5", "md5": "../../x"},
    {"path": "joined.txt", "hash": "md5"},
    {},
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_unknown_outputs_and_inputs_are_refused(
    entry: dict[str, str], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes only inputs that its own dvc.yaml names. A writer takes only outputs that its dvc.yaml names."""
    with remote_stages.issue("join") as work_order:
        with pytest.raises(BadInput, match="with its MD5 sum"):
            remote_stages.accept(work_order, [entry])
        monkeypatch.chdir(folders[1])
        bad = dataclasses.replace(work_order, inputs=(entry,))
        with pytest.raises(BadInput, match="with its MD5 sum"), remote_stages.prepare(bad):
            pass
        assert not (folders[0] / "README.md").exists()
        assert not (folders[1] / "README.md").exists()


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "a/../../outside"])
def test_no_path_outside_of_the_project_is_removed(path: str, folders: tuple[Path, Path]) -> None:
    """Not even if the folder's own dvc.yaml names one."""
    text = Path("dvc.yaml").read_text()
    with remote_stages.issue("join") as work_order:
        Path("dvc.yaml").write_text(text.replace("outs: [joined.txt]", f"outs: [{{{path}: {{cache: false}}}}]"))
        same_code = dataclasses.replace(work_order, code=remote_stages.code_digest())
        with pytest.raises(BadInput, match="outside of the project"), remote_stages.prepare(same_code):
            pass


def test_a_folder_without_git_is_refused_with_two_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example an unpacked archive of the code. Either way out works."""
    toy_project.make(tmp_path)
    (tmp_path / ".dvc" / "config").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"git init.*dvc config core\.no_scm true") as caught:
        stale_stages()
    assert "\n" not in str(caught.value)
    assert python("-m", "dvc", "config", "core.no_scm", "true").returncode == 0
    assert stale_stages()
    (tmp_path / ".dvc" / "config").write_text("")
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert stale_stages()


def test_outputs_of_changed_inputs_are_not_accepted(folders: tuple[Path, Path]) -> None:
    """They are never committed as outputs of the new inputs."""
    with remote_stages.issue("join") as work_order:
        outputs = work(work_order)
        Path("made-a.txt").write_text("edited")
        with pytest.raises(BadInput, match="changed while it ran elsewhere"):
            remote_stages.accept(work_order, outputs)


def test_lost_outputs_and_unknown_inputs_are_named(folders: tuple[Path, Path]) -> None:
    with (
        remote_stages.issue("join") as work_order,
        pytest.raises(BadInput, match=r"joined\.txt did not arrive; share the folder, or set a remote"),
    ):
        remote_stages.accept(work_order, [])
    (folders[0] / "dvc.lock").unlink()
    with pytest.raises(BadInput, match="DVC does not know it yet"), remote_stages.issue("join"):
        pass
