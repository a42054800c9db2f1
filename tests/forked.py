"""A pytest plugin: forks of the process that has collected the tests run them, `-n` at a time.

So thousands of tests are collected, and the libraries that they need are imported, once and not by each process. A fork
runs one group of tests after another. It asks for its next group when it begins the last test of one, so that fixtures
which both groups use stay.

No test can block the run. pytest-timeout ends one that takes too long by a signal, which a test that never returns to
the interpreter (compiled code, a held lock) does not get: its fork is killed `GRACE` seconds later, and `faulthandler`
prints its stacks. A fork that dies, so or by a segmentation fault, fails the test that it ran, and ends the run.
"""

import math
import os
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.capture import FDCapture

from fedweave.processes.parallel import cores
from fedweave.processes.signals import die_with_parent

POLL = 0.5  # seconds until the end of a fork is noticed if a process of a test keeps its pipe open
GRACE = 60.0  # seconds that a test has after its limit
STOP_GRACE = 10.0  # seconds that a fork has for its current test when a run is stopped
# What a fork and its parent share: the number of the current test, its end at the latest, and whether to stop after it.
PRESENT, LATEST, STOP = 0, 1, 2
# Without this, PyTorch counts devices by CUDA, which then works in no fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`-n 0` runs all tests in this process, where a debugger works."""
    add = parser.getgroup("forked")._addoption  # the public method keeps small letters for pytest
    add("-n", "--numprocesses", type=int, default=cores(), metavar="N", help="forks that run tests; 0: none")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of groups."""
    config.addinivalue_line("markers", "group(name): the tests of a group run in one process, one after another")


def seconds(item: pytest.Item) -> float:
    """The limit of a test: its mark `timeout`, else the setting of the suite; infinite if there is none."""
    mark = item.get_closest_marker("timeout")
    limit = (mark.kwargs.get("timeout") or mark.args[0]) if mark else item.config.getini("timeout")
    return float(limit or math.inf)


def group_of(item: pytest.Item) -> str:
    """The group of a test: what its mark names, otherwise its file."""
    mark = item.get_closest_marker("group")
    return str(mark.args[0]) if mark else item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks."""
    option = session.config.option
    if not option.numprocesses or option.collectonly or option.usepdb or session.testsfailed:
        return None
    groups: dict[str, list[int]] = {}
    for number, item in enumerate(session.items):
        groups.setdefault(group_of(item), []).append(number)
    if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False  # tests of several files run at a time
    queue = iter(groups.values())
    forks: list[Fork] = []
    try:
        while len(forks) < min(option.numprocesses, len(groups)):
            forks.append(start(session))  # `stop` ends those that were started when one fails
        while forks:
            wait([fork.pipe for fork in forks], POLL)
            for fork in [*forks]:
                if time.monotonic() > fork.shared[LATEST]:
                    os.kill(fork.pid, signal.SIGABRT)
                    fork.shared[LATEST] = math.inf
                status = serve(fork, session.config, queue)
                if status is not None:
                    forks.remove(fork)
                if status:
                    report_death(session, session.items[int(fork.shared[PRESENT])], status)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    finally:
        stop(forks)
    return True


@dataclass
class Fork:
    """A fork as its parent sees it: process, pipe, and the numbers that both share."""

    pid: int
    pipe: Connection
    shared: Any

    def end(self) -> int | None:
        """Its exit code, below zero for a signal; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def receive(self) -> Iterator[tuple[str, Any]]:
        """What it has sent until now."""
        with suppress(EOFError, ConnectionResetError):
            while self.pipe.poll():
                yield self.pipe.recv()


def serve(fork: Fork, config: pytest.Config, queue: Iterator[Sequence[int]]) -> int | None:
    """Report what a fork has sent, and give it the next group if it asks for one. Returns its exit code if it ended."""
    status, hook = fork.end(), config.hook
    for kind, content in fork.receive():
        if kind == "next":
            fork.pipe.send(next(queue, ()))
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=recorded(**content))
        else:
            for data in content:
                report = hook.pytest_report_from_serializable(config=config, data=data)
                hook.pytest_runtest_logreport(report=report)
    return status


def report_death(session: pytest.Session, item: pytest.Item, status: int) -> None:
    """End the run with the failure of the test that a fork ran when it died."""
    reason = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    died = f"a worker died ({reason}); tests that had not run by then were left out"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", died, "call")
    session.config.hook.pytest_runtest_logreport(report=report)
    pytest.exit(died, returncode=1)


def recorded(text: str, category: str, filename: str, lineno: int, **options: Any) -> dict[str, Any]:
    """The arguments of the hook of warnings; the class of the warning has only its name."""
    message = warnings.WarningMessage(text, type(category, (Warning,), {}), filename, lineno)
    return {"warning_message": message, **options}


def stop(forks: Sequence[Fork]) -> None:
    """Let forks end after their current tests; kill those that do not."""
    for fork in forks:
        fork.shared[STOP] = 1
    running, end = [*forks], time.monotonic() + STOP_GRACE
    while running and time.monotonic() < end:
        wait([fork.pipe for fork in running], POLL)
        for fork in [*running]:
            ended = fork.end() is not None
            for kind, _ in fork.receive():
                if kind == "next":
                    fork.pipe.send(())
            if ended:
                running.remove(fork)
    for fork in running:
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)


def start(session: pytest.Session) -> Fork:
    """Fork this process."""
    ours, theirs = Pipe()
    shared = RawArray("d", [0, math.inf, False])
    folder = session.config._tmp_path_factory.getbasetemp()  # which is made before the first fork
    if pid := os.fork():
        theirs.close()
        return Fork(pid, ours, shared)
    status = 1
    try:
        die_with_parent()
        ours.close()
        Worker(session, theirs, shared, folder).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


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


class Worker:
    """The plugin of a fork: it runs tests, and sends their reports and warnings."""

    def __init__(self, session: pytest.Session, pipe: Connection, shared: Any, folder: Path):
        self.session, self.pipe, self.shared, self.folder = session, pipe, shared, folder
        self.reports: list[dict[str, Any]] = []
        self.has_begun = False
        manager = session.config.pluginmanager
        if reporter := manager.unregister(name="terminalreporter"):
            manager.register(SimpleNamespace(_tw=reporter._tw), "terminalreporter")  # pytest-timeout writes there
        manager.register(self)  # which repeats the warnings of the collection
        self.has_begun = True
        capturing = manager.getplugin("capturemanager")._global_capturing
        for stream in (capturing.out, capturing.err):
            if isinstance(stream, FDCapture):  # libraries may hold its file, so another one takes its number
                with TemporaryFile() as own:
                    os.dup2(own.fileno(), stream.tmpfile.fileno())

    def run(self) -> None:
        """Run groups until there is none."""
        try:
            group = self.next_group()
            while group and not self.shared[STOP]:
                for number, following in pairwise(group):
                    self.run_test(number, following)
                following = self.next_group()
                self.run_test(group[-1], *following[:1])
                group = following
        finally:
            self.session._setupstate.teardown_exact(None)

    def next_group(self) -> Sequence[int]:
        """The numbers of the tests of another group, which has a folder of its own; none if all groups have begun."""
        self.pipe.send(("next", None))
        group = self.pipe.recv()
        folder = self.folder / "-".join(map(str, group[:1]))
        folder.mkdir(mode=0o700, exist_ok=True)
        self.session.config._tmp_path_factory._basetemp = folder  # in a long list of folders, a new name takes long
        return group

    def run_test(self, number: int, following: int | None = None) -> None:
        """Run a test, and send its reports."""
        if self.shared[STOP]:
            return
        items = self.session.items
        item, nextitem = items[number], None if following is None else items[following]
        self.shared[PRESENT], self.shared[LATEST] = number, time.monotonic() + seconds(item) + GRACE
        self.session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        self.shared[LATEST] = math.inf
        note_forks(item.nodeid)
        self.pipe.send(("reports", self.reports))
        self.reports = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until the test is over."""
        config = self.session.config
        self.reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Send a warning; its class may not exist in the parent."""
        if not self.has_begun:
            return
        content = {
            "text": str(warning_message.message),
            "category": warning_message.category.__name__,
            "filename": warning_message.filename,
            "lineno": warning_message.lineno,
        }
        self.pipe.send(("warning", {**content, "when": when, "nodeid": nodeid, "location": location}))
