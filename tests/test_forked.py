"""Tests run in forks: each runs once, those of a group in one process, and all that they report arrives."""

import os
import subprocess
import sys
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUITE = """
import os, pathlib, sys, time, warnings
import pytest

HELD = sys.stdout

def note(*words):
    with pathlib.Path(__file__).with_name("log").open("a") as file:
        print(os.getpid(), *words, file=file)

note("collected")

@pytest.fixture(scope="session")
def server():
    note("made")
    yield
    note("ended")

@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.group(name)) for name in "abcdef"])
def test_groups(name, number, server, tmp_path):
    note(name, number, tmp_path)
    time.sleep(0.05)

def test_fails():
    print("some output", file=HELD)  # as libraries do that were imported by the collection
    assert 1 + 1 == 3

def test_warns():
    class Own(UserWarning): ...
    warnings.warn("careful", Own)

@pytest.mark.skip(reason="not today")
def test_skipped(): ...

@pytest.mark.xfail
def test_expected():
    assert False

@pytest.fixture
def broken():
    yield
    raise ValueError("the end")

def test_teardown(broken): ...
"""


def run(folder: Path, *words: str) -> tuple[int, str, list[list[str]]]:
    """Exit status and output of the suite, and the words of its log: the process first."""
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p pytest_timeout -p forked\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, [line.split(" ") for line in (folder / "log").read_text().splitlines()]


def test_every_test_runs_once_and_groups_stay_together(tmp_path: Path) -> None:
    _, _, log = run(tmp_path, "-n", "2", "-k", "groups")
    collected, *rest = log
    tests = [line for line in rest if len(line) == 4]
    processes = defaultdict(list)
    for process, name, number, _ in tests:
        processes[process].append(name + number)
    assert len(processes) == 2
    assert collected[0] not in processes
    assert sorted(chain(*processes.values())) == [name + number for name in "abcdef" for number in "012"]
    for names in processes.values():
        assert names == sorted(names)
        assert len(names) % 3 == 0
    assert len({folder for *_, folder in tests}) == len(tests)
    others = sorted(line for line in rest if len(line) == 2)
    assert others == sorted([process, word] for process in processes for word in ("made", "ended"))


def test_reports_are_those_of_one_process(tmp_path: Path) -> None:
    """Failures with their output, errors, reasons and warnings; only the seconds differ."""

    def lines(count: int) -> list[str]:
        status, output, _ = run(tmp_path, "-n", str(count), "-ra", "-p", "no:cacheprovider")
        assert status == 1
        assert "1 failed, 20 passed, 1 skipped, 1 xfailed, 1 warning, 1 error in" in output
        found = output.partition("== ERRORS ==")[2].partition(" in ")[0].splitlines()
        assert {"some output", "E       assert (1 + 1) == 3"} <= {*found}
        assert any(line.endswith("Own: careful") for line in found)
        return found

    assert lines(2) == lines(0)


@pytest.mark.parametrize("count", ["0", "2"])
def test_a_failure_can_end_the_run(count: str, tmp_path: Path) -> None:
    """The other fork ends its test, and its fixtures."""
    (tmp_path / "test_first.py").write_text("import time\ndef test_slow():\n    time.sleep(0.5)\n    assert False\n")
    status, output, log = run(tmp_path, "-n", count, "-x")
    assert status == 1
    assert "stopping after 1 failures" in output
    assert len([line for line in log if len(line) == 4]) < 18
    assert [line[1] for line in log].count("made") == [line[1] for line in log].count("ended")
