"""A stage and its fork server, when the server ends or refuses."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedweave.pipelines.launching import forkserver
from tests.servers import ROOT


def server_path(folder: Path) -> Path:
    """The path of this process's server, without its ending."""
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    place = folder / ".fedweave" / "forkserver"
    place.mkdir(parents=True, mode=0o700)
    return place / f"{os.getpid()}-{started}"


@pytest.mark.parametrize("owner_has_ended", [True, False])
def test_a_server_does_not_remove_the_files_of_the_next_one(tmp_path: Path, owner_has_ended: bool) -> None:
    """It ends because its owner ended, or because the code has changed. Then the next server is at the same path."""
    path = server_path(tmp_path)
    server = object.__new__(forkserver.Server)
    server.path, server.jobs, server.listening, server.quit = str(path), {}, False, owner_has_ended
    files = [Path(f"{path}.{ending}") for ending in ("sock", "token", "lock")]
    for file in files:
        file.touch()
    server._end_all()
    assert [file.exists() for file in files] == [not owner_has_ended] * 3


def test_a_signal_is_kept_until_a_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the server is still importing. The server then refuses, and the stage must not run
    afterwards.
    """
    path = server_path(tmp_path)
    Path(f"{path}.token").write_text("secret")
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
