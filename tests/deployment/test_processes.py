"""Programs that a command of a federation starts end with it; commands of the fork server; folders of one process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fedweave.deployment.__main__ import main
from fedweave.deployment.server.checkpoint import lock_folder
from fedweave.deployment.wire import status
from fedweave.errors import BadInput
from tests.servers import alive, until

pytest.importorskip("cryptography")

# Like `simulate` and `node`: a folder in /tmp, and a program in a session of its own.
STARTS = """
import signal, sys, tempfile, time
signal.signal(signal.SIGHUP, signal.Handlers(int(sys.argv[2])))  # the tests themselves may run under nohup
signal.signal(signal.SIGINT, signal.default_int_handler)  # or in the background of a shell
from pathlib import Path
from fedweave.deployment.flower.processes import Host
from fedweave.deployment.flower.supervise import exit_on_signals

host = Host(Path(sys.argv[1]), "127.0.0.1:1", Path("ca.crt"))
with exit_on_signals(), tempfile.TemporaryDirectory(dir=sys.argv[1], prefix="short-") as short:
    try:
        child = host.start("sleep", ["sleep", "300"])
        print(child.pid, flush=True)
        while True:
            time.sleep(0.1)  # as these commands do: a signal just before one long sleep would be handled after it
    finally:
        host.close()
"""

SUPERVISES = """
import runpy, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
runpy.run_module("fedweave.deployment.flower.supervise", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_programs_end_with_the_command_that_started_them(number, tmp_path):
    """Only a kill leaves the folder in /tmp. No program remains in any case."""
    arguments = [sys.executable, "-c", STARTS, tmp_path, str(int(signal.SIG_DFL))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as command:
        child = int(command.stdout.readline())
        command.send_signal(number)
        code = command.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert until(lambda: not alive(child))
    assert bool([*tmp_path.glob("short-*")]) == (number == signal.SIGKILL)


def test_a_command_with_nohup_continues(tmp_path):
    arguments = [sys.executable, "-c", STARTS, tmp_path, str(int(signal.SIG_IGN))]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as one:
        one.stdout.readline()
        one.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(1)
        one.terminate()
    assert one.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_supervised_program_ends_with_its_supervisor(number):
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    arguments = [sys.executable, "-c", SUPERVISES, sys.executable, "-c", script]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as supervisor:
        child = int(supervisor.stdout.readline())
        supervisor.send_signal(number)
        assert supervisor.wait(60) == 0
    assert until(lambda: not alive(child))


def test_commands_of_the_fork_server_in_folders_with_spaces(tmp_path, monkeypatch):
    """A first line `#!PATH` cannot name such a path."""
    from fedweave.deployment.flower import fork_server

    python = tmp_path / "a folder" / "it's python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sys, "executable", str(python))
    listener = fork_server.prepare(tmp_path / "short name")
    received = []

    def answer() -> None:
        connection, _ = listener.accept()
        packet, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        request = json.loads(packet)
        received.extend([request["words"], request["cwd"], request["env"]["MINE"]])
        os.write(files[1], b"said")
        [os.close(file) for file in files]
        connection.send(b"started")
        connection.send(b"7")
        connection.close()

    server = threading.Thread(target=answer, daemon=True)
    server.start()
    command = tmp_path / "short name" / "bin" / "flwr-clientapp"
    done = subprocess.run(
        [command, "--a", "b c"],
        cwd=tmp_path,
        env={"MINE": "x", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    server.join(60)
    listener.close()
    assert (done.returncode, done.stdout, done.stderr) == (7, "said", "")
    assert received == [[str(command), "--a", "b c"], str(tmp_path), "x"]


SERVER = """
import os, signal, sys, time
from pathlib import Path
from fedweave.deployment.flower.fork_server import prepare
from fedweave.processes.fork_server import serve

def run():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("asked").touch()))
    Path("begun").write_text(str(os.getpid()))
    time.sleep(300)

serve(prepare(Path("server")), lambda request: run, death=int(sys.argv[1]))
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_as_its_client_when_that_is_killed(death, tmp_path, monkeypatch):
    """A node of Flower that is killed must not take its leave of the server."""
    monkeypatch.chdir(tmp_path)
    begun = tmp_path / "begun"
    with subprocess.Popen([sys.executable, "-c", SERVER, str(int(death))]) as server:
        assert until((tmp_path / "server" / "socket").exists)
        with subprocess.Popen([tmp_path / "server" / "bin" / "flower-supernode"]) as client:
            assert until(lambda: begun.exists() and begun.read_text())
            client.kill()
        assert until(lambda: not alive(int(begun.read_text())))
        server.kill()
    assert (tmp_path / "asked").exists() == (death == signal.SIGTERM)


def test_a_folder_belongs_to_one_server_at_a_time(tmp_path):
    """Another process is refused while the first one uses the folder, and accepted after the first one was killed."""
    code = (
        "import sys, time; from pathlib import Path; from fedweave.deployment.server.checkpoint import lock_folder\n"
        "with lock_folder(Path(sys.argv[1]), 'w'): print('in', flush=True); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "server"], stdout=subprocess.PIPE) as first:
        first.stdout.readline()
        refused = pytest.raises(BadInput, match=r"server: another federation is running in it; wait for its end")
        with refused, lock_folder(tmp_path / "server", "wait for its end"):
            pass
        first.kill()
    with lock_folder(tmp_path / "server", "wait for its end"):
        pass


def test_the_next_server_waits_for_the_end_of_the_previous_one(tmp_path):
    """It waits while the other server uses the folder, and then uses it. With a shorter time limit it is refused."""
    order = []

    def wait() -> None:
        with lock_folder(tmp_path, "wait for its end", wait=300.0):
            order.append("second")

    second = threading.Thread(target=wait)
    with lock_folder(tmp_path, "wait for its end"):
        second.start()
        with pytest.raises(BadInput, match="another federation is running"), lock_folder(tmp_path, "wait", wait=1.0):
            pass
        order.append("first")
    second.join(60)
    assert order == ["first", "second"]


class Runs:
    """A host whose SuperLink reports a failed run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, {"superlink": self}

    def poll(self) -> None:
        return None

    def run_flwr(self, *arguments: str) -> str:
        assert arguments[0] == "list"
        return 'Listing\n{"runs": [{"run-id": "5", "status": "finished:failed", "status-details": "no app"}]}'


def test_a_superlink_that_was_killed_is_started_by_the_same_command(tmp_path, monkeypatch):
    """The federation goes on from its last checkpoint."""
    from fedweave.deployment.flower import run_monitor

    monkeypatch.setattr(Runs, "poll", lambda _: -9)
    with pytest.raises(BadInput, match=r"^the SuperLink has ended; see .*superlink.log, and run it again$"):
        run_monitor.follow(tmp_path, Runs(tmp_path), "5")


def test_a_run_whose_server_ended_without_a_message_is_not_waited_for(tmp_path, monkeypatch):
    """It wrote no status, or only an earlier run did. It was killed after it wrote one. It reported a failure."""
    from fedweave.deployment.flower import run_monitor

    monkeypatch.setattr(run_monitor, "QUERY_INTERVAL", 0.1)
    with pytest.raises(BadInput, match=r"the run has ended \(finished:failed: no app\); see .*superlink.log"):
        run_monitor.follow(tmp_path, Runs(tmp_path), "5")
    status.Status(tmp_path, "4").write("finished", "the run before")
    with pytest.raises(BadInput, match="the run has ended"):
        run_monitor.follow(tmp_path, Runs(tmp_path), "5")
    written = status.Status(tmp_path, "5", 3)
    monkeypatch.setattr(status.os, "getpid", lambda: 2**22 + 1)
    written.write("running", "round 1")
    with pytest.raises(BadInput, match=r"the server of the federation was killed; see .*superlink.log"):
        run_monitor.follow(tmp_path, Runs(tmp_path), "5")
    written.write("failed", "BadInput: no client")
    with pytest.raises(BadInput, match="the federation has failed: BadInput: no client"):
        run_monitor.follow(tmp_path, Runs(tmp_path), "5")
    written.write("finished", "3 rounds")
    assert run_monitor.follow(tmp_path, Runs(tmp_path), "5")["state"] == "finished"


def test_the_bar_has_the_number_of_rounds_before_the_server_writes_it(tmp_path, capsys, monkeypatch):
    """While the server waits for clients, it has written 0 of 0 rounds. The last line says how long all took."""
    errors = follow_three_rounds(tmp_path, capsys, monkeypatch, terminal=True)
    assert "| 0/3 [" in errors
    assert "| 3/3 [" in errors
    assert "3 rounds in a few seconds\n" in errors


def test_a_log_has_lines_and_no_bar(tmp_path, capsys, monkeypatch):
    assert follow_three_rounds(tmp_path, capsys, monkeypatch, terminal=False) == "3 rounds in a few seconds\n"


def test_the_time_to_go_is_that_of_the_rounds_alone(monkeypatch):
    """The start of the nodes, an hour, comes before the first round. A line is due early and at each quarter."""
    from fedweave.deployment.flower import run_monitor

    clock = [0.0]
    monkeypatch.setattr(run_monitor.time, "monotonic", lambda: clock[0])
    lines = run_monitor._Lines(0.0)
    said = {}
    for done in range(101):
        clock[0] = 3600.0 + 60 * done if done else 0.0
        said[done] = lines.next_line(done, 100, True)
    assert {done: line for done, line in said.items() if line} == {
        2: "round 2 of 100: about 1.6 h to go",
        28: "round 28 of 100: about 72 min to go",
        54: "round 54 of 100: about 46 min to go",
        80: "round 80 of 100: about 20 min to go",
        100: "100 rounds in about 2.7 h",
    }


def follow_three_rounds(tmp_path, capsys, monkeypatch, terminal):
    """What the errors have of a federation that waits for clients, and ends a second after its last round."""
    from fedweave.deployment.flower import run_monitor

    monkeypatch.setattr(run_monitor.sys.stderr, "isatty", lambda: terminal, raising=False)
    written = status.Status(tmp_path, "5")
    written.write("starting", "waiting for clients")
    done = replace(written, rounds=3, round=3)
    steps = [threading.Timer(0.5, done.write, ("running", "")), threading.Timer(1.5, done.write, ("finished", ""))]
    for step in steps:
        step.start()
    run_monitor.follow(tmp_path, Runs(tmp_path), "5", rounds=3)
    for step in steps:
        step.join()
    return capsys.readouterr().err


def test_a_superlink_that_does_not_answer_gets_the_request_again(tmp_path, monkeypatch):
    from fedweave.deployment.flower.run_monitor import run_state

    host = Runs(tmp_path)
    assert run_state(host, "5") == ("finished:failed", "no app")
    assert run_state(host, "6") == ("", "")

    def busy(*arguments: str) -> str:
        raise BadInput("flwr list: no answer")

    monkeypatch.setattr(host, "run_flwr", busy)
    assert run_state(host, "5") == ("", "")


HASH = "3f2a9c41d07be865"
NODES = {
    "data": (["--data", "absent.pt"], "--data: absent.pt: not found; write it with"),
    "folder": (["--data", "."], f"--data: {HASH}.pt: not found, or no file"),
    "damaged": (["--data", "key"], "key: damaged"),
    "short": (["--spec", "3f2a"], "--spec: '3f2a' is not a hash of 16 to 64"),
    "word": (["--spec", "readme-of-the-app-"], "--spec: 'readme-of-the-app-' is not a hash"),
    "second": (["--spec", f"{HASH},zz"], "--spec: 'zz' is not a hash"),
    "empty": (["--spec", ""], "--spec: '' is not a hash"),
    "address": (["--superlink", "fl.example.org"], "--superlink: 'fl.example.org' is not HOST:PORT"),
    "url": (["--superlink", "http://fl.example.org:8000"], "is not HOST:PORT; for example fl.example.org:8000"),
    "port": (["--port", "0"], "--port: 0 is not a port"),
    "key": (["--key", "nosuch"], "nosuch: not found; the keys are made by"),
}


@pytest.mark.parametrize("case", NODES)
def test_a_node_with_wrong_options_starts_no_process(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("ca.crt", "key"):
        (tmp_path / name).write_text("x")
    arguments, line = NODES[case]
    good = f"--superlink fl.example.org:8000 --certificate ca.crt --key key --data key --state state --spec {HASH}"
    assert main(["node", *good.split(), *arguments]) == 2
    errors = capsys.readouterr().err
    assert line in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_a_failed_command_of_flower_is_reported_in_one_line(tmp_path):
    """The line is the last one, or the text in the frame around an error."""
    from fedweave.deployment.flower.processes import Host

    command = tmp_path / "flwr"
    host = Host(tmp_path / "host", "127.0.0.1:1", tmp_path / "ca.crt", python=tmp_path / "python")
    frame = "╭─ Error ───╮\n│ Failed to load the app in                │\n│ '/a b/app'. │\n╰───────────╯"
    failures = {
        "echo first; echo 'no such app' >&2;": "no such app",
        f'echo "{frame}" >&2;': "Failed to load the app in '/a b/app'.",
        '[ "$COLUMNS" = 1000 ] &&': "it printed nothing",
    }
    for text, reason in failures.items():
        command.write_text(f"#!/bin/sh\n{text} exit 3\n")
        command.chmod(0o700)
        with pytest.raises(BadInput) as error:
            host.run_flwr("run", "app")
        assert str(error.value) == f"flwr run: {reason}"
