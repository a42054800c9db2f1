"""Stages as forks of one process: the same results, the code on disk, and nobody left when somebody is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.servers import Project, study, until
from tests.small_project import params

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("pipeline"),
    pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux"),
]
MARK = "FEDWEAVE_TEST_OF_SURVIVORS"
PATIENCE = 60.0  # seconds; what is waited for takes one on an idle machine
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


def marked(mark: str) -> dict[int, str]:
    """The processes, and their command lines, that were started with `mark` in their environment; those that have ended
    do not count.
    """
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
    """A study whose data are there."""
    return Project(tmp_path_factory.mktemp("forks"), params())


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the one that runs the stages."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def launch(project: Project, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a stage as dvc.yaml does."""
    command = [sys.executable, "-IS", "pipelines/launching/launcher.py", *words]
    return subprocess.run(
        command,
        cwd=project.folder,
        env={**os.environ, **project.env, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def sockets(project: Project) -> list[Path]:
    """Where fork servers listen."""
    return [*(project.folder / ".fedweave" / "forkserver").glob("*.sock")]


def test_importing_what_stages_share_starts_no_threads_and_no_gpu() -> None:
    """What BLAS starts by itself when it is loaded, it also ends by itself around a fork."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_fork_does_what_a_process_does(project: Project, owner: subprocess.Popen[bytes]) -> None:
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


def test_another_environment_or_a_strangers_folder_means_a_process_of_its_own(
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
    """A process that ended while it held DVC's lock, and that nobody has reaped: its number still exists."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        holder = {"pid": process.pid, "cmd": "dvc repro"}
        lock = {"write": {str(project.folder / "results" / "small" / "code"): holder}, "read": {}}
        (project.folder / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(lock))
        yield process.pid


@pytest.mark.usefixtures("zombie")
@pytest.mark.parametrize("victim", ["make", "dvc", "server"])
def test_whoever_is_killed_nothing_trains_on(project: Project, victim: str) -> None:
    """SIGKILL of `make`, of DVC or of the fork server while searches train ends all of them, and locks nothing."""
    endless = yaml.safe_load(params())
    for task in endless["tasks"].values():
        task["train"]["rounds"] = 100_000
    # A second search, so that two run side by side
    endless["tune"]["spaces"]["fedavg"] = {"train.lr": {"low": 0.01, "high": 0.1}}
    (project.folder / "params.yaml").write_text(yaml.safe_dump(endless))
    mark = f"{os.getpid()}-{victim}"
    makefile = "all:\n\t@exec python -IS pipelines/launching/reproduce.py\n"
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
        words = {"make": "make", "dvc": "dvc repro", "server": "forkserver"}[victim]
        os.kill(min(process for process, line in lines.items() if words in line), signal.SIGKILL)
        assert until(lambda: not marked(mark)), marked(mark)
    finally:
        for process in marked(mark):
            os.kill(process, signal.SIGKILL)
        make.wait(PATIENCE)
        (project.folder / "params.yaml").write_text(params())


def test_after_kills_the_next_run_simply_works(project: Project) -> None:
    """What the killed ones left behind, such as DVC's locks, needs no hand."""
    (project.folder / "params.yaml").write_text(study(["digits-fedavg"]))
    command = [sys.executable, "-IS", "pipelines/launching/reproduce.py"]
    try:
        done = subprocess.run(
            command, cwd=project.folder, env={**os.environ, **project.env}, capture_output=True, text=True, check=False
        )
    finally:
        (project.folder / "params.yaml").write_text(params())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FedAvg" in done.stdout


def test_a_second_run_names_the_active_process(project: Project) -> None:
    """One line with the number of the process that is active; nothing is to be deleted."""
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
        command = [sys.executable, "-IS", "pipelines/launching/reproduce.py"]
        second = subprocess.run(
            command, cwd=project.folder, env={**os.environ, **project.env}, capture_output=True, text=True, check=False
        )
        first.kill()
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        "error: another run is active in this folder (process 4711); wait until it has ended, then start this one again"
    ]
