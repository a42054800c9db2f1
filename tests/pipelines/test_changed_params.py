"""params.yaml of a study that runs: a refused command leaves it unchanged. A stage that worked with another params.yaml
ends with an error, so that DVC records nothing.
"""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml

from fedweave import data
from fedweave.errors import BadInput
from fedweave.files.atomic import user_errors
from fedweave.pipelines import paths
from fedweave.pipelines.commands import studies
from fedweave.pipelines.launching import locking
from fedweave.pipelines.stages import ablate, train, tune
from fedweave.study import config
from tests import trained
from tests.servers import HOLD, ROOT, process, python, until

STUDY: dict[str, Any] = {
    "study": "toy",
    "seeds": [0],
    "tasks": {
        "blobs": {
            "dataset": "digits",
            "setting": "iid",
            "partition": {"name": "iid", "clients": 3, "seed": 0},
            "model": {"name": "mlp", "hidden": 4},
            "train": {"rounds": 2, "lr": 0.05, "batch_size": 0, "executor": "loop"},
        }
    },
    "runs": {name: {"task": "blobs", "method": name.partition("-")[2]} for name in ("blobs-fedavg", "blobs-local")},
    "methods": {"fedavg": {}, "local": {}},
    "tune": {"trials": 1, "seeds": [1000], "spaces": {"fedavg": {"train.lr": {"low": 0.01, "high": 0.2}}}},
    "ablate": {"lr": {"run": "blobs-fedavg", "variants": {"low": {"train.lr": 0.01}}}},
}
CHANGED = "params.yaml has changed while this stage ran; run it again"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose data are partitioned; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    Path("dvc.yaml").touch()
    Path("params.yaml").write_text(yaml.safe_dump(STUDY))
    dataset = trained.dataset("images")
    data.save_dataset(paths.FEATURES / "digits", dataset)
    partition = data.partition(dataset, **STUDY["tasks"]["blobs"]["partition"])
    data.save_partition(paths.PARTITIONS / "blobs" / "partition.npz", partition)


@pytest.mark.parametrize("command", [studies.use, studies.run])
def test_a_refused_command_changes_nothing(project: None, command: Callable[..., None], tmp_path: Path) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": [0, 1]}))
    before = Path("params.yaml").read_bytes()
    with process([sys.executable, "-c", HOLD], tmp_path, {"PYTHONUNBUFFERED": "1"}, tmp_path / "log") as other:
        assert until((tmp_path / "log").read_text), "nobody has the lock"
        with pytest.raises(BadInput, match=rf"another run is active in this folder \(process {other.pid}\); wait"):
            command("mine.yaml", force=True)
    assert Path("params.yaml").read_bytes() == before
    studies.use("mine.yaml", force=True)
    assert yaml.safe_load(Path("params.yaml").read_text())["seeds"] == [0, 1]


def test_changes_by_hand_are_not_lost(project: None) -> None:
    """A params.yaml that the command wrote itself is replaced without a question."""
    for seeds in ([0, 1], [0, 1, 2]):
        before = Path("params.yaml").read_text()
        Path("mine.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": seeds}))
        with pytest.raises(
            BadInput, match=r"^params\.yaml: has changes made by hand, .*; save it as .*, or add --force"
        ):
            studies.use("mine.yaml")
        assert Path("params.yaml").read_text() == before
        studies.use("mine.yaml", force=True)
        Path("mine.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": [7]}))
        studies.use("mine.yaml")
        written = Path("params.yaml").read_text()
        assert yaml.safe_load(written)["seeds"] == [7]
        Path("params.yaml").write_text(written.replace("hidden: 4", "hidden: 5"))


def test_a_part_of_a_study_counts_the_runs_that_it_leaves_out(project: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Their results are not lost. The whole study, or one without results, needs no warning."""
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    studies.use("mine.yaml", method=["local"], force=True)
    assert "warning" not in capfd.readouterr().err
    for name in STUDY["runs"]:
        (folder := paths.RESULTS / "mine" / "runs" / name).mkdir(parents=True)
        (folder / "run.json").write_text("{}")
    studies.use("mine.yaml", method=["local"])
    line = capfd.readouterr().err
    assert line.startswith("warning: results/mine has 1 run that params.yaml leaves out now: ")
    assert line.endswith("come back without training by: fedweave study use mine.yaml && dvc repro\n")
    studies.use("mine.yaml")
    assert not capfd.readouterr().err


# In place of DVC: it has the lock of its folder, which no other process gets.
DVC = """import os, subprocess, sys
take = "from fedweave.pipelines.launching import locking; locking.hold().__enter__()"
held = any(os.path.realpath(f"/proc/self/fd/{number}").endswith("repro.lock") for number in os.listdir("/proc/self/fd"))
code = subprocess.run([sys.executable, "-c", take], stderr=-1).returncode
sys.exit(5 if held and code == 1 else 6)
"""


def test_a_command_that_runs_a_study_holds_the_lock_from_beginning_to_end(project: None) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    Path("dvc.py").write_text(DVC)
    with pytest.raises(typer.Exit) as end:
        studies.run("mine.yaml", force=True)
    assert end.value.exit_code == 5
    with locking.hold():
        pass


@pytest.mark.parametrize(
    ("studies_there", "name"), [(["first"], "first"), (["first", "mine", "quick"], "quick"), (["mine"], "NAME")]
)
def test_reproduce_needs_a_study(project: None, studies_there: list[str], name: str) -> None:
    """A project may have no params.yaml, for example a clone. The message comes before any stage starts, and names a
    study that is there. Other commands name the same one.
    """
    Path("params.yaml").unlink()
    Path("studies").mkdir()
    for study in studies_there:
        Path("studies", f"{study}.yaml").write_text(yaml.safe_dump(STUDY))
    with pytest.raises(BadInput, match=rf"^params\.yaml: not found; .* fedweave study use {name}$") as refusal:
        config.read_yaml(Path("params.yaml"))
    done = python("-m", "fedweave.pipelines.launching.reproduce")
    assert done.returncode == 2
    assert done.stderr == f"error: {refusal.value}\n"
    assert not Path(".fedweave/repro.log").exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [(".fedweave", "cannot be written"), (".fedweave/repro.log", "is a folder in the place of a file; move it away")],
    ids=["lock", "log"],
)
def test_reproduce_names_a_path_that_cannot_be_written(project: None, path: str, words: str) -> None:
    """A file where a folder should be, and a folder where the log should be."""
    if path == ".fedweave":
        Path(path).touch()
    else:
        Path(path).mkdir(parents=True)
    done = python("-m", "fedweave.pipelines.launching.reproduce")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}")
    assert f": {words}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_full_disk_names_the_lock(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error has no file name. Without one, the command would end with a traceback."""
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))

    def fail() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locking.os, "getpid", fail)
    line = r"^\.fedweave/repro\.lock: cannot be written \(No space left on device\); free space"
    with pytest.raises(BadInput, match=line), user_errors():
        studies.use("mine.yaml", force=True)


def edit_during(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, change: dict[str, Any]) -> None:
    """Change params.yaml while `module.name` works."""
    work = getattr(module, name)

    def edit(*words: Any) -> Any:
        Path("params.yaml").write_text(yaml.safe_dump(STUDY | change))
        return work(*words)

    monkeypatch.setattr(module, name, edit)


RUNS: dict[str, Any] = STUDY["runs"]
OTHER = {"runs": RUNS | {"blobs-local": RUNS["blobs-local"] | {"set": {"train.rounds": 3}}}}
MINE = {"runs": RUNS | {"blobs-fedavg": RUNS["blobs-fedavg"] | {"set": {"train.rounds": 3}}}}


@pytest.mark.parametrize("change", [MINE, {"seeds": [0, 1]}, {"study": "other"}], ids=["run", "seeds", "study"])
def test_stages_refuse_params_that_changed_during_their_work(
    project: None, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are kept, so that training continues when the change is undone."""
    for module, name, word in (
        (tune, "search_record", "blobs"),
        (train, "train", "blobs-fedavg"),
        (ablate, "train", "lr"),
    ):
        with monkeypatch.context() as patch:
            edit_during(patch, module, name, change)
            with pytest.raises(BadInput, match=CHANGED):
                module.main(word)
        Path("params.yaml").write_text(yaml.safe_dump(STUDY))
        module.main(word)


def test_another_run_may_change_while_a_stage_works(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tune.main("blobs")
    edit_during(monkeypatch, train, "train", OTHER)
    train.main("blobs-fedavg")
