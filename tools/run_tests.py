"""Runs pytest for `make test`: `python tools/run_tests.py [pytest's arguments]`. It always ends.

After `LIMIT` seconds (environment variable, default 2700), or on SIGTERM, all stacks are printed and the run has
failed. A process that a test started and that is still there at the end is ended too, and fails the run under the name
of that test.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from fedweave.runs.parallel import cores

MARK = "FEDWEAVE_TEST_RUN"  # a folder, where tests/limits.py writes the test that forked a process
LIMIT = "LIMIT"
DEFAULT_LIMIT = 2700.0
GRACE = 20.0  # for processes that are about to end when pytest does
DUMP = 5.0  # seconds that a process may take to print its stacks


class Stopped(Exception):
    """Why a run was stopped."""


def members(run: str) -> list[psutil.Process]:
    """The processes whose environment names this run, except this one and zombies."""
    processes = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(MARK) == run
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


def described(process: psutil.Process, run: str) -> str:
    """One line: the test that started a process, its number and its command."""
    try:
        forked, environment = Path(run, str(process.pid)), process.environ()
        test = (
            forked.read_text()
            if forked.exists()
            else environment.get("PYTEST_CURRENT_TEST", "no test").removesuffix(" (call)")
        )
        return f"left behind by {test}: process {process.pid}, {' '.join(process.cmdline())[:200]}"
    except (psutil.Error, OSError):
        return f"left behind: process {process.pid}"


def kill(processes: list[psutil.Process]) -> None:
    """End processes at once."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue


def begin(process: psutil.Process) -> float:
    """When a process began, in seconds; 0 for one that has ended."""
    try:
        return float(process.create_time())
    except psutil.Error:
        return 0.0


def dump_stacks(run: str) -> None:
    """Let every process of pytest print the stacks of its threads; `faulthandler` does on SIGABRT, and ends it.

    One after the other, as their lines would mix, and all others halted: the process that distributes tests, which is
    the oldest, would answer to the end of one worker by ending the others.
    """
    processes = sorted((process for process in members(run) if not started_by_test(process)), key=begin)
    for process in processes:
        send(process, signal.SIGSTOP)
    for process in reversed(processes):
        send(process, signal.SIGABRT)
        send(process, signal.SIGCONT)
        end = time.monotonic() + DUMP
        while running(process) and time.monotonic() < end:
            time.sleep(0.05)


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process, which may have ended."""
    with suppress(psutil.Error, OSError):
        process.send_signal(number)


def running(process: psutil.Process) -> bool:
    """Whether a process has not ended; a zombie has, although its halted parent does not know."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def started_by_test(process: psutil.Process) -> bool:
    """Whether a process is none of pytest's own, or has ended."""
    try:
        return "PYTEST_CURRENT_TEST" in process.environ()
    except (psutil.Error, OSError):
        return True


def left_behind(run: str) -> list[str]:
    """What still runs `GRACE` seconds after pytest, a line each."""
    end = time.monotonic() + GRACE
    while members(run) and time.monotonic() < end:
        time.sleep(0.5)
    return [described(process, run) for process in members(run)]


def stop(*_: object) -> NoReturn:
    """What SIGTERM does."""
    raise Stopped("stopped by a signal")


def watched(command: list[str], run: str, limit: float) -> int:
    """The exit status of pytest, which had `limit` seconds; 1 if something is left of it."""
    # One thread in every process that a test starts. One worker more than cores: some tests wait for servers.
    defaults = {"OMP_NUM_THREADS": "1", "PYTEST_XDIST_AUTO_NUM_WORKERS": str(cores() + 1)}
    tests = subprocess.Popen(command, env=defaults | os.environ | {MARK: run})
    try:
        status = tests.wait(limit)
        lines = left_behind(run)
    except (Stopped, subprocess.TimeoutExpired) as error:
        dump_stacks(run)
        status, lines = (
            1,
            [
                str(error)
                if isinstance(error, Stopped)
                else f"stopped after {limit:.0f} s ({LIMIT}=... sets another limit)"
            ],
        )
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            tests.wait(GRACE)
        status, lines = 128 + signal.SIGINT, []
    finally:
        kill(members(run))
    for line in lines:
        print(f"tests: failed: {line}", file=sys.stderr)
    return 1 if lines else status


def main() -> int:
    """pytest's exit status; 1 also for a run that was stopped or left something behind."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    with tempfile.TemporaryDirectory(prefix="fedweave-tests-") as run:
        return watched(
            [sys.executable, "-m", "pytest", *sys.argv[1:]], run, float(os.environ.get(LIMIT) or DEFAULT_LIMIT)
        )


if __name__ == "__main__":
    sys.exit(main())
