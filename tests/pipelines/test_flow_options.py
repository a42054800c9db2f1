"""The command line of a flow: wrong options end in one line, before a server starts."""

import errno
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.settings import PREFECT_API_URL

from fedweave.pipelines.commands import main
from fedweave.pipelines.scheduling import flows, host
from tests.servers import ROOT

DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(flows.reproduce).parameters.items()}


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command with these words, in which no flow begins; returns its exit code."""
    monkeypatch.setattr(flows, "server_settings", dict)
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it began"))

    def command(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["fedweave", "flow", *words])
        with pytest.raises(SystemExit) as end:
            main.main()
        return cast(int, end.value.code or 0)

    return command


@pytest.mark.parametrize("share", ["0", "-1", "1.5", "nan"])
def test_an_invalid_share_of_a_gpu_is_refused(
    flow: Callable[..., int], share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flow(f"--share={share}") == 2
    line = f"error: --share: {share} is not a share of a GPU; give one above 0 and at most 1, such as 0.25\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("words", ["--retries -1", "--parallel -1", "--parallel two", "--where there"])
def test_an_invalid_word_is_refused(flow: Callable[..., int], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert flow(*words.split()) == 2
    assert f"Invalid value for '{words.split()[0]}'" in capsys.readouterr().err


def test_the_flow_gets_what_the_options_say(flow: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options they are the defaults of the flow, but for the stages at once: those of a whole host.

    No server is needed, as no flow runs.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(flows, "server_settings", lambda: {PREFECT_API_URL: "http://127.0.0.1:9/api"})
    given: list[dict[str, object]] = []
    monkeypatch.setattr(flows, "reproduce", lambda **options: given.append(options))
    for words in (
        "--study studies/quick.yaml",
        "--study quick --targets tune --targets train@a --gpus 0 --gpus 1,2 --share 0.5 --parallel 0 --where ray",
    ):
        assert flow(*words.split()) == 0
    assert given[0] == {**DEFAULTS, "study": "studies/quick.yaml", "parallel": os.cpu_count()}
    chosen = {"targets": ["tune", "train@a"], "gpus": ["0", "1,2"], "share": 0.5, "parallel": 0, "where": "ray"}
    assert given[1] == {**DEFAULTS, "study": "quick", **chosen}


def test_a_flow_of_an_unknown_study_starts_no_server(
    flow: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert flow("--study", "quik") == 2
    assert "study: 'quik' is unknown; did you mean 'quick'" in capsys.readouterr().err


def test_a_flow_of_another_study_and_an_unknown_target_starts_no_server(
    flow: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stages of that study are not known yet, but their groups are."""
    monkeypatch.chdir(ROOT)
    assert flow("--study", "quick", "--targets", "trane@shoulder-local") == 2
    assert "targets: 'trane' is unknown; did you mean 'train'" in capsys.readouterr().err


def test_a_folder_without_a_study_is_refused(
    flow: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flow() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: params.yaml: not found; ")


@pytest.mark.parametrize(
    ("error", "line", "code", "server"),
    [
        (host.FailedStages("1 of 4 stages failed"), "error: 1 of 4 stages failed\n", 1, {}),
        (
            OSError(errno.EROFS, "Read-only file system", ".dvc/tmp/lock"),
            "error: .dvc/tmp/lock: cannot be used (",
            2,
            {PREFECT_API_URL: "http://127.0.0.1:9/api"},
        ),
    ],
    ids=["stages", "folder"],
)
def test_an_error_ends_a_flow_in_one_line(
    error: Exception,
    line: str,
    code: int,
    server: dict[Any, str],
    flow: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a temporary server, which takes seconds to start, and on a named one, which does not answer here."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(flows, "server_settings", lambda: server)
    monkeypatch.setattr(flows.dvc_graph, "check", lambda _: None)
    monkeypatch.setattr(flows, "reproduce", fail)
    assert flow() == code
    errors = capsys.readouterr().err
    assert errors.startswith(line)
    assert errors.count("\n") == 1


def test_a_flow_with_a_study_needs_no_params_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the command refuses the name. The flow itself starts without params.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows, "get_run_logger", logging.getLogger)
    host.set_resources(())
    state = flows.use_study.fn("nosuch")
    assert state.is_failed()
    assert isinstance(state.data, flows.PermanentFailure)
    assert state.message.startswith("exit code 2: error: study: 'nosuch' is unknown")
