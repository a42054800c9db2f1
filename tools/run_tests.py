"""Runs pytest for `make test`: `python tools/run_tests.py [pytest's arguments]`. It always ends.

Tests write their files in memory where there is room (Linux): databases wait for the disk thousands of times.
After `LIMIT` seconds (environment variable, default 2700), or on SIGTERM, all stacks are printed and the run fails. A
process of a test that is still running at the end is killed, and fails the run under the name of that test.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from fedweave.processes.parallel import cores

RUN_VARIABLE = "FEDWEAVE_TEST_RUN"  # a folder in which tests/limits.py records the test that forked a process
LIMIT = "LIMIT"
DEFAULT_LIMIT = 2700.0
GRACE = 20.0  # seconds for processes that end at the same time as pytest
DUMP_TIMEOUT = 5.0  # seconds that a process may take to print its stacks
MEMORY, ROOM = Path("/dev/shm"), 6 * 2**30  # files in memory, and the free bytes that the tests ask for


class RunStopped(Exception):
    """The run was stopped. The message has the reason."""


def find_processes(run: str) -> list[psutil.Process]:
    """The processes whose environment names this run, except this one and zombies."""
    processes = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(RUN_VARIABLE) == run
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


def describe(process: psutil.Process, run: str) -> str:
    """One line: the test that started a process, its number and its command."""
    try:
        note, environment = Path(run, str(process.pid)), process.environ()
        test = (
            note.read_text()
            if note.exists()
            else environment.get("PYTEST_CURRENT_TEST", "no test").removesuffix(" (call)")
        )
        return f"left behind by {test}: process {process.pid}, {' '.join(process.cmdline())[:200]}"
    except (psutil.Error, OSError):
        return f"left behind: process {process.pid}"


def start_time(process: psutil.Process) -> float:
    """The start of a process, in seconds since 1970. 0 for one that has ended."""
    try:
        return float(process.create_time())
    except psutil.Error:
        return 0.0


def dump_stacks(run: str) -> None:
    """Let every process of pytest print the stacks of its threads by SIGABRT, on which `faulthandler` prints them.

    The processes do so one after another, because their lines would mix. All others are stopped meanwhile: the process
    that distributes tests, which is the oldest, would otherwise end the other workers after the end of one.
    """
    processes = sorted((process for process in find_processes(run) if not is_started_by_test(process)), key=start_time)
    for process in processes:
        send(process, signal.SIGSTOP)
    for process in reversed(processes):
        send(process, signal.SIGABRT)
        send(process, signal.SIGCONT)
        end = time.monotonic() + DUMP_TIMEOUT
        while is_running(process) and time.monotonic() < end:
            time.sleep(0.05)


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(psutil.Error, OSError):
        process.send_signal(number)


def is_running(process: psutil.Process) -> bool:
    """Whether a process has not ended. A zombie has ended, although its stopped parent has not noticed."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_started_by_test(process: psutil.Process) -> bool:
    """Whether a process is not one of pytest's own, or has ended."""
    try:
        return "PYTEST_CURRENT_TEST" in process.environ()
    except (psutil.Error, OSError):
        return True


def find_remaining(run: str) -> list[str]:
    """A line for each process that is still running `GRACE` seconds after pytest."""
    end = time.monotonic() + GRACE
    while find_processes(run) and time.monotonic() < end:
        time.sleep(0.5)
    return [describe(process, run) for process in find_processes(run)]


def stop(*_: object) -> NoReturn:
    """The handler of SIGTERM."""
    raise RunStopped("stopped by a signal")


def run_watched(command: list[str], run: str, limit: float) -> int:
    """Run pytest for at most `limit` seconds. Returns its exit status, or 1 if a process remains."""
    # One thread in every process that a test starts. One worker more than cores: some tests wait for servers.
    defaults = {"OMP_NUM_THREADS": "1", "PYTEST_XDIST_AUTO_NUM_WORKERS": str(cores() + 1), "TMPDIR": run}
    environment = defaults | os.environ | {RUN_VARIABLE: run}
    # Tests start hundreds of processes: without bytecode each of them would compile the whole package first.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    tests = subprocess.Popen(command, env=environment)
    try:
        status = tests.wait(limit)
        lines = find_remaining(run)
    except (RunStopped, subprocess.TimeoutExpired) as error:
        dump_stacks(run)
        timeout = f"stopped after {limit:.0f} s ({LIMIT}=... sets another limit)"
        status, lines = 1, [str(error) if isinstance(error, RunStopped) else timeout]
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            tests.wait(GRACE)
        status, lines = 128 + signal.SIGINT, []
    finally:
        for process in find_processes(run):
            send(process, signal.SIGKILL)
    for line in lines:
        print(f"tests: failed: {line}", file=sys.stderr)
    return 1 if lines else status


def choose_folder() -> Path | None:
    """The folder for the files of a run; None: the system's own, where memory has no room for them."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM else None


def main() -> int:
    """pytest's exit status. 1 also for a run that was stopped or left a process."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell begin with SIGINT ignored
    with tempfile.TemporaryDirectory(prefix="fw-", dir=choose_folder()) as run:
        return run_watched(
            [sys.executable, "-m", "pytest", *sys.argv[1:]], run, float(os.environ.get(LIMIT) or DEFAULT_LIMIT)
        )


if __name__ == "__main__":
    sys.exit(main())
