"""A pytest plugin: no test and no dead worker can block a run.

pytest-timeout ends a test that takes too long, by a signal. Two things it cannot do:

- A test that never returns to the interpreter (compiled code, a held lock) does not get the signal. A watchdog of
  `faulthandler` writes the stacks of all threads and ends that worker, `GRACE` seconds after the limit.
- A worker that dies (that way, or by a segmentation fault) is replaced by pytest-xdist, whose scheduler may then wait
  forever for the tests of the dead one. Here the run ends as failed at the next report, which names the test.
"""

import faulthandler
import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

GRACE = 60.0
CRASHES: pytest.StashKey[list[str]] = pytest.StashKey()
TERMINAL: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Keep access to the terminal in spite of the captured output of tests."""
    config.stash[CRASHES] = []
    config.stash[TERMINAL] = os.dup(2)


def seconds(item: pytest.Item) -> float:
    """The limit of a test: its marker `timeout`, else the setting of the suite. 0 if there is none."""
    marker = item.get_closest_marker("timeout")
    limit = (marker.kwargs.get("timeout") or marker.args[0]) if marker else item.config.getini("timeout")
    return float(limit or 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set the watchdog for one test."""
    if limit := seconds(item):
        faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=item.config.stash[TERMINAL])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        note_forks(item.nodeid)


def note_forks(test: str) -> None:
    """Record the test that started the present children of this process: a forked child does not have the name of its
    test.
    """
    if folder := os.environ.get("FEDWEAVE_TEST_RUN"):
        for file in Path("/proc/self/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that ends at the same time
                for note in (Path(folder, pid) for pid in file.read_text().split()):
                    if not note.exists():
                        note.write_text(test)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Record a worker that did not end by itself (pytest-xdist's hook)."""
    if error:
        node.config.stash[CRASHES].append(f"{node.gateway.id}: {error}")  # type: ignore[attr-defined]


class Stop:
    """The reaction of the process that distributes the tests to the death of a worker."""

    def __init__(self, config: pytest.Config):
        self.crashes = config.stash[CRASHES]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the run after the report of the test that killed the worker, or else after the next report."""
        if self.crashes:
            pytest.exit(
                f"a worker died ({self.crashes[0]}); tests that had not run by then were left out", returncode=1
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker that died between two tests fails the run, too."""
        if self.crashes and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Register `Stop` in the process that distributes the tests."""
    session.config.pluginmanager.register(Stop(session.config))
