"""Ports and servers that variables name: a wrong value is refused in one line, before any work."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from fedweave.errors import BadInput
from fedweave.pipelines import addresses, ui
from fedweave.pipelines.commands import studies
from fedweave.pipelines.scheduling import flows, pool, workers
from tests.servers import free_port, python


@pytest.mark.parametrize("text", ["abc", "99999", "0", "-1", "5000 ", "٣", "9" * 5000])
@pytest.mark.parametrize(
    ("variable", "command"),
    [
        ("MLFLOW_PORT", addresses.mlflow_address),
        ("MLFLOW_PORT", lambda: studies.run("quick")),
        ("MLFLOW_PORT", ui.servers),
        ("PREFECT_PORT", ui.servers),
        ("PREFECT_PORT", workers._server_address),
    ],
    ids=["address", "study", "mlflow", "prefect", "worker"],
)
def test_a_value_that_is_not_a_port_is_refused(
    variable: str, command: Callable[[], object], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(variable, text)
    with pytest.raises(BadInput, match=f"^{variable}: '.* is not a port; give 1 to 65535$"):
        command()
    assert not [*tmp_path.iterdir()]


def test_a_reproduction_with_a_wrong_port_starts_no_work(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("study: toy\n")
    done = python("-m", "fedweave.pipelines.launching.reproduce", folder=tmp_path, MLFLOW_PORT="abc")
    assert done.returncode == 2
    assert done.stderr == "error: MLFLOW_PORT: 'abc' is not a port; give 1 to 65535\n"
    assert not (tmp_path / ".fedweave" / "repro.log").exists()


def test_a_flow_names_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it runs"))
    address = f"http://127.0.0.1:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: address}), pytest.raises(BadInput) as refused:
        flows.start(study="", where="here")
    line = str(refused.value)
    assert line.startswith(f"PREFECT_API_URL: no Prefect server answers at {address} (Connection refused); start")
    assert line.endswith("; start one: fedweave ui, or unset PREFECT_API_URL for a temporary one")


def test_a_server_that_refuses_the_password_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may ask for it at every address, Prefect's own server at all but that of its health."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    def refuse(self: BaseHTTPRequestHandler) -> None:
        self.send_response(401)
        self.end_headers()

    verbs = {"do_GET": refuse, "do_POST": refuse, "log_message": lambda *_: None}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it runs"))
    server = HTTPServer(("127.0.0.1", 0), type("Refusal", (BaseHTTPRequestHandler,), verbs))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/api"
    line = f"^PREFECT_API_URL: the Prefect server at {address} refuses the password \\(401\\); set PREFECT_API_AUTH_STR"
    try:
        with temporary_settings({PREFECT_API_URL: address}):
            for command in (
                lambda: flows.start(study="", where="here"),
                lambda: workers.register(1),
                lambda: workers._check_pool("both", "gpu-pool", False),
            ):
                with pytest.raises(BadInput, match=line):
                    command()
    finally:
        server.shutdown()
        server.server_close()


def test_a_missing_end_of_an_address_is_added() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        BadInput, match=rf"answers at {address} \(.*\); the address of a server ends in /api; start one: "
    ):
        addresses.check_prefect(f"{address}/")


def test_a_flow_uses_a_temporary_server_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT_PORT", str(free_port()))
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert pool.server_settings() == {}
        monkeypatch.setattr(addresses, "connection_error", lambda _: "")
        assert pool.server_settings() == {PREFECT_API_URL: addresses.prefect_api()}


@pytest.mark.parametrize("address", ["127.0.0.1:4200/api", "localhost:4200", "ftp://host/api"])
def test_an_address_without_http_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match=f"^PREFECT_API_URL: '{address}' must begin with http:// or https://, as http:"):
        addresses.check_prefect(address)


@pytest.mark.parametrize("folder", ["mlruns", "./records", "/data/mlruns"])
def test_a_folder_of_records_is_refused_in_one_line(folder: str) -> None:
    """MLflow's own message has six sentences."""
    with pytest.raises(BadInput, match=f"^MLFLOW_TRACKING_URI: '{folder}' is a folder, where .*sqlite:///mlflow.db"):
        addresses.check_store(folder)


WORDS = [["ui"], ["study", "run", "first"], ["study", "show", "first"], ["study", "run", "FILE"]]


@pytest.mark.parametrize("words", WORDS)
def test_a_folder_that_is_no_project_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ui` would start servers there, and write their records into it; `study run` would write params.yaml."""
    study = {"tasks": {"digits": {"partition": {"name": "iid", "clients": 3, "seed": 0}, "methods": ["local"]}}}
    (file := tmp_path / "mine.yaml").write_text(yaml.safe_dump(study))
    (folder := tmp_path / "folder").mkdir()
    monkeypatch.chdir(folder)
    words = [str(file) if word == "FILE" else word for word in words]
    done = python("-m", "fedweave.pipelines.commands.main", *words, MLFLOW_PORT="1", PREFECT_PORT="1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "this folder is not a project" in line
    assert line.endswith("go to one, or make one: fedweave init FOLDER")
    assert not [*folder.iterdir()]
