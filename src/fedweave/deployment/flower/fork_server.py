"""Run Flower's commands as forks of one process that has imported everything: `python -m ....fork_server FOLDER`.

Flower starts a process for each message, which would import PyTorch each time. Here `FOLDER/bin` has commands of the
same names; with it at the head of PATH, Flower's own programs start them, and each is forked in a few milliseconds.
"""

import resource
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from fedweave.processes import fork_server

COMMANDS = ("flwr-clientapp", "flwr-serverapp", "flower-superexec", "flower-supernode")
APPS = "fedweave.deployment.flower"
PRELOADED = ("torch", "fedweave.methods", f"{APPS}.client_app", f"{APPS}.server_app")
SOCKET = "socket"
# Standard library only, so that it starts at once.
CODE = """import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({socket!r})
mask = os.umask(18)
request = dict(words=sys.argv[1:], parent=os.getppid(), cwd=os.getcwd(), env=dict(os.environ), umask=mask, ignored=[])
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
server.recv(64)
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
try:
    code = int(server.recv(64) or 137)
except OSError:
    code = 137
sys.exit(code if code >= 0 else 128 - code)
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
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (folder / SOCKET).unlink(missing_ok=True)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    return listener


def serve(folder: Path) -> None:
    """Run the commands that connect, until this process is ended."""
    programs = {entry.name: entry for entry in entry_points(group="console_scripts") if entry.name in COMMANDS}
    for name in PRELOADED:
        import_module(name)
    functions = {name: entry.load() for name, entry in programs.items()}

    def answer(request: fork_server.Request) -> Callable[[], object]:
        function: Callable[[], object] = functions[Path(request["words"][0]).name]

        def run() -> None:
            sys.argv = request["words"]
            function()

        return run

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three for each command
    # No fork outlives the host's other programs.
    fork_server.serve(prepare(folder), answer, death=signal.SIGKILL)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
