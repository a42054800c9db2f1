"""The command line of a flow: wrong options end in one line, before a server starts."""

import errno
import logging
import sys
from pathlib import Path

import pytest

from fedweave.pipelines.scheduling import flow_options, flows, host


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--retries -1", "argument --retries: -1 is not a whole number from 0 on"),
        ("--parallel two", "argument --parallel: two is not a whole number from 0 on"),
        ("--share x", "argument --share: x is not a share of a GPU; give one above 0 and at most 1, such as 0.25"),
        ("--share 1.5", "argument --share: 1.5 is not a share of a GPU; give one above 0 and at most 1, such as 0.25"),
    ],
)
def test_an_invalid_number_is_refused(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flows", *words.split()])
    with pytest.raises(SystemExit) as end:
        flow_options.parse()
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {line}\n")


def test_a_folder_without_a_study_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flows"])
    monkeypatch.setattr(flows, "server_settings", dict)
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it runs"))
    with pytest.raises(SystemExit) as end:
        flows.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: params.yaml: not found; ")


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (host.FailedStages("1 of 4 stages failed"), "error: 1 of 4 stages failed\n", 1),
        (OSError(errno.EROFS, "Read-only file system", ".dvc/tmp/lock"), "error: .dvc/tmp/lock: cannot be used (", 2),
    ],
    ids=["stages", "folder"],
)
def test_an_error_ends_a_flow_in_one_line(
    error: Exception, line: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["flows"])
    monkeypatch.setattr(flows, "server_settings", dict)
    monkeypatch.setattr(flows.dvc_graph, "check", lambda: None)
    monkeypatch.setattr(flows, "reproduce", fail)
    with pytest.raises(SystemExit) as end:
        flows.main()
    assert end.value.code == code
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
