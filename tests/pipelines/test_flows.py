"""Processes that end with their parent, DVC's graph as a plan, and the Prefect flow that runs it."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import toy_project
from dvc.repo import Repo
from prefect import flow, task

from fedweave.errors import BadInput
from fedweave.pipelines.processes import ChildProcesses
from fedweave.pipelines.scheduling import host
from fedweave.pipelines.scheduling.dvc_graph import StaleStage, stale_stages
from tests.servers import alive, process, python, until

# One process runs all tests that need the server, so that it is started once.
pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC project of four stages, none of which has run; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    toy_project.make(tmp_path)
    return tmp_path


def reproduce(*targets: str) -> None:
    """`dvc repro` in this process."""
    with Repo(os.curdir) as repo:
        repo.reproduce(list(targets) or None)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_tests_of_a_group_share_a_process(request: pytest.FixtureRequest) -> None:
    """Otherwise each process would start servers of its own."""
    assert request.node.nodeid.endswith("@prefect")


def test_plan_of_a_fresh_project_is_the_whole_graph_in_order(project: Path) -> None:
    plan = stale_stages()
    assert {stage.name for stage in plan} == {"make@a", "make@b", "join", "aside"}
    assert [stage for stage in plan if stage.name == "join"] == [StaleStage("join", ("make@a", "make@b"), False)]
    names = [stage.name for stage in plan]
    assert all(names.index(need) < names.index(stage.name) for stage in plan for need in stage.needs)
    assert {stage.name for stage in plan if stage.gpu} == {"make@a", "make@b"}


def test_plan_has_changed_stages_and_those_that_depend_on_them(project: Path) -> None:
    reproduce()
    assert stale_stages() == []
    Path("made-a.txt").unlink()
    assert stale_stages() == [StaleStage("make@a", (), True), StaleStage("join", ("make@a",), False)]
    Path("params.yaml").write_text("names: [a, b]\nsize: 2\nstudy: toy\n")
    assert {stage.name for stage in stale_stages(["make@b"])} == {"make@b"}
    assert {stage.name for stage in stale_stages(["make"])} == {"make@a", "make@b"}
    with pytest.raises(BadInput, match="targets: 'mak' is unknown; did you mean 'make'"):
        stale_stages(["mak"])


def test_leaving_the_block_ends_the_whole_process_group() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    nested = f"import subprocess; p = subprocess.Popen({command!r}); print(p.pid, flush=True); p.wait()"
    with ChildProcesses().start([sys.executable, "-c", nested]) as process:
        assert process.stdout is not None
        pids = [process.pid, int(process.stdout.readline())]
        assert all(map(alive, pids))
    assert until(lambda: not any(map(alive, pids)))


def test_ended_children_start_no_more_processes() -> None:
    children = ChildProcesses()
    with children.start([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        children.end()
        assert process.returncode == -signal.SIGTERM
    with pytest.raises(InterruptedError), children.start([sys.executable, "-c", "pass"]):
        pass


def test_a_child_ends_when_its_parent_is_killed() -> None:
    program = f"""
import sys; sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT)!r}]
from fedweave.pipelines.processes import ChildProcesses
with ChildProcesses().start([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
    print(process.pid, flush=True)
    process.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert until(lambda: not alive(pid))


@pytest.mark.parametrize(("raised", "code"), [("BadInput('params.yaml: no')", 2), ("Diverged('inf')", 3)])
def test_a_stage_prints_one_line_and_exits(raised: str, code: int) -> None:
    program = f"""
from fedweave.errors import BadInput, Diverged
from fedweave.pipelines.processes import run_main
def main():
    raise {raised}
run_main(main)
"""
    done = python("-c", program)
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")


@pytest.mark.usefixtures("reporting")
def test_flow_runs_outdated_stages_and_then_dvc_has_nothing_to_do(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second flow reports that nothing changed and where the leaderboard is. Its progress bar is full at once."""
    from prefect.artifacts import Artifact

    from fedweave.pipelines.scheduling.flows import reproduce as flow

    assert flow(parallel=2, retries=0) == "4 stages brought up to date"
    assert Path("joined.txt").read_text().startswith("joined.txt")
    assert stale_stages() == []
    board = Path("results/toy/leaderboard.txt")
    board.parent.mkdir(parents=True)
    board.touch()
    # Prefect writes to the stream that existed when it was imported, which may be that of another test.
    messages, logger = [], logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
    assert flow(parallel=2, retries=0) == "4 stages unchanged"
    assert f"4 stages unchanged; leaderboard: {board}" in messages
    assert json.loads(str(Artifact.get("stages").data)) == 100.0


@pytest.mark.usefixtures("reporting")
def test_flow_names_the_failed_stage_and_runs_no_stage_that_depends_on_it(project: Path) -> None:
    from fedweave.pipelines.scheduling.flows import reproduce as flow

    Path("fail").touch()
    state = flow(parallel=2, retries=0, return_state=True)
    assert state.is_failed()
    assert state.message == "1 of 4 stages failed, 1 did not run: make@b: exit code 1: error: asked to fail"
    assert Path("made-a.txt").exists()
    assert not Path("joined.txt").exists()
    Path("fail").unlink()
    assert flow(parallel=2, retries=0) == "2 stages brought up to date, 2 unchanged"


@pytest.mark.usefixtures("reporting")
def test_refused_input_is_not_tried_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 is bad input: five more tries would end in the same way."""
    from fedweave.pipelines.scheduling.flows import reproduce as flow

    Path("refuse").touch()
    with pytest.raises(RuntimeError, match=r"1 of 1 stages failed.*asked to refuse"):
        flow(targets=["make@b"], retries=5)
    assert [name for name, _ in toy_project.seen()] == ["made-b.txt"]


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("is_running", [True, False])
def test_a_stage_that_ends_with_its_flow_is_cancelled(project: Path, is_running: bool) -> None:
    """It has not failed, whether it ran or was about to begin."""
    from fedweave.pipelines.scheduling.flows import run_stage

    Path("hold").touch()

    @flow
    def parent() -> object:
        children = host.set_resources(()).children

        def end() -> None:
            if until(lambda: any(Path("pids").iterdir()) or not is_running):
                children.end()

        thread = threading.Thread(target=end)
        thread.start()
        if not is_running:
            thread.join()
        return run_stage("make@a", return_state=True)

    assert parent(return_state=True).is_cancelled()


def run_flow(folder: Path, server: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """The flow as the command of a terminal; its log is on stderr."""
    words = ("-m", "fedweave.pipelines.commands.main", "flow", *options)
    return python(*words, folder=folder, PREFECT_API_URL=server)


@contextmanager
def held_flow(project: Path, server: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A flow that runs two stages, which wait for the end of the test."""
    Path("hold").touch()
    environment |= {"PREFECT_API_URL": server, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "flow", "--parallel", "2"]
    with process(command, project, environment, project / "flow.log") as flow:
        assert until(lambda: len(list(Path("pids").iterdir())) == 2, 120), Path("flow.log").read_text()[-3000:]
        yield flow


def test_the_log_of_a_failed_flow_has_its_line_and_no_traceback(project: Path, reporting: str) -> None:
    Path("fail").touch()
    done = run_flow(project, reporting, "--targets", "make@b", "--retries", "0")
    assert done.returncode == 1
    assert "error: 1 of 1 stages failed, 0 did not run: make@b: exit code 1: error: asked to fail" in done.stderr
    assert "Finished in state Failed" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("error", [host.PermanentFailure("no"), host.StageError(1, "no"), BadInput("no")])
def test_a_failed_task_ends_its_flow(error: Exception) -> None:
    """A task whose errors are failed states, called in a flow."""

    @task
    @host.fail_in_one_line
    def refuse() -> None:
        raise error

    @flow
    def parent() -> str:
        host.call(refuse)
        return "went on"

    with pytest.raises(type(error), match="no"):
        parent()


def test_a_refused_study_ends_a_flow_in_one_line(project: Path, reporting: str) -> None:
    Path("mine.yaml").write_text("tasks: 3\n", encoding="utf-8")
    done = run_flow(project, reporting, "--study", "mine.yaml")
    *_, line = done.stderr.strip().splitlines()
    assert re.match(r"error: exit code 2: error: mine\.yaml: .*tasks", line)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr


def test_a_flow_is_refused_while_another_runs_stages(project: Path, reporting: str) -> None:
    """DVC says which path is busy; the files that it read are not wrong."""
    with held_flow(project, reporting) as flow:
        done = run_flow(project, reporting)
        flow.send_signal(signal.SIGTERM)
        flow.wait(60)
    assert done.returncode == 1
    *_, line = done.stderr.strip().splitlines()
    assert line.startswith("error: another run is active in this folder (process ")
    assert "correct params.yaml" not in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.usefixtures("reporting")
def test_training_stages_take_turns_on_the_gpus(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage has a GPU to itself. The other stages see the same devices as before."""
    from fedweave.pipelines.scheduling.flows import reproduce as flow

    monkeypatch.setenv("FEDWEAVE_LOANS", str(project / "loans"))
    monkeypatch.setenv("FEDWEAVE_GPUS", "4,7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Path("hold").touch()

    def release() -> None:
        until(lambda: len(list(Path("pids").iterdir())) == 3, 240)
        Path("hold").unlink()

    watcher = threading.Thread(target=release)
    watcher.start()
    flow(parallel=3, retries=0)
    watcher.join()
    gpus = dict(toy_project.seen())
    assert {gpus["made-a.txt"], gpus["made-b.txt"]} == {"4", "7"}
    assert gpus["joined.txt"] == gpus["aside.txt"] == "none"


@pytest.mark.parametrize(
    ("number", "shell"), [(signal.SIGTERM, "/bin/bash"), (signal.SIGKILL, "/bin/bash"), (signal.SIGKILL, "/bin/sh")]
)
def test_a_stopped_flow_leaves_no_stage_behind(
    project: Path, reporting: str, number: signal.Signals, shell: str
) -> None:
    with held_flow(project, reporting, SHELL=shell) as flow:
        pids = [int(path.name) for path in Path("pids").iterdir()]
        flow.send_signal(number)
        flow.wait(60)
        assert until(lambda: not any(map(alive, pids)))
    Path("hold").unlink()
    time.sleep(0.3)
    assert not list(Path().glob("made-*.txt"))
