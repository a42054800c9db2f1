"""Synchronising MLflow and results/: checked without MLflow, alone or at the same time, killed, or with the UI."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import fake_results
import pytest
from mlflow import MlflowClient

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines.mlflow_records import entries, stamp, synchronise, tracking
from fedweave.pipelines.stages import leaderboard, report
from fedweave.processes import parallel
from tests.mlflow_store import SKILL, children, current, logged, small
from tests.servers import python, until

# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


def test_an_up_to_date_record_is_recognised_without_mlflow(store: str, toy: Path) -> None:
    """The file of digests shows changes of results, and artifacts and a database that are lost."""
    tracking.log_study(toy, store)
    assert stamp.is_current(toy, "toy", store)
    assert [*stamp.links("toy")] == ["blobs"]
    parent = next(run for run in logged(store, "toy") if "mlflow.parentRunId" not in run.data.tags)
    for change in (
        lambda: (toy / "runs" / "blobs-local" / "run.json").touch(),
        lambda: shutil.rmtree(Path(parent.info.artifact_uri.removeprefix("file://")).parent),
        lambda: Path(store.removeprefix("sqlite:///")).unlink(),
    ):
        change()
        assert not stamp.is_current(toy, "toy", store)
        tracking.log_study(toy, store)
        assert stamp.is_current(toy, "toy", store)


@pytest.mark.parametrize("forked", [False, True])
def test_a_copy_of_the_file_of_the_database_has_all_runs(
    forked: bool, store: str, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's log is no more when a synchronisation has ended, also one in a forked process."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    results.write(toy)
    if forked:
        with synchronise.run_in_fork(toy, "toy"):
            pass
    else:
        synchronise.run_here(toy, "toy")
    assert not [*tmp_path.glob("*.db-*")]
    shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "copy.db")
    found = [{run.info.run_id for run in logged(uri, "toy")} for uri in (f"sqlite:///{tmp_path}/copy.db", store)]
    assert found[0] == found[1] != set()


def test_runs_that_a_user_deletes_or_changes_in_mlflow_are_repaired_by_fedweave_log(store: str, toy: Path) -> None:
    """Nothing looks for such a change at the end of `make repro`, which reads no table of MLflow."""
    first = tracking.log_study(toy, store).ids[0]
    for change in (
        lambda: MlflowClient(store).set_tag(first, "record", "superseded"),
        lambda: MlflowClient(store).delete_run(first),
    ):
        change()
        assert stamp.is_current(toy, "toy", store)
        tracking.log_study(toy, store)
        current(store, toy)


def test_a_copy_of_results_is_not_logged_in_their_place(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example a copy made before a study is changed. The study itself may be in a folder of another name."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    folder, copy = small(Path("results", "toy")), Path("results", "toy-old")
    copy_ids = tracking.log_study(folder.rename(copy), store).ids
    fake_results.write_study(folder, methods=SKILL, seeds=(0, 1), clients=4, rounds=5, extras=False)
    ids = tracking.log_study(folder, store).ids
    with pytest.raises(
        BadInput, match=r"^results/toy-old: its runs are of the study 'toy', .*; move it out of results$"
    ):
        tracking.main()
    assert current(store, folder)
    tracking.try_log_study(copy)
    assert "not logged to MLflow: results/toy-old: its runs are of" in capsys.readouterr().err
    assert {run.info.run_id for run in logged(store, "toy") if run.data.tags["record"] == "current"} >= {*ids}
    assert not {*ids} & {*copy_ids}


@pytest.mark.acceptance
def test_new_results_are_logged_while_the_ui_runs(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not logged while DVC writes."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    folder = small(Path("results", "toy"))
    results.write(folder)
    lock = tmp_path / ".dvc" / "tmp" / "rwlock"
    lock.parent.mkdir(parents=True)
    lock.write_text('{"write": {"results": {"pid": 1}}, "read": {}}')
    end = threading.Event()
    thread = synchronise.watch_results(Path("results"), end, 0.2)
    time.sleep(1)
    assert synchronise.is_due(folder, "toy")
    lock.write_text('{"write": {}, "read": {}}')
    assert until(lambda: not synchronise.is_due(folder, "toy"), 90)
    end.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(logged(store, "toy")) == 2 * (1 + 2)


def test_logging_continues_when_a_folder_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC removes the outputs of a stage before it runs, and so between the listing of a folder and its reading."""
    looks = []

    def look(folder: Path) -> list[str]:
        looks.append(folder)
        if len(looks) == 1:
            raise FileNotFoundError(folder / "toy" / "runs")
        return []

    monkeypatch.setattr(synchronise, "_finished_studies", look)
    end = threading.Event()
    thread = synchronise.watch_results(tmp_path, end, 0.01)
    assert until(lambda: len(looks) > 1, 10)
    end.set()
    thread.join(30)


def test_processes_log_at_the_same_time(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    methods = {f"M{i}": -float(i) for i in range(6)}
    folder = fake_results.write_study(
        tmp_path / "results" / "toy", methods=methods, seeds=(0,), clients=4, rounds=3, extras=False
    )
    record = tracking.log_study(folder, store)
    assert record.new == len({*record.ids}) == len(methods)
    assert [run.info.run_name for run in logged(store, "toy")].count("blobs-m3") == 1


def test_a_half_logged_run_does_not_count_as_complete(store: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(toy / "runs" / "blobs-local")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(entries, "_log_graphs", killed)
        with pytest.raises(KeyboardInterrupt):
            tracking.log_study(toy, store)
    assert len(logged(store, "toy")) == 1
    (parent,) = tracking.log_study(toy, store).ids
    assert {run.info.run_id for run in logged(store, "toy")} == {
        parent,
        *(c.info.run_id for c in children(logged(store, "toy"), parent)),
    }
    assert len(logged(store, "toy")) == 3


# It is killed when the first run, in this process or in one that it started, has everything but its graphs.
KILLED = """
import os, signal, sys, time
from pathlib import Path
from fedweave.pipelines.mlflow_records import entries, synchronise
first = os.getpid()
def kill(*_):
    os.kill(first, signal.SIGKILL)
    time.sleep(60)
entries._log_graphs = kill
synchronise.run_here(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.acceptance
def test_a_killed_synchronisation_is_repaired_by_the_next(
    store: str, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL while runs are written: afterwards each run is there once and agrees with the files."""
    results.write(toy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert python("-c", KILLED, str(toy), "toy").returncode == -signal.SIGKILL
    assert logged(store, "toy")
    assert synchronise.is_due(toy, "toy")
    tracking.log_study(toy, store)
    assert not synchronise.is_due(toy, "toy")
    current(store, toy)
    assert len(logged(store, "toy")) == 2 * (1 + 2)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("damage", ["store", "process"])
def test_the_page_is_written_and_one_line_reports_that_mlflow_is_not(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    """A store that is not a database, and a process that is killed: neither fails the stage `report`."""
    results.write(toy)
    (tmp_path / "broken.db").write_text("no database")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/broken.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(leaderboard, "stale_runs", lambda study: [])
    monkeypatch.setattr(report, "write_board", lambda name, study, tables: None)
    if damage == "process":
        monkeypatch.setattr(synchronise, "run_here", lambda folder, study: os.kill(os.getpid(), signal.SIGKILL))
    report.main("toy")
    assert (toy / "report.html").is_file()
    (line,) = capfd.readouterr().err.splitlines()
    words = {"store": f"{tmp_path}/broken.db: no database", "process": "its process was lost; later:"}
    assert line.startswith(f"not logged to MLflow: {words[damage]}")
    assert line.endswith(": fedweave log toy")


IDLE = """
import sys
opened = []
def note(event, words):
    if event in ("open", "sqlite3.connect", "subprocess.Popen"):
        opened.append((event, str(words[0])))
sys.addaudithook(note)
from pathlib import Path
from fedweave.pipelines.mlflow_records import synchronise
opened.clear()
synchronise.run_in_subprocess(Path("results/toy"), "toy")
print(sorted({event for event, _ in opened}), [name for _, name in opened if "results" in name])
print(sorted({"mlflow", "torch", "pandas", "numpy", "sqlalchemy", "fedweave.results"} & {*sys.modules}))
"""


def test_without_changes_no_run_is_read_or_written(store: str, toy: Path) -> None:
    """The end of an idle `make repro` opens no file of results/, writes nothing to the database, and starts no process.
    It imports neither MLflow nor the code that reads results.
    """
    results.write(toy)
    tracking.log_study(toy, store)
    base = Path(store.removeprefix("sqlite:///"))
    before = base.read_bytes()
    done = python("-c", IDLE, MLFLOW_TRACKING_URI=store)
    assert done.stdout.splitlines() == ["['open'] []", "[]"]
    assert base.read_bytes() == before
