"""Start of a stage: `python -IS pipelines/launching/launcher.py STAGE [ARGUMENT]`, the command of every stage in
dvc.yaml.

A fork server has PyTorch and the package imported and runs the stage as a fork of itself; the first stage of a `dvc
repro` starts it, see forkserver.py. Without a server, the stage runs as `python -m fedweave.pipelines.stages.STAGE`,
with the same results. Only the standard library is imported here, because every stage pays for it.
"""

# ruff: noqa: PTH103, PTH108, PTH109, PTH114, PTH123, PTH208
# pathlib would take longer to import than all of this.

import fcntl
import json
import os
import signal
import socket
import stat
import sys
from contextlib import suppress
from typing import NoReturn

FOLDER = ".fedweave/forkserver"  # relative, because the path of a socket must be short
OWNER = "FEDWEAVE_OWNER"  # variable: number of the process with which the fork server ends; default: the parent
MAX_REQUEST_BYTES = 150_000  # bytes of a request: the kernel's limit for one packet is 212,992
ATTEMPTS = 3  # to reach a server: one of older code ends, and the next attempt starts a new one
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
LOST_MESSAGE = "error: the process that ran this stage was killed; run the stage again"


def main() -> NoReturn:
    """Run the stage that the command line names, and exit as the stage does."""
    name, *arguments = sys.argv[1:]
    check_package()
    if sys.platform == "linux" and not os.environ.get("FEDWEAVE_DIRECT"):
        with suppress(OSError):
            _run_in_server(name, arguments)
    os.execv(sys.executable, [sys.executable, "-m", f"fedweave.pipelines.stages.{name}", *arguments])


def check_package() -> None:
    """Refuse to run a stage with another package than the one that DVC checks; a checkout has no link to a package."""
    if os.path.islink(".fedweave/packages/fedweave"):
        from fedweave.pipelines import linked

        if line := linked.difference():
            print(f"error: {line}", file=sys.stderr)
            sys.exit(2)


def _run_in_server(name: str, arguments: list[str]) -> None:
    """Run the stage in the fork server; returns without any effect if there is no server.

    Raises:
        OSError: this folder or this kernel cannot have one.
    """
    received: list[int] = []
    for _ in range(ATTEMPTS):
        path = _socket_path()
        connection = _connect(path)
        if not _send(connection, [name, *arguments], received):
            return
        answer = connection.recv(64)
        if answer == b"started":
            _follow(connection)
        _restore_signals()
        for number in received:  # no stage has got them
            os.kill(os.getpid(), number)
        if answer != b"stale":
            return


def _socket_path() -> str:
    """The path of the owner's socket, without its ending, in a folder that only this user can access.

    Raises:
        OSError: the folder belongs to another user, or there is no such owner.
    """
    os.makedirs(FOLDER, mode=0o700, exist_ok=True)
    status = os.lstat(FOLDER)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(FOLDER)
    owner = int(os.environ.get(OWNER) or os.getppid())
    return f"{FOLDER}/{owner}-{start_time(owner)}"


def start_time(process: int) -> str:
    """When `process` started, in ticks since the machine's start. With its number this identifies a process."""
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _connect(path: str) -> socket.socket:
    """A connection to the server at `path`, which is started if it is not there."""
    with open(f"{path}.lock", "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(f"{path}.sock")
        except (FileNotFoundError, ConnectionRefusedError):
            _start(path)
            connection.connect(f"{path}.sock")
    return connection


def _start(path: str) -> None:
    """Start a server that listens at `path`, with the socket as its standard input."""
    _remove_stale_files()
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}.sock")
        listener.listen(64)
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, listener.fileno(), 0),
            *((os.POSIX_SPAWN_DUP2, null, descriptor) for descriptor in (1, 2)),
        ]
        command = [sys.executable, "-m", "fedweave.pipelines.launching.forkserver", path]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
        os.close(null)


def _remove_stale_files() -> None:
    """Remove the files of servers whose owners have ended."""
    for name in os.listdir(FOLDER):
        owner, _, started = name.partition(".")[0].partition("-")
        try:
            is_stale = start_time(int(owner)) != started
        except (OSError, ValueError):
            is_stale = True
        if is_stale:
            with suppress(OSError):
                os.unlink(f"{FOLDER}/{name}")


def _send(connection: socket.socket, words: list[str], received: list[int]) -> bool:
    """Send the words of a stage with all that a process inherits; False if that is too large for one packet.

    The standard streams are sent too. From now on, signals are sent on to the stage, and those that may end it are
    added to `received`.
    """
    mask = os.umask(0o022)
    os.umask(mask)
    ignored = [int(number) for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
    request = {"words": words, "parent": os.getppid(), "cwd": os.getcwd(), "env": dict(os.environ)}
    packet = json.dumps({**request, "umask": mask, "ignored": ignored}).encode()
    if len(packet) > MAX_REQUEST_BYTES:
        return False
    for number in set(FORWARDED) - set(ignored):
        signal.signal(number, lambda number, _: _forward(connection, number, received))
    try:
        socket.send_fds(connection, [packet], [0, 1, 2])
    except OSError:
        _restore_signals()
        return False
    return True


def _forward(connection: socket.socket, number: int, received: list[int]) -> None:
    """Send a signal on to the stage, which ends before this process."""
    with suppress(OSError):
        connection.send(bytes([signal.SIGSTOP if number == signal.SIGTSTP else number]))
    if number == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif number != signal.SIGCONT:
        received.append(number)


def _restore_signals() -> None:
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _follow(connection: socket.socket) -> NoReturn:
    """Wait for the stage and end as it ended: with its exit code, or by the signal that killed it."""
    answer = b""
    with suppress(OSError):  # a server that was killed has not read all signals
        answer = connection.recv(64)
    if not answer:
        sys.exit(LOST_MESSAGE)
    code = int(answer)
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
