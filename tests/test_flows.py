"""Processes that end with their parent, DVC's graph as a plan, and the Prefect flow over it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dvc.repo import Repo

from fedweave.errors import BadInput
from pipelines.ledger import StaleStage, stale_stages
from pipelines.processes import Children

# One worker for all of it, so that the server is started once.
pytestmark = pytest.mark.xdist_group("flows")

ROOT = Path(__file__).parent.parent
DVC_YAML = """
stages:
  make:
    foreach: ${names}
    do:
      cmd: exec PYTHON step.py made-${item}.txt
      deps: [step.py]
      params: [size]
      outs: ["made-${item}.txt"]
      meta: {gpu: 1}
  join:
    cmd: exec PYTHON step.py joined.txt
    deps: [made-a.txt, made-b.txt]
    outs: [joined.txt]
  aside:
    cmd: exec PYTHON step.py aside.txt
    deps: [step.py]
    outs: [aside.txt]
"""
STEP = """
import pathlib, sys, time
sys.path[:0] = [{src!r}, {root!r}]
from pipelines.processes import die_with_parent
die_with_parent()
if pathlib.Path("fail").exists() and sys.argv[1] == "made-b.txt":
    sys.exit("error: told to fail")
while pathlib.Path("hold").exists():
    pathlib.Path("pids", str(__import__("os").getpid())).touch()
    time.sleep(0.05)
pathlib.Path(sys.argv[1]).write_text(sys.argv[1] + pathlib.Path("params.yaml").read_text())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC project of four stages that has run none of them, as the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    Path("params.yaml").write_text("names: [a, b]\nsize: 1\nstudy: toy\n")
    Path("dvc.yaml").write_text(DVC_YAML.replace("PYTHON", sys.executable))
    Path("step.py").write_text(STEP.format(src=str(ROOT / "src"), root=str(ROOT)))
    Path("pids").mkdir()
    Repo.init(no_scm=True).close()
    return tmp_path


def reproduce(*targets: str) -> None:
    """`dvc repro` in this process."""
    with Repo(os.curdir) as repo:
        repo.reproduce(list(targets) or None)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_plan_of_a_fresh_project_is_the_whole_graph_in_order(project: Path) -> None:
    plan = stale_stages()
    assert {stage.name for stage in plan} == {"make@a", "make@b", "join", "aside"}
    assert [stage for stage in plan if stage.name == "join"] == [StaleStage("join", ("make@a", "make@b"), False)]
    names = [stage.name for stage in plan]
    assert all(names.index(need) < names.index(stage.name) for stage in plan for need in stage.needs)
    assert {stage.name for stage in plan if stage.gpu} == {"make@a", "make@b"}


def test_plan_holds_what_changed_and_what_stands_below_it(project: Path) -> None:
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
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    nested = f"import subprocess; p = subprocess.Popen({sleeper!r}); print(p.pid, flush=True); p.wait()"
    with Children().child([sys.executable, "-c", nested]) as process:
        assert process.stdout is not None
        pids = [process.pid, int(process.stdout.readline())]
        assert all(map(alive, pids))
    assert until(lambda: not any(map(alive, pids)))


def test_whoever_was_told_to_end_starts_nothing_more() -> None:
    children = Children()
    with children.child([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        children.end()
        assert process.returncode == -signal.SIGTERM
    with pytest.raises(InterruptedError), children.child([sys.executable, "-c", "pass"]):
        pass


def test_a_child_ends_when_its_parent_is_killed() -> None:
    program = f"""
import sys; sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT)!r}]
from pipelines.processes import Children
with Children().child([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
    print(process.pid, flush=True)
    process.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert until(lambda: not alive(pid))


@pytest.mark.parametrize(("raised", "code"), [("BadInput('params.yaml: no')", 2), ("ArithmeticError('inf')", 3)])
def test_a_stage_says_one_line_and_exits(raised: str, code: int) -> None:
    program = f"""
import sys; sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT)!r}]
from fedweave.errors import BadInput
from pipelines.processes import stage
def main():
    raise {raised}
stage(main, ArithmeticError)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect with a database of its own, shared by the flows of this file."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.mark.usefixtures("server")
def test_flow_runs_what_is_stale_and_leaves_dvc_satisfied(project: Path) -> None:
    from pipelines.flows import reproduce as flow

    assert flow(parallel=2) == "4 stages brought up to date"
    assert Path("joined.txt").read_text().startswith("joined.txt")
    assert stale_stages() == []
    assert flow(parallel=2) == "0 stages brought up to date"


@pytest.mark.usefixtures("server")
def test_flow_tells_which_stage_failed_and_runs_nothing_below_it(project: Path) -> None:
    from pipelines.flows import reproduce as flow

    Path("fail").touch()
    with pytest.raises(RuntimeError, match=r"1 of 4 stages failed, 1 did not run: .*told to fail"):
        flow(parallel=2)
    assert Path("made-a.txt").exists()
    assert not Path("joined.txt").exists()
    Path("fail").unlink()
    assert flow(parallel=2) == "2 stages brought up to date"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("number", "shell"), [(signal.SIGTERM, "/bin/bash"), (signal.SIGKILL, "/bin/bash"), (signal.SIGKILL, "/bin/sh")])
def test_a_stopped_flow_leaves_no_stage_behind(project: Path, number: signal.Signals, shell: str) -> None:
    from prefect.settings import PREFECT_API_URL

    Path("hold").touch()
    api = str(PREFECT_API_URL.value())
    environment = {**os.environ, "SHELL": shell, "PREFECT_API_URL": api, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    flow = subprocess.Popen(
        [sys.executable, "-m", "pipelines.flows", "--parallel", "2"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert until(lambda: len(list(Path("pids").iterdir())) == 2, 60)
    pids = [int(path.name) for path in Path("pids").iterdir()]
    flow.send_signal(number)
    flow.wait(30)
    assert until(lambda: not any(map(alive, pids)))
    Path("hold").unlink()
    time.sleep(0.3)
    assert not list(Path().glob("made-*.txt"))
