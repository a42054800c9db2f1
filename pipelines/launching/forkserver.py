"""Fork server of the stages: it has imported what every stage needs, and runs each stage as a fork of itself.

DVC stays the scheduler: the launcher, which DVC starts, requests a stage and waits. The server ends with the process
that it was started for, and a stage ends with the process that requested it. The server runs only the code that is on
disk: when a file that it has imported changes, it ends, and the next stage starts another server. It computes nothing
itself, so that no thread pool of PyTorch and no GPU is in use when it forks.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedweave.processes.signals import die_with_parent
from fedweave.study.code import PACKAGE, digest, find_dependencies

from .freshness import imported_files, project_files, stamps
from .inheritance import fixed_variables, inherit, initial_environment

STAGES = (
    "download",
    "partition",
    "names",
    "code",
    "graphs",
    "sources",
    "tune",
    "train",
    "evaluate",
    "ablate",
    "report",
)
PRELOADED = ("torch", "pandas", "pyarrow.parquet", "psutil", "fedweave.pipelines.stages.train")
ARROW = "JE_ARROW_MALLOC_CONF"  # variable with settings of the allocator that Arrow brings
IDLE_TIMEOUT = 120.0  # seconds without a stage after which the server ends
GRACE = 3.0  # seconds between asking a stage to end and killing it
REQUEST_TIMEOUT = 5.0  # seconds that a client has to send its request

REQUEST_KEYS = {"token", "stage", "words", "parent", "cwd", "env", "umask", "ignored"}


class Job(NamedTuple):
    """A running stage, whose process leads a process group, and the client that requested it."""

    process: int
    exit_pidfd: int  # descriptor that becomes readable when the stage has ended
    connection: socket.socket  # to the client
    parent_pidfd: int  # descriptor that becomes readable when the parent of the client has ended


class Server:
    """The fork server behind the listening socket `listener`."""

    def __init__(self, path: str, listener: socket.socket) -> None:
        self.path = path
        self.listener = listener
        owner, _, started = Path(path).name.partition("-")
        self.owner = os.pidfd_open(int(owner))
        if _start_time(int(owner)) != started:
            raise ProcessLookupError(owner)
        self.token = Path(f"{path}.token").read_text(encoding="ascii")
        self.environment = initial_environment()
        self.selector = selectors.DefaultSelector()
        self.jobs: dict[int, Job] = {}
        self.kill_times: dict[int, float] = {}  # process -> time at which it is killed if it still runs
        self.listening = True
        self.quit = False

    def serve(self) -> None:
        """Import, then serve until the owner ends, no request comes for `IDLE_TIMEOUT`, or the code on disk changes."""
        project_stamps = stamps(project_files())
        gc.disable()  # imports make no garbage, and the search for it takes a fifth of their time
        preload()
        self.code = stamps(imported_files()) | project_stamps
        gc.freeze()
        gc.enable()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.owner, selectors.EVENT_READ, self._quit)
        while not self.quit and (self.jobs or self.listening):
            self._step()
        self._end_all()

    def _step(self) -> None:
        now = time.monotonic()
        timeout = min([at - now for at in self.kill_times.values()], default=None if self.jobs else IDLE_TIMEOUT)
        events = self.selector.select(None if timeout is None else max(0.0, timeout))
        for key, _ in events:
            current = self.selector.get_map().get(key.fd)
            if current and current.data is key.data:  # an earlier event of this loop may have ended its job
                key.data()
        for process, at in tuple(self.kill_times.items()):
            if at <= time.monotonic():
                _signal(process, signal.SIGKILL)
                self.kill_times[process] = time.monotonic() + GRACE
        if not events and not self.jobs:
            self._close()

    def _quit(self) -> None:
        self.quit = True

    def _close(self) -> None:
        """Accept no more stages; the next client starts another server."""
        if self.listening:
            self.listening = False
            self.selector.unregister(self.listener)
            with suppress(OSError):
                Path(f"{self.path}.sock").unlink()
            self.listener.close()

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(REQUEST_TIMEOUT)
        try:
            user = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
            packet, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        except OSError:
            connection.close()
            return
        try:
            self._answer(connection, user, packet, streams)
        finally:
            for stream in streams:
                os.close(stream)

    def _answer(self, connection: socket.socket, user: int, packet: bytes, streams: list[int]) -> None:
        """Start the stage that `packet` requests; answer "started", "stale" or "refused"."""
        answer, request = b"refused", _parse_request(packet)
        if user == os.getuid() and request.get("token") == self.token and len(streams) == 3:
            if stamps(self.code) != self.code:
                self._close()
                answer = b"stale"
            elif self._is_compatible(request):
                with suppress(OSError):
                    self._start(connection, request, streams)
                    answer = b"started"
        with suppress(OSError):
            connection.send(answer)
        if answer != b"started":
            connection.close()

    def _is_compatible(self, request: dict[str, Any]) -> bool:
        """Whether a fork of this process is equivalent to a process that the client would start."""
        own, client = (fixed_variables(environment) for environment in (self.environment, request["env"]))
        return request["stage"] in STAGES and own == client and request["cwd"] == str(Path.cwd())

    def _start(self, connection: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
        parent, server = os.pidfd_open(request["parent"]), os.getpid()
        process = os.fork()
        if not process:
            self._run_in_fork(server, connection, parent, request, streams)
        with suppress(OSError):
            os.setpgid(process, process)
        connection.setblocking(False)
        job = Job(process, os.pidfd_open(process), connection, parent)
        self.jobs[process] = job
        self.selector.register(job.exit_pidfd, selectors.EVENT_READ, lambda: self._finish(job))
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._forward_signals(job))
        self.selector.register(parent, selectors.EVENT_READ, lambda: self._end(job, job.parent_pidfd))

    def _run_in_fork(
        self, server: int, connection: socket.socket, parent: int, request: dict[str, Any], streams: list[int]
    ) -> NoReturn:
        """In the fork: close the server's descriptors, inherit the client's environment, run the stage."""
        try:
            die_with_parent()
            if os.getppid() != server:
                os._exit(1)
            self.selector.close()
            self.listener.close()
            connection.close()
            for job in self.jobs.values():
                job.connection.close()
            for descriptor in (
                self.owner,
                parent,
                *(pidfd for job in self.jobs.values() for pidfd in (job.exit_pidfd, job.parent_pidfd)),
            ):
                os.close(descriptor)
            inherit(request, streams)
            run_stage(request["stage"], request["words"])
        finally:
            os._exit(1)

    def _forward_signals(self, job: Job) -> None:
        """Send the client's signals on to its stage; end the stage of a client that has ended."""
        try:
            numbers = job.connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        for number in numbers:
            _signal(job.process, number)
        if not numbers:
            self._end(job, job.connection)

    def _end(self, job: Job, source: socket.socket | int) -> None:
        """Send SIGTERM to a stage, once; `source` is the event's descriptor or socket, which is no longer watched."""
        self.selector.unregister(source)
        if job.process not in self.kill_times:
            self.kill_times[job.process] = time.monotonic() + GRACE
            _signal(job.process, signal.SIGTERM)
            _signal(job.process, signal.SIGCONT)

    def _finish(self, job: Job) -> None:
        """Report how a stage ended, and kill the rest of its process group."""
        _signal(job.process, signal.SIGKILL)
        _, status = os.waitpid(job.process, 0)
        for source in (job.exit_pidfd, job.connection, job.parent_pidfd):
            with suppress(KeyError):
                self.selector.unregister(source)
        with suppress(OSError):
            job.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        job.connection.close()
        os.close(job.exit_pidfd)
        os.close(job.parent_pidfd)
        self.kill_times.pop(job.process, None)
        del self.jobs[job.process]

    def _end_all(self) -> None:
        """End the stages that still run, by SIGKILL after `GRACE` seconds, and remove the server's files.

        While the owner runs, the files may already be those of the next server, which has the same path.
        """
        self._close()
        for number in (signal.SIGTERM, signal.SIGCONT):
            for process in self.jobs:
                _signal(process, number)
        deadline = time.monotonic() + GRACE
        while self.jobs and time.monotonic() < deadline:
            with selectors.DefaultSelector() as selector:
                for job in self.jobs.values():
                    selector.register(job.exit_pidfd, selectors.EVENT_READ, job)
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    self._finish(key.data)
        for process in self.jobs:
            _signal(process, signal.SIGKILL)
        for ending in ("sock", "token", "lock") if self.quit else ():
            with suppress(OSError):
                Path(f"{self.path}.{ending}").unlink()


def preload() -> None:
    """Import what stages share, without starting a thread, because a fork has only the thread that forks.

    Arrow's allocator would start one in the background.
    """
    os.environ[ARROW] = "background_thread:false"
    for name in PRELOADED:
        importlib.import_module(name)
    digest(find_dependencies(PACKAGE.rglob("*.py")))  # fills a cache, so that forks read changed files only
    del os.environ[ARROW]


def run_stage(name: str, arguments: list[str]) -> NoReturn:
    """Run the stage `name` in this process, as `python -m pipelines.NAME` does."""
    from ..processes import exit_process, run_main

    try:
        module = importlib.import_module(f"fedweave.pipelines.stages.{name}")
        sys.argv = [str(module.__file__), *arguments]
        main: Callable[..., None] = module.main
        run_main(main, *getattr(module, "FAILURES", ()))
    except SystemExit as end:
        exit_process(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        exit_process(1)


def _parse_request(packet: bytes) -> dict[str, Any]:
    """The request in `packet`; empty if it is not of the form that `fedweave.pipelines.launching.launcher` sends."""
    try:
        request = dict(json.loads(packet))
    except (ValueError, TypeError):
        return {}
    return request if REQUEST_KEYS <= request.keys() else {}


def _signal(process: int, number: int) -> None:
    """Send a signal to the group that `process` leads."""
    with suppress(ProcessLookupError):
        os.killpg(process, number)


def _start_time(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]


def main(path: str) -> None:
    """Serve at `path`, on the listening socket that is this process's standard input."""
    listener = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Server(path, listener).serve()


if __name__ == "__main__":
    main(sys.argv[1])
