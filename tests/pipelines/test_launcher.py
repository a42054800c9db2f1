"""A stage and its fork server, when the server ends or refuses."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedweave.processes import fork_server
from tests.servers import ROOT, until


def server_path(folder: Path) -> Path:
    """The path of this process's server, without its ending."""
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    place = folder / ".fedweave" / "forkserver"
    place.mkdir(parents=True, mode=0o700)
    return place / f"{os.getpid()}-{started}"


def test_a_server_ends_with_its_owner_and_removes_its_own_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of older code closes its socket while stages still run; the next one is at the same path."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("server.sock")
    listener.listen()
    with subprocess.Popen(["true"]) as owner:
        assert fork_server.serve(listener, lambda request: "refused", os.pidfd_open(owner.pid))
    assert not Path("server.sock").exists()
    Path("server.sock").touch()
    fork_server._close(listener)
    assert Path("server.sock").exists()


CLIENT = """import json, os, socket, sys, time
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect("server.sock")
request = dict(words=["x"], parent=os.getppid(), cwd=os.getcwd(), env=dict(os.environ), umask=18, ignored=[])
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
assert server.recv(64) == b"started"
if sys.argv[1:]:
    sys.stdin.readline()
    server.send(bytes([int(sys.argv[1])]))
print(server.recv(64).decode(), flush=True)
"""


@pytest.mark.parametrize("way", ["exit", "signal", "client"])
def test_a_command_ends_by_itself_by_a_signal_and_with_its_client(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variables, output and exit code are those of a process that the client starts."""
    monkeypatch.chdir(tmp_path)
    program = (
        "import os, socket, sys, time; from fedweave.processes import fork_server\n"
        "def run():\n"
        "    os.write(1, f'{os.environ[\"MINE\"]} {os.getpid()}\\n'.encode())\n"
        "    time.sleep(0 if sys.argv[1] == 'exit' else 300)\n"
        "    sys.exit(7)\n"
        "listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "listener.bind('server.sock'); listener.listen(); print(flush=True)\n"
        "fork_server.serve(listener, lambda request: run)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", program, way], env=env, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            command = [sys.executable, "-c", CLIENT, *([str(int(signal.SIGTERM))] if way == "signal" else [])]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            client = subprocess.Popen(command, env={**env, "MINE": "x"}, **pipes, text=True)
            assert client.stdin is not None
            assert client.stdout is not None
            mine, process = client.stdout.readline().split()
            assert mine == "x"
            client.stdin.write("\n")  # the command has begun, so a signal may come
            client.stdin.flush()
            if way == "client":
                client.kill()
            else:
                assert client.stdout.readline().strip() == {"exit": "7", "signal": str(-signal.SIGTERM)}[way]
            assert until(lambda: not psutil.pid_exists(int(process)))
            client.wait(60)
        finally:
            server.kill()


def test_a_signal_is_kept_until_a_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the server is still importing. The server then refuses, and the stage must not run
    afterwards.
    """
    path = server_path(tmp_path)
    command = [sys.executable, "-IS", str(ROOT / "pipelines" / "launching" / "launcher.py"), "names"]
    env = {**os.environ, "FEDWEAVE_OWNER": str(os.getpid()), "PYTHONPATH": str(ROOT / "src")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        listener.bind(str(path.relative_to(tmp_path)) + ".sock")
        listener.listen()
        with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as stage:
            connection, _ = listener.accept()
            connection.recv(1 << 20)
            stage.send_signal(signal.SIGTERM)
            assert connection.recv(64) == bytes([signal.SIGTERM])
            time.sleep(0.2)
            connection.send(b"refused")
            assert stage.wait(60) == -signal.SIGTERM
    assert not (tmp_path / "data").exists()
