"""Fork server of the stages: it has imported what every stage needs, and runs each stage as a fork of itself.

DVC stays the scheduler: the launcher, which DVC starts, requests a stage and waits. The server ends with the process
that it was started for, and a stage ends with the process that asked for it. It runs no code but the one on disk: when
a file that it has imported changes, it ends and the next stage starts another. It computes nothing itself, so that no
pool of threads of PyTorch and no GPU is in use when it forks.
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

from fedweave.pipelines.launching.freshness import imported_files, project_files, stamps
from fedweave.pipelines.launching.inheritance import fixed_variables, inherit, initial_environment
from fedweave.runs.parallel import die_with_parent
from fedweave.study.code import PACKAGE, digest, find_dependencies

STAGES = (
    "download", "partition", "names", "code", "graphs", "sources", "tune", "train", "evaluate", "ablate", "report",
)  # fmt: skip
PRELOADED = ("torch", "pandas", "pyarrow.parquet", "psutil", "fedweave.pipelines.stages.train")
ARROW = "JE_ARROW_MALLOC_CONF"  # variable with settings of the allocator that Arrow brings
IDLE = 120.0  # seconds without a stage after which the server ends
GRACE = 3.0  # seconds between asking a stage to end and killing it
PATIENCE = 5.0  # seconds that a client has to say what it wants

KEYS = {"token", "stage", "words", "parent", "cwd", "env", "umask", "ignored"}  # of a request


class Job(NamedTuple):
    """A running stage: its process, which leads a group, and the connection and the parent of the process that
    requested it.
    """

    process: int
    ended: int  # descriptor that becomes readable when the stage has ended
    link: socket.socket
    parent: int  # descriptor that becomes readable when the parent of the client has ended


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
        self.killing: dict[int, float] = {}  # process -> when it is killed, if it has not ended by then
        self.listening = True
        self.quit = False

    def serve(self) -> None:
        """Import, then serve until the owner ends, nobody asks any more, or the code on disk is another."""
        before = stamps(project_files())
        preload()
        self.code = stamps(imported_files()) | before
        gc.collect()
        gc.freeze()
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.owner, selectors.EVENT_READ, self._quit)
        while not self.quit and (self.jobs or self.listening):
            self._step()
        self._end_all()

    def _step(self) -> None:
        now = time.monotonic()
        wait = min([at - now for at in self.killing.values()], default=None if self.jobs else IDLE)
        events = self.selector.select(None if wait is None else max(0.0, wait))
        for key, _ in events:
            current = self.selector.get_map().get(key.fd)
            if current and current.data is key.data:  # an event before it may have ended its job
                key.data()
        for process, at in tuple(self.killing.items()):
            if at <= time.monotonic():
                _signal(process, signal.SIGKILL)
                self.killing[process] = time.monotonic() + GRACE
        if not events and not self.jobs:
            self._close()

    def _quit(self) -> None:
        self.quit = True

    def _close(self) -> None:
        """Take no more stages; the next client starts another server."""
        if self.listening:
            self.listening = False
            self.selector.unregister(self.listener)
            with suppress(OSError):
                Path(f"{self.path}.sock").unlink()
            self.listener.close()

    def _accept(self) -> None:
        link, _ = self.listener.accept()
        link.settimeout(PATIENCE)
        try:
            user = int.from_bytes(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
            packet, streams, _, _ = socket.recv_fds(link, 1 << 20, 3)
        except OSError:
            link.close()
            return
        try:
            self._answer(link, user, packet, streams)
        finally:
            for stream in streams:
                os.close(stream)

    def _answer(self, link: socket.socket, user: int, packet: bytes, streams: list[int]) -> None:
        """Start the stage that `packet` asks for, or say why not."""
        answer, request = b"refused", _parse_request(packet)
        if user == os.getuid() and request.get("token") == self.token and len(streams) == 3:
            if stamps(self.code) != self.code:
                self._close()
                answer = b"stale"
            elif self._is_compatible(request):
                with suppress(OSError):
                    self._start(link, request, streams)
                    answer = b"started"
        with suppress(OSError):
            link.send(answer)
        if answer != b"started":
            link.close()

    def _is_compatible(self, request: dict[str, Any]) -> bool:
        """Whether a fork of this process is what the client would have started."""
        mine, requested = (fixed_variables(environment) for environment in (self.environment, request["env"]))
        return request["stage"] in STAGES and mine == requested and request["cwd"] == str(Path.cwd())

    def _start(self, link: socket.socket, request: dict[str, Any], streams: list[int]) -> None:
        parent, server = os.pidfd_open(request["parent"]), os.getpid()
        process = os.fork()
        if not process:
            self._run_in_fork(server, link, parent, request, streams)
        with suppress(OSError):
            os.setpgid(process, process)
        link.setblocking(False)
        job = Job(process, os.pidfd_open(process), link, parent)
        self.jobs[process] = job
        self.selector.register(job.ended, selectors.EVENT_READ, lambda: self._finish(job))
        self.selector.register(link, selectors.EVENT_READ, lambda: self._forward_signals(job))
        self.selector.register(parent, selectors.EVENT_READ, lambda: self._end(job, job.parent))

    def _run_in_fork(
        self, server: int, link: socket.socket, parent: int, request: dict[str, Any], streams: list[int]
    ) -> NoReturn:
        """What the fork does: drop what is the server's, take what is the client's, run the stage."""
        try:
            die_with_parent()
            if os.getppid() != server:
                os._exit(1)
            self.selector.close()
            self.listener.close()
            link.close()
            for job in self.jobs.values():
                job.link.close()
            for descriptor in (
                self.owner,
                parent,
                *(place for job in self.jobs.values() for place in (job.ended, job.parent)),
            ):
                os.close(descriptor)
            inherit(request, streams)
            run_stage(request["stage"], request["words"])
        finally:
            os._exit(1)

    def _forward_signals(self, job: Job) -> None:
        """Pass on the client's signals; a client that has ended ends its stage."""
        try:
            numbers = job.link.recv(64)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        for number in numbers:
            _signal(job.process, number)
        if not numbers:
            self._end(job, job.link)

    def _end(self, job: Job, source: socket.socket | int) -> None:
        """Ask a stage to end, once; `source` is what said so, and is not looked at again."""
        self.selector.unregister(source)
        if job.process not in self.killing:
            self.killing[job.process] = time.monotonic() + GRACE
            _signal(job.process, signal.SIGTERM)
            _signal(job.process, signal.SIGCONT)

    def _finish(self, job: Job) -> None:
        """Report how a stage ended; what it has left of its process group goes with it."""
        _signal(job.process, signal.SIGKILL)
        _, status = os.waitpid(job.process, 0)
        for place in (job.ended, job.link, job.parent):
            with suppress(KeyError):
                self.selector.unregister(place)
        with suppress(OSError):
            job.link.send(str(os.waitstatus_to_exitcode(status)).encode())
        job.link.close()
        os.close(job.ended)
        os.close(job.parent)
        self.killing.pop(job.process, None)
        del self.jobs[job.process]

    def _end_all(self) -> None:
        """End what still runs, by force after `GRACE` seconds."""
        self._close()
        for number in (signal.SIGTERM, signal.SIGCONT):
            for process in self.jobs:
                _signal(process, number)
        over = time.monotonic() + GRACE
        while self.jobs and time.monotonic() < over:
            with selectors.DefaultSelector() as waiting:
                for job in self.jobs.values():
                    waiting.register(job.ended, selectors.EVENT_READ, job)
                for key, _ in waiting.select(max(0.0, over - time.monotonic())):
                    self._finish(key.data)
        for process in self.jobs:
            _signal(process, signal.SIGKILL)
        for end in ("sock", "token", "lock"):
            with suppress(OSError):
                Path(f"{self.path}.{end}").unlink()


def preload() -> None:
    """Import what stages share, without a thread of its own: Arrow's allocator would start one, which no fork has."""
    os.environ[ARROW] = "background_thread:false"
    for name in PRELOADED:
        importlib.import_module(name)
    digest(find_dependencies(PACKAGE.rglob("*.py")))  # read once, forks look at changes only
    del os.environ[ARROW]


def run_stage(name: str, words: list[str]) -> NoReturn:
    """Run the stage `name` in this process, as `python -m pipelines.NAME` does."""
    from fedweave.pipelines.processes import exit_process, run_main

    try:
        module = importlib.import_module(f"fedweave.pipelines.stages.{name}")
        sys.argv = [str(module.__file__), *words]
        main: Callable[..., None] = module.main
        run_main(main, *getattr(module, "FAILURES", ()))
    except SystemExit as end:
        exit_process(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        exit_process(1)


def _parse_request(packet: bytes) -> dict[str, Any]:
    """What a client asks for; empty where it is not what `fedweave.pipelines.launching.launcher` sends."""
    try:
        request = dict(json.loads(packet))
    except (ValueError, TypeError):
        return {}
    return request if KEYS <= request.keys() else {}


def _signal(process: int, number: int) -> None:
    """Send a signal to the group that `process` leads."""
    with suppress(ProcessLookupError):
        os.killpg(process, number)


def _start_time(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]


def main(path: str) -> None:
    """Serve on the socket that is this process's standard input."""
    listener = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Server(path, listener).serve()


if __name__ == "__main__":
    main(sys.argv[1])
