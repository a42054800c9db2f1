"""A test run always ends: crashes, hangs and remaining processes, in a small suite of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers import until

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parent.parent
# The settings of pyproject.toml, with limits of seconds.
SETTINGS = """
[pytest]
addopts = -p xdist -p pytest_timeout -p limits --numprocesses=2 --dist=loadgroup --max-worker-restart=0
timeout = 3
timeout_method = signal
"""
CONFTEST = "import limits\nlimits.GRACE = 5.0\n"  # enough for the report of a test on a busy machine
RUN = "import sys, run_tests\nrun_tests.GRACE = 1.0\nsys.exit(run_tests.main())"
# A worker that continues for minutes next to the one of the test.
BUSY = """
import pytest, time

@pytest.mark.xdist_group("busy")
@pytest.mark.parametrize("number", range(200))
def test_busy(number):
    time.sleep(1)
"""


def started(folder: Path, tests: str, limit: float = 240) -> subprocess.Popen[str]:
    """A run over `tests` in `folder`, in the background."""
    for name, text in {"pytest.ini": SETTINGS, "conftest.py": CONFTEST, "test_case.py": tests}.items():
        (folder / name).write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "tests")])
    environment = clean | {"PYTHONPATH": path, "LIMIT": str(limit), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def run(folder: Path, tests: str, limit: float = 240) -> tuple[int, str]:
    """Exit status and output of a run over `tests`."""
    with started(folder, tests, limit) as process:
        output, _ = process.communicate(timeout=280)
    return process.returncode, output


def test_a_segmentation_fault_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY)
    status, output = run(tmp_path, "import os, signal\ndef test_crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\n")
    assert status == 1
    assert "FAILED test_case.py::test_crash" in output
    assert "Segmentation fault" in output
    assert "a worker died" in output


def test_a_hang_in_compiled_code_ends_the_run(tmp_path: Path) -> None:
    """No handler of Python runs until such a loop is over."""
    (tmp_path / "test_busy.py").write_text(BUSY)
    status, output = run(tmp_path, "import itertools\ndef test_hang():\n    all(itertools.repeat(True))\n")
    assert status == 1
    assert "FAILED test_case.py::test_hang" in output
    assert "in test_hang" in output.partition("Timeout (0:00:08)!")[2]


def test_only_a_hanging_test_fails_and_a_remaining_process_has_the_name_of_its_test(tmp_path: Path) -> None:
    tests = """
import subprocess, sys, threading

def test_hang():
    threading.Event().wait()

def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])

def test_next():
    pass
"""
    status, output = run(tmp_path, tests)
    assert status == 1
    assert "FAILED test_case.py::test_hang" in output
    assert "Timeout (>3.0s) from pytest-timeout" in output
    assert "1 failed, 2 passed" in output
    assert "tests: failed: left behind by test_case.py::test_leaves_a_process" in output


def test_a_multiprocessing_child_does_not_delay_the_end(tmp_path: Path) -> None:
    """Python waits for such a child before it exits."""
    tests = """
import multiprocessing, time

def test_leaves_a_child():
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
"""
    status, output = run(tmp_path, tests)
    assert status == 1
    assert "left behind by test_case.py::test_leaves_a_child" in output


def test_a_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    """Here pytest itself hangs, so no limit of a test applies."""
    status, output = run(tmp_path, "import time\ntime.sleep(300)\n", limit=1)
    assert status == 1
    assert "tests: failed: stopped after 1 s (LIMIT=... sets another limit)" in output


def test_a_stopped_run_prints_its_stacks(tmp_path: Path) -> None:
    tests = "import pathlib, time\ndef hold_up():\n    pathlib.Path('there').touch()\n    time.sleep(300)\nhold_up()\n"
    with started(tmp_path, tests) as process:
        assert until((tmp_path / "there").exists, 120)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "in hold_up" in output, output
    assert "tests: failed: stopped by a signal" in output


@pytest.mark.parametrize("setting", ["--dist=loadgroup", "--max-worker-restart=0"])
def test_the_small_suite_has_the_settings_of_this_one(setting: str, pytestconfig: pytest.Config) -> None:
    assert setting in pytestconfig.getini("addopts")
    assert setting in SETTINGS
    assert pytestconfig.getini("timeout_method") == "signal"
    assert float(pytestconfig.getini("timeout")) > 0
