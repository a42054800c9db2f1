"""A server of MLflow that does not answer: one line reports it at once, and results are written all the same."""

import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines import addresses
from fedweave.pipelines.commands import studies
from fedweave.pipelines.launching import reproduce
from fedweave.pipelines.mlflow_records import stamp, tracking
from fedweave.pipelines.stages import leaderboard, report
from tests.mlflow_store import small
from tests.servers import free_port, http_server

# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


@pytest.fixture
def absent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a server that does not exist. The environment names it; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    uri = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def refusal_line(uri: str) -> str:
    """The message about the server for the study toy."""
    return f"MLFLOW_TRACKING_URI: no server answers at {uri}; start it, or log later: fedweave log toy"


def test_log_is_refused_at_once(absent_server: str) -> None:
    """The refusal comes before results are read: this folder has none."""
    start = time.monotonic()
    with pytest.raises(BadInput) as refusal:
        tracking.main("toy")
    assert str(refusal.value) == refusal_line(absent_server)
    assert time.monotonic() - start < 2 * addresses.ANSWER_TIMEOUT


@pytest.mark.usefixtures("undrawn")
def test_a_reproduction_shows_its_leaderboard_and_no_link(
    absent_server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stage `report` prints the failure, and so does the end, which tries again."""
    folder = small(Path("results", "toy"))
    results.write(folder)
    stamp.write("before", "toy", absent_server, {"blobs": "#/one"}, "")
    monkeypatch.setattr(leaderboard, "stale_runs", lambda study: [])
    monkeypatch.setattr(report, "write_board", lambda *_: (folder / "leaderboard.txt").write_text("best\n"))
    report.main("toy")
    assert capfd.readouterr().err == f"not logged to MLflow: {refusal_line(absent_server)}\n"
    reproduce.show_results("toy")
    captured = capfd.readouterr()
    assert captured.err == f"not logged to MLflow: {refusal_line(absent_server)}\n"
    assert captured.out == "best\n"


def test_no_link_leads_to_a_server_that_has_ended(
    absent_server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Everything was logged. Links of the project's own file lead to the server of `make ui`, which may be started
    later.
    """
    board_file = Path("results", "toy", "leaderboard.txt")
    board_file.parent.mkdir(parents=True)
    board_file.write_text("best\n")
    digest = stamp.results_digest(board_file.parent)
    stamp.write(digest, "toy", absent_server, {"blobs": "#/one"}, "")
    reproduce.show_results("toy")
    assert capfd.readouterr().out == "best\n"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    stamp.write(digest, "toy", "sqlite:///mlflow.db", {"blobs": "#/one"}, "")
    reproduce.show_results("toy")
    assert "blobs in MLflow" in capfd.readouterr().out


def test_a_warning_comes_before_a_study_runs(
    absent_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def started(*_: Any) -> int:
        assert capfd.readouterr().err == f"warning: {refusal_line(absent_server)}\n"
        return 0

    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").touch()
    monkeypatch.setattr(studies, "switch_study", lambda *_: nullcontext(({"study": "toy", "runs": {}}, 0)))
    monkeypatch.setattr(reproduce, "reproduce", started)
    studies.run("toy")


@pytest.mark.parametrize(("code", "exists"), [(200, True), (401, True), (404, True), (500, True), (503, False)])
def test_any_answer_but_that_of_a_gateway_means_that_the_server_exists(code: int, exists: bool) -> None:
    """Code 503 comes from a gateway that does not reach the server."""

    def answer(self: BaseHTTPRequestHandler) -> None:
        self.send_response(code if self.path == "/health" else 503)
        self.end_headers()

    with http_server(do_GET=answer) as port:
        assert addresses.is_reachable(f"http://127.0.0.1:{port}/") is exists


def test_a_server_that_hangs_or_does_not_speak_http_is_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ANSWER_TIMEOUT", 0.2)
    for answer in (lambda _: time.sleep(1), lambda request: request.wfile.write(b"?\n")):
        with http_server(do_GET=answer) as port:
            assert not addresses.is_reachable(f"http://127.0.0.1:{port}/")
    assert not addresses.is_reachable("http://[")
    assert addresses.is_reachable("postgresql://host/base")


def test_a_refusal_by_the_server_asks_to_move_no_file(absent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small(Path("results", "toy"))
    monkeypatch.setattr(addresses, "check_store", lambda *_: None)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(BadInput, match=r"not logged \(.*\); see what the server says, then: fedweave log"):
        tracking.main("toy")


def test_studies_with_similar_names_have_separate_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example one in a folder, and one with a hyphen."""
    monkeypatch.chdir(tmp_path)
    stamp.write("", "paper-table1", "elsewhere", {"toy": "#/1"}, "")
    assert stamp.links("paper/table1") == {}
    assert stamp.links("paper-table1") == {"toy": "#/1"}
