"""Commands as forks of one process that has imported what they need.

A client sends the words of a command with all that a process inherits from its parent, and waits. It gets "started" or
a refusal, and at the end the exit code, below zero for a signal. What it sends meanwhile are numbers of signals, for
the process group that the command leads. The command ends with its client, with the process that started the client,
and with the server.
"""

import json
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from fedweave.processes.signals import die_with_parent

STALE = "stale"  # the answer of a server that ends: the next client starts another one
GRACE = 3.0  # seconds between asking a command to end and killing it
REQUEST_TIMEOUT = 5.0  # seconds that a client has to send its request
MAX_REQUEST_BYTES = 1 << 20

Request = dict[str, Any]  # words, parent (a process), cwd, env, umask, ignored (signals)


@dataclass(eq=False)
class Job:
    """A running command.

    Attributes:
        process: leads a process group.
        connection: to the client.
        parent: descriptor that becomes readable when the process that started the client has ended.
        kill_at: when it is killed, since it was asked to end.
    """

    process: int
    connection: socket.socket
    parent: int
    kill_at: float = math.inf

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, number)

    def pass_signals(self) -> bool:
        """Send the signals that the client has sent on; returns whether the client is still there."""
        try:
            numbers = self.connection.recv(64)
        except OSError:
            numbers = b""
        for number in numbers:
            self.signal(number)
        return bool(numbers)

    def end(self, number: int) -> None:
        """Send a signal, also to a command that is stopped, and SIGKILL later."""
        self.signal(number)
        self.signal(signal.SIGCONT)
        self.kill_at = time.monotonic() + GRACE

    def finish(self) -> None:
        """Tell the client how the command has ended, and kill the rest of the process group."""
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        with suppress(OSError):
            self.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        self.connection.close()
        os.close(self.parent)


def serve(
    listener: socket.socket,
    answer: Callable[[Request], Callable[[], object] | str],
    owner: int | None = None,
    idle: float | None = None,
    death: int = signal.SIGTERM,
) -> bool:
    """Run the commands that clients ask for; returns whether the owner has ended.

    Args:
        listener: a Unix socket of packets, whose file is removed at the end.
        answer: gives what a fork runs for a request, or a word with which it is refused.
        owner: descriptor of a process with which the server ends.
        idle: seconds without a command after which it ends; default: never.
        death: the signal that commands get if their client or the server is killed.
    """
    jobs: dict[int, Job] = {}  # by a descriptor that becomes readable when the command has ended
    has_ended = False
    while jobs or listener.fileno() >= 0:
        watched = [job for job in jobs.values() if job.kill_at == math.inf]
        waiting: list[Any] = [*jobs, *(end for job in watched for end in (job.connection, job.parent))]
        waiting += [] if owner is None else [owner]
        waiting += [listener] if listener.fileno() >= 0 else []
        timeout = (None if jobs else idle) if len(watched) == len(jobs) else GRACE
        ready = {*wait(waiting, timeout)}
        if owner is not None and owner in ready:
            has_ended, owner = True, None
            _close(listener)
            for job in jobs.values():
                job.end(signal.SIGTERM)
        for job in watched:
            if job.parent in ready or (job.connection in ready and not job.pass_signals()):
                job.end(death)
        for descriptor, job in [*jobs.items()]:
            if descriptor in ready:
                os.close(descriptor)
                jobs.pop(descriptor).finish()
            elif time.monotonic() >= job.kill_at:
                job.signal(signal.SIGKILL)
        if listener in ready and listener.fileno() >= 0:
            _accept(listener, answer, jobs, death)
        elif not ready and not jobs:
            _close(listener)
    return has_ended


def _close(listener: socket.socket) -> None:
    """Accept no more commands; the file may be that of the next server if this was done before."""
    if listener.fileno() >= 0:
        Path(listener.getsockname()).unlink(missing_ok=True)
        listener.close()


def _accept(
    listener: socket.socket, answer: Callable[[Request], Callable[[], object] | str], jobs: dict[int, Job], death: int
) -> None:
    """Start the command of a client, or refuse it by a word."""
    connection, _ = listener.accept()
    connection.settimeout(REQUEST_TIMEOUT)
    files: list[int] = []
    try:
        packet, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        request = json.loads(packet)
        run = answer(request)
        if not isinstance(run, str):
            _start(request, run, connection, files, listener, jobs, death)
            return
        if run == STALE:
            _close(listener)
        connection.send(run.encode())
        connection.close()
    except (OSError, ValueError, KeyError, TypeError):  # it is no client, or has ended
        connection.close()
    finally:
        for file in files:
            os.close(file)


def _start(
    request: Request,
    run: Callable[[], object],
    connection: socket.socket,
    files: list[int],
    listener: socket.socket,
    jobs: dict[int, Job],
    death: int,
) -> None:
    parent, server = os.pidfd_open(request["parent"]), os.getpid()
    process = os.fork()
    if not process:
        try:
            die_with_parent(death)
            if os.getppid() != server:
                os._exit(1)
            for end in (listener, connection, *(job.connection for job in jobs.values())):
                end.close()
            for descriptor in (parent, *jobs, *(job.parent for job in jobs.values())):
                os.close(descriptor)
            inherit(request, files)
            _run(run)
        finally:
            os._exit(1)
    with suppress(OSError):  # the fork does it too, and may have ended
        os.setpgid(process, process)
    jobs[os.pidfd_open(process)] = Job(process, connection, parent)
    with suppress(OSError):
        connection.send(b"started")


def initial_environment() -> dict[str, str]:
    """The environment that this process was started with, without its own later changes."""
    lines = (line.partition(b"=") for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in lines}


def inherit(request: Request, files: list[int]) -> None:
    """Take over streams, folder, variables, umask and ignored signals of the client, and lead a new process group."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    before, environment = initial_environment(), request["env"]
    for name in before.keys() - environment.keys():
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in environment.items() if before.get(name) != value})
    ignored = {*request["ignored"]}
    signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGINT in ignored else signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]


def _run(run: Callable[[], object]) -> NoReturn:
    code: object = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255 if isinstance(code, int) else int(code is not None))
