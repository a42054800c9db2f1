"""Stages as forks of one process: the same results, the code on disk, and no process left after a kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.servers import Project, python, study, until
from tests.small_project import params

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("pipeline"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux"),
]
MARK = "FEDWEAVE_TEST_OF_SURVIVORS"
PATIENCE = 60.0  # seconds; what the tests wait for takes one second on an idle machine
PROGRAM = """
def threads():
    return int(next(line for line in open("/proc/self/status") if line.startswith("Threads")).split()[1])
import numpy, scipy.linalg
before = threads()
from fedweave.pipelines.launching import forkserver
forkserver.preload()
import torch
assert threads() <= before, (threads(), before)
assert not torch.cuda.is_initialized()
"""


def oldest(commands: dict[int, str], words: str) -> int:
    """The process with `words` in its command line that started first.

    Its number need not be the smallest: the kernel begins again at small numbers.
    """
    started: dict[int, float] = {}
    for process in (process for process, line in commands.items() if words in line):
        with suppress(psutil.NoSuchProcess):
            started[process] = psutil.Process(process).create_time()
    return min(started, key=lambda process: started[process])


def marked(mark: str) -> dict[int, str]:
    """The running processes, with their command lines, that have `mark` in their environment."""
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return commands


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study with its data."""
    return Project(tmp_path_factory.mktemp("forks"), params())


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the role of the one that runs the stages."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def launch(project: Project, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a stage as dvc.yaml does."""
    words = ("-IS", "pipelines/launching/launcher.py", *arguments)
    return python(*words, folder=project.folder, **{**project.env, **env})


def sockets(project: Project) -> list[Path]:
    """The sockets of fork servers."""
    return [*(project.folder / ".fedweave" / "forkserver").glob("*.sock")]


def test_importing_the_shared_modules_starts_no_threads_and_no_gpu() -> None:
    """BLAS starts threads when it is loaded, and ends them around a fork."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_fork_has_the_results_of_a_new_process(project: Project, owner: subprocess.Popen[bytes]) -> None:
    """Files, output, errors and exit codes are those of `python -m pipelines.STAGE`."""
    forked, direct = {"FEDWEAVE_OWNER": str(owner.pid)}, {"FEDWEAVE_DIRECT": "1"}
    made = project.folder / "results" / "small" / "code" / "tables.json"
    contents = []
    for env in (direct, forked, forked):
        done = launch(project, "sources", **env)
        assert done.returncode == 0, done.stderr
        contents.append(made.read_text())
        made.unlink()
        assert bool(sockets(project)) == (env is forked)
    assert len({*contents}) == 1
    refused = [launch(project, "train", "nobody", **env) for env in (direct, forked)]
    assert [done.returncode for done in refused] == [2, 2]
    assert refused[0].stderr == refused[1].stderr
    assert "nobody" in refused[0].stderr
    (server,) = sockets(project)
    assert (server.parent.stat().st_mode & 0o777) == 0o700
    owner.kill()
    assert until(lambda: not sockets(project))


def test_a_fork_runs_the_code_on_disk(project: Project, owner: subprocess.Popen[bytes]) -> None:
    env = {"FEDWEAVE_OWNER": str(owner.pid)}
    file = project.folder / "pipelines" / "stages" / "train.py"
    before = file.read_text()
    assert "params.yaml: runs" in launch(project, "train", "nobody", **env).stderr
    file.write_text(before.replace('"params.yaml: runs"', '"the other words"'))
    try:
        assert "the other words" in launch(project, "train", "nobody", **env).stderr
    finally:
        file.write_text(before)
    assert "params.yaml: runs" in launch(project, "train", "nobody", **env).stderr


def test_with_another_environment_or_a_foreign_folder_a_stage_runs_in_its_own_process(
    project: Project, owner: subprocess.Popen[bytes]
) -> None:
    env = {"FEDWEAVE_OWNER": str(owner.pid)}
    assert launch(project, "sources", **env).returncode == 0
    assert launch(project, "sources", **env, OMP_NUM_THREADS="2").returncode == 0
    folder = project.folder / ".fedweave" / "forkserver"
    folder.chmod(0o755)
    try:
        assert launch(project, "sources", **env).returncode == 0
    finally:
        folder.chmod(0o700)


@pytest.fixture
def zombie(project: Project) -> Iterator[int]:
    """A process that ended while it held DVC's lock. Its parent has not waited for it, so its number still exists."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        holder = {"pid": process.pid, "cmd": "dvc repro"}
        lock = {"write": {str(project.folder / "results" / "small" / "code"): holder}, "read": {}}
        (project.folder / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(lock))
        yield process.pid


@pytest.mark.usefixtures("zombie")
@pytest.mark.parametrize("victim", ["make", "dvc", "server"])
def test_a_kill_of_any_process_ends_all_training(project: Project, victim: str) -> None:
    """SIGKILL of `make`, of DVC or of the fork server during searches ends all searches and leaves no lock."""
    endless = yaml.safe_load(params())
    for task in endless["tasks"].values():
        task["train"]["rounds"] = 100_000
    # A second search, so that two run at the same time
    endless["tune"]["spaces"]["fedavg"] = {"train.lr": {"low": 0.01, "high": 0.1}}
    (project.folder / "params.yaml").write_text(yaml.safe_dump(endless))
    mark = f"{os.getpid()}-{victim}"
    makefile = "all:\n\t@exec python -m fedweave.pipelines.launching.reproduce\n"
    (project.folder / "Makefile").write_text(makefile)
    with (project.folder / "log").open("w") as log:
        make = subprocess.Popen(
            ["make"], cwd=project.folder, env={**os.environ, **project.env, MARK: mark}, stdout=log, stderr=log
        )
    try:
        assert until(lambda: sum("forkserver" in line for line in marked(mark).values()) >= 4, 5 * PATIENCE), (
            project.folder / "log"
        ).read_text()
        lines = marked(mark)
        pattern = {"make": "make", "dvc": "dvc repro", "server": "forkserver"}[victim]
        os.kill(oldest(lines, pattern), signal.SIGKILL)
        assert until(lambda: not marked(mark)), marked(mark)
    finally:
        for process in marked(mark):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process, signal.SIGKILL)
        make.wait(PATIENCE)
        (project.folder / "params.yaml").write_text(params())


def test_after_kills_the_next_run_succeeds(project: Project) -> None:
    """Leftovers of the killed processes, such as DVC's locks, need no repair by hand."""
    (project.folder / "params.yaml").write_text(study(["digits-fedavg"]))
    try:
        assert "FedAvg" in project.python("fedweave.pipelines.launching.reproduce").stdout
    finally:
        (project.folder / "params.yaml").write_text(params())


def test_a_second_run_names_the_active_process(project: Project) -> None:
    """One line names the number of the active process. The user need not delete anything."""
    program = """import fcntl, time
f = open(".fedweave/repro.lock", "w")
fcntl.flock(f, fcntl.LOCK_EX)
print(4711, end="", file=f, flush=True)
print(flush=True)
time.sleep(99)"""
    (project.folder / ".fedweave").mkdir(exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", program], cwd=project.folder, stdout=subprocess.PIPE) as first:
        assert first.stdout
        first.stdout.readline()
        second = project.python("fedweave.pipelines.launching.reproduce", check=False)
        first.kill()
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        "error: another run is active in this folder (process 4711); wait until it has ended, then start this one again"
    ]
