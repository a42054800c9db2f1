"""Child processes: the measurements of an ended child, and their end by a signal."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from fedweave.pipelines import processes
from fedweave.pipelines.processes import ChildProcesses, wait_measured
from tests.servers import alive, python, until

HOLD = "held = b'x' * {} * 2**20; import sys; sys.exit({})"


def measure(mib: int, code: int) -> tuple[int, float]:
    """The exit code and the peak memory of a child that takes `mib` MiB and exits with `code`."""
    with ChildProcesses().start([sys.executable, "-c", HOLD.format(mib, code)]) as process:
        return wait_measured(process)


def test_memory_is_that_of_this_child() -> None:
    """The peak of an earlier, larger child does not count. A fork begins with the memory of its parent."""
    mine = psutil.Process().memory_info().rss / 2**20
    large, small = measure(int(mine) + 300, 0), measure(1, 3)
    assert (large[0], small[0]) == (0, 3)
    assert large[1] > mine + 300 > small[1] + 200


def test_a_child_that_other_code_has_waited_for_is_handled() -> None:
    """For example a handler of signals, between the calls."""
    with ChildProcesses().start([sys.executable, "-c", "import sys; sys.exit(4)"]) as process:
        process.wait()
        assert wait_measured(process) == (4, 0.0)


def test_a_signal_may_end_children_while_one_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs in the thread that starts the child, for example before a time limit of a cluster."""
    children, outcomes, started = ChildProcesses(), [], list[subprocess.Popen[str]]()
    start = processes._start

    def start_while_a_signal_comes(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        children.end()
        started.append(start(command, env))
        return started[-1]

    monkeypatch.setattr(processes, "_start", start_while_a_signal_comes)

    def run() -> None:
        try:
            with children.start([sys.executable, "-c", "import time; time.sleep(60)"]):
                outcomes.append("ran")
        except InterruptedError:
            outcomes.append("ended")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert outcomes == ["ended"]
    (child,) = started
    assert child.returncode == -signal.SIGTERM


ORPHAN = "import os, time; from fedweave.pipelines import processes; processes.run_main({}, is_service={})"
WAIT = "lambda: (print(os.getpid(), flush=True), time.sleep(60))"


@pytest.mark.parametrize("is_service", [False, True], ids=["stage", "service"])
def test_a_service_outlives_the_shell_that_started_it(is_service: bool) -> None:
    """For example the servers of `fedweave ui`, started with `nohup` before a logout. A stage must not outlive it."""
    program = shlex.join([sys.executable, "-c", ORPHAN.format(WAIT, is_service)])
    shell = subprocess.Popen(["/bin/sh", "-c", f"{program} & wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    orphan = int(shell.stdout.readline())
    shell.kill()
    shell.wait()
    try:
        if is_service:
            time.sleep(1)
            assert alive(orphan)
        else:
            assert until(lambda: not alive(orphan))  # in a container it may stay a zombie
    finally:
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


PROGRAM = """
import atexit, sys
from fedweave.pipelines.processes import exit_after
atexit.register(print, "end of the program")
def main():
    print("work")
    {}
exit_after(main)
"""


@pytest.mark.parametrize(
    ("last", "code", "error"),
    [("", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('no')", 1, "no\n"), ("raise ValueError", 1, "ValueError\n")],
)
def test_a_program_that_exits_fast_loses_nothing(last: str, code: int, error: str) -> None:
    """Output, exit functions, exit code and traceback are those of a usual exit."""
    done = python("-c", PROGRAM.format(last))
    assert (done.returncode, done.stdout) == (code, "work\nend of the program\n")
    assert done.stderr.endswith(error)
