"""Run Flower's commands as forks of one process that has imported everything: `python -m ....fork_server FOLDER`.

Flower starts a process for each message, which would import PyTorch each time. Here `FOLDER/bin` has commands of the
same names; with it at the head of PATH, Flower's own programs start them, and each is forked in a few milliseconds.
"""

import array
import json
import os
import shlex
import signal
import socket
import sys
import threading
import traceback
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from fedweave.processes.signals import die_with_parent

COMMANDS = ("flwr-clientapp", "flwr-serverapp", "flower-superexec", "flower-supernode")
APPS = "fedweave.deployment.flower"
PRELOADED = ("torch", "fedweave.methods", f"{APPS}.client_app", f"{APPS}.server_app")
SOCKET = "socket"
# Standard library only, so that it starts at once. It sends its arguments, folder, environment and open files.
CODE = """import array, json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
text = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
server.sendmsg([len(text).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.sendall(text)
pid = server.recv(8)
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(int.from_bytes(pid, "big"), number))
code = server.recv(1)
sys.exit(code[0] if code else 137)
"""
# A line `#!PATH` cannot name a path with a space.
COMMAND = """#!/bin/sh
exec {python} -IS {code} "$0" "$@"
"""


def prepare(folder: Path) -> socket.socket:
    """Write the commands into `folder`, and return the socket to which they connect."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / "bin").mkdir(exist_ok=True)
    code = folder / "command.py"
    code.write_text(CODE.format(socket=str(folder / SOCKET)), encoding="utf-8")
    text = COMMAND.format(python=shlex.quote(sys.executable), code=shlex.quote(str(code)))
    for name in COMMANDS:
        path = folder / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX)
    (folder / SOCKET).unlink(missing_ok=True)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    return listener


def serve(folder: Path) -> None:
    """Run the commands that connect, until this process is ended. Running commands continue after that."""
    programs = {entry.name: entry for entry in entry_points(group="console_scripts") if entry.name in COMMANDS}
    for name in PRELOADED:
        import_module(name)
    functions = {name: entry.load() for name, entry in programs.items()}
    listener = prepare(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children
    while True:
        connection, _ = listener.accept()
        try:
            arguments, directory, environment, files = _receive_command(connection)
        except (OSError, ValueError):
            connection.close()
            continue
        if os.fork() == 0:
            listener.close()
            _run_command(connection, arguments, directory, environment, files, functions)
        connection.close()
        for file in files:
            os.close(file)


def _receive_command(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]]:
    """(arguments, working folder, environment, open files) of a command."""
    header, rights, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    files = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data)
    text, length = b"", int.from_bytes(header, "big")
    while len(text) < length:
        if not (part := connection.recv(length - len(text))):
            raise ValueError("the command has ended")
        text += part
    arguments, directory, environment = json.loads(text)
    return arguments, directory, environment, [*files]


def _run_command(
    connection: socket.socket,
    arguments: list[str],
    directory: str,
    environment: dict[str, str],
    files: list[int],
    functions: dict[str, Any],
) -> NoReturn:
    """Run the command in this fork, and send its exit code."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL)  # no fork outlives the host's other programs
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.setpgid(0, 0)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        connection.sendall(os.getpid().to_bytes(8, "big"))
        threading.Thread(target=_exit_on_disconnect, args=(connection,), daemon=True).start()
        functions[Path(arguments[0]).name]()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.sendall(bytes([code & 255]))
        finally:
            os._exit(code & 255)


def _exit_on_disconnect(connection: socket.socket) -> None:
    """End this fork when the process that started it is killed."""
    if not connection.recv(1):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
