"""The messages of `make ui` while its servers start, and when one does not."""

import itertools
import os
import socket
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from fedweave.errors import BadInput
from fedweave.pipelines import ui
from fedweave.pipelines.addresses import page
from fedweave.pipelines.commands import servers
from fedweave.pipelines.commands.main import app
from fedweave.pipelines.mlflow_records import stamp
from fedweave.pipelines.processes import ChildProcesses
from tests.servers import ROOT, free_port, http_server

LATE = """
import socket, sys, time
time.sleep(1.5)
host = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
family = socket.AF_INET6 if ":" in host else socket.AF_INET
server = socket.create_server((host, int(sys.argv[1])), family=family)
time.sleep(99)
"""


def has_ipv6() -> bool:
    """Whether loopback has an address of IPv6. A container may have none although its kernel knows IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def await_server(program: str, *words: str) -> None:
    """Start `program` as a server and wait until it answers."""
    server = ui.UIServer("Late", port := free_port(), (sys.executable, "-c", program, str(port), *words))
    with ChildProcesses().start(server.command) as process:
        ui._wait_for(server, process, ui._Output(process))


def test_a_slow_server_is_awaited_with_a_line_at_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks, look = itertools.count(), ui._is_reachable
    monkeypatch.setattr(ui, "_is_reachable", lambda *at: next(looks) > 5 and look(*at))  # 0.2 s after each look
    monkeypatch.setattr(ui, "MESSAGE_INTERVAL", 0.5)
    await_server(LATE)
    assert "Late     is starting (" in capsys.readouterr().out


def test_a_server_that_ends_or_never_answers_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="Late did not start: no such disk"):
        await_server("print('no such disk')")
    with pytest.raises(BadInput, match=r"Late did not start: ERROR: \[Errno -2\] no such host"):
        await_server(
            "print('ERROR: [Errno -2] no such host'); print('INFO: complete', flush=True); import time; time.sleep(1)"
        )
    monkeypatch.setattr(ui, "START_TIMEOUT", 0.5)
    with pytest.raises(BadInput, match=r"Late does not answer on port .* no word"):
        await_server("import time; time.sleep(99)")


@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0", "::1", "::", ""])
def test_a_server_answers_at_the_address_that_it_is_bound_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses of a machine include loopback. An empty address is loopback."""
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv("UI_HOST", host)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    monkeypatch.setattr(ui, "START_TIMEOUT", 120.0)
    await_server(LATE, ui.bound_host())
    assert ui.bound_host() in ui.servers()[0].command


def test_two_servers_need_two_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first one would answer for the second one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    for name in ("MLFLOW_PORT", "PREFECT_PORT"):
        monkeypatch.setenv(name, "5005")
    with pytest.raises(BadInput, match=r"PREFECT_PORT: 5005 is the port of MLflow too \(MLFLOW_PORT\)"):
        ui.servers()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://records.example")
    assert [server.port for server in ui.servers()] == [5005]


def test_with_an_external_tracking_server_only_prefect_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow cannot serve another server's records. If the server does not answer, one line says so before anything
    starts.
    """
    monkeypatch.chdir(tmp_path)
    for scheme in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(scheme, raising=False)
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := f"http://127.0.0.1:{port}/")
    monkeypatch.delenv("MLFLOW_UI_URL", raising=False)
    (prefect,) = ui.servers()
    assert prefect.name == "Prefect"
    with pytest.raises(BadInput, match=f"MLFLOW_TRACKING_URI: no server answers at {address}; "):
        ui.main()
    short = (  # it ends after the command has found it, however late that is
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); s.accept(); "
        "print('no such table'); print()"
    )
    mine = ui.UIServer("Prefect", other := free_port(), (sys.executable, "-c", short, str(other)))
    monkeypatch.setattr(ui, "servers", lambda: (mine,))
    monkeypatch.setattr(ui, "_run_links", lambda: iter([("mine in MLflow", "here")]))
    ended = r"^Prefect ended by itself: no such table; start it again: fedweave ui$"
    with http_server(port), pytest.raises(BadInput, match=ended):  # it answers that it does not have this method
        ui.main()
    lines = ["MLflow   " + address[:-1], f"Prefect  http://127.0.0.1:{other}", "mine in MLflow: here", "Ctrl-C ends it"]
    assert capsys.readouterr().out.splitlines() == lines


def test_tasks_of_the_current_study_have_links(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's first page does not lead to them. Another study, and one that was never logged, has one link."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.delenv("MLFLOW_UI_URL", raising=False)
    monkeypatch.setenv("MLFLOW_PORT", "5001")
    client = MlflowClient(store)
    number = {name: client.create_experiment(name) for name in ("another", "mine")}
    base = "http://127.0.0.1:5001/"
    whole = {f"{name} in MLflow": base + page(number[name]) for name in number}
    for params in ("study: [", "tasks: {}\n", "study: mine  # ours\n"):  # the servers need no params.yaml
        Path("params.yaml").write_text(params, encoding="utf-8")
        assert dict(ui._run_links()) == whole
    stamp.write("digest", "mine", store, {"digits": "#/one", "arms": "#/two"}, "")
    tasks = {"digits, mine, in MLflow": f"{base}#/one", "arms, mine, in MLflow": f"{base}#/two"}
    assert dict(ui._run_links()) == {"another in MLflow": whole["another in MLflow"], **tasks}


def test_a_folder_for_prefect_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's last line says that its start failed, and not why."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    for port in ("MLFLOW_PORT", "PREFECT_PORT"):
        monkeypatch.setenv(port, str(free_port()))
    monkeypatch.setenv("PREFECT_HOME", "/proc/fedweave")
    with pytest.raises(BadInput, match=r"^/proc/fedweave.*: cannot be written "):
        ui.main()


def test_the_named_command_for_the_servers_exists_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a checkout has a Makefile of fedweave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    for port in ("MLFLOW_PORT", "PREFECT_PORT"):
        monkeypatch.setenv(port, str(free_port()))
    monkeypatch.setattr(ui, "_is_reachable", lambda *_: True)
    other = f"MLFLOW_PORT={int(os.environ['MLFLOW_PORT']) + 1}"
    with pytest.raises(BadInput, match=f"is taken; choose another: {other} fedweave ui$"):
        ui.main()
    Path("Makefile").touch()
    Path("src", "fedweave").mkdir(parents=True)
    with pytest.raises(BadInput, match=f"is taken; choose another: make ui {other}$"):
        ui.main()


def test_the_command_is_that_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    became: list[list[str]] = []
    monkeypatch.setattr(servers.os, "execv", lambda _, command: became.append(command[1:]))
    assert CliRunner().invoke(app, ["ui"]).exit_code == 0
    assert became == [["-m", "fedweave.pipelines.ui"]]
