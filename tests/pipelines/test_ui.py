"""What `make ui` says while its servers start, and when one does not."""

import sys

import pytest

from fedweave.errors import BadInput
from fedweave.pipelines import ui
from fedweave.pipelines.processes import Children
from tests.servers import free_port

LATE = """
import socket, sys, time
time.sleep(1.5)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(99)
"""


def started(program: str) -> None:
    """Await a server that is `program`."""
    server = ui.Server("Late", port := free_port(), (sys.executable, "-c", program, str(port)))
    with Children().child(server.command) as process:
        ui._await(server, process, ui._drain(process))


def test_a_slow_server_is_awaited_with_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ui, "NEWS", 0.5)
    started(LATE)
    assert "Late     is starting (" in capsys.readouterr().out


def test_a_server_that_ends_or_never_answers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="Late did not start: "):
        started("print('no such disk')")
    monkeypatch.setattr(ui, "PATIENCE", 0.5)
    with pytest.raises(BadInput, match=r"Late does not answer on port .* no word"):
        started("import time; time.sleep(99)")
