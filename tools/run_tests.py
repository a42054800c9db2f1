"""Runs pytest for `make test`: `python tools/run_tests.py [pytest's arguments]`. It always ends.

After `LIMIT` seconds (environment variable, default 2700) all stacks are printed and the run has failed. A process that
a test started and that is still there at the end is ended too, and fails the run under the name of that test.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import psutil

MARK = "FEDWEAVE_TEST_RUN"
LIMIT = "LIMIT"
DEFAULT_LIMIT = 2700.0
GRACE = 20.0  # for processes that are about to end when pytest does


def members(run: str) -> list[psutil.Process]:
    """The processes whose environment names this run, except this one and zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def described(process: psutil.Process) -> str:
    """One line: process, command and the test that started it."""
    try:
        with process.oneshot():
            test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
            return f"left behind by {test.removesuffix(' (call)')}: process {process.pid}, {' '.join(process.cmdline())[:200]}"
    except (psutil.Error, OSError):
        return str(process.pid)


def kill(processes: list[psutil.Process]) -> None:
    """End processes at once."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue


def dump_stacks(run: str) -> None:
    """Let every process of pytest print the stacks of its threads; `faulthandler` does on SIGABRT, and ends it."""
    for process in members(run):
        try:
            if "PYTEST_CURRENT_TEST" not in process.environ():
                process.send_signal(signal.SIGABRT)
        except (psutil.Error, OSError):
            continue
    time.sleep(3)


def left_behind(run: str) -> list[str]:
    """What still runs `GRACE` seconds after pytest, a line each."""
    end = time.monotonic() + GRACE
    while members(run) and time.monotonic() < end:
        time.sleep(0.5)
    return [described(process) for process in members(run)]


def main() -> int:
    """pytest's exit status; 1 also for a run that was stopped or left something behind."""
    run, limit = uuid.uuid4().hex, float(os.environ.get(LIMIT) or DEFAULT_LIMIT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tests = subprocess.Popen([sys.executable, "-m", "pytest", *sys.argv[1:]], env=os.environ | {MARK: run})
    try:
        status = tests.wait(limit)
        lines = left_behind(run)
    except subprocess.TimeoutExpired:
        dump_stacks(run)
        status, lines = 1, [f"stopped, no end after {limit:.0f} s ({LIMIT}=... sets another limit)"]
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            tests.wait(GRACE)
        return 128 + signal.SIGINT
    finally:
        kill(members(run))
    for line in lines:
        print(f"tests: failed: {line}", file=sys.stderr)
    return 1 if lines else status


if __name__ == "__main__":
    sys.exit(main())
