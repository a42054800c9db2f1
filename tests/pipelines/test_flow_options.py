"""The command line of a flow: wrong options end in one line, before a server starts."""

import errno
import inspect
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL

from fedweave.pipelines.scheduling import flow_options, flows, host


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--retries -1", "'--retries': -1 is not a whole number from 0 on"),
        ("--parallel two", "'--parallel': two is not a whole number from 0 on"),
        ("--share x", "'--share': x is not a share of a GPU; give one above 0 and at most 1, such as 0.25"),
        ("--share 0", "'--share': 0 is not a share of a GPU; give one above 0 and at most 1, such as 0.25"),
        ("--share 1.5", "'--share': 1.5 is not a share of a GPU; give one above 0 and at most 1, such as 0.25"),
    ],
)
def test_an_invalid_number_is_refused(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flows", *words.split()])
    with pytest.raises(SystemExit) as end:
        flow_options.run(lambda **_: pytest.fail("it runs"))
    assert end.value.code == 2
    message = capsys.readouterr().err.partition("Error")[2]
    assert re.findall(r"[^\s─│╭╮╰╯]+", message) == f"Invalid value for {line}".split()


def test_the_flow_gets_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options they are the defaults of the flow, but for the stages at once: those of a whole host."""
    given: list[dict[str, object]] = []
    for words in ("", "--targets tune --targets train@a --gpus 0 --gpus 1,2 --share 0.5 --parallel 0 --where ray"):
        monkeypatch.setattr(sys, "argv", ["flows", *words.split()])
        with pytest.raises(SystemExit) as end:
            flow_options.run(lambda **options: given.append(options))
        assert not end.value.code
    defaults = {name: parameter.default for name, parameter in inspect.signature(flows.reproduce).parameters.items()}
    assert given[0] == {**defaults, "parallel": os.cpu_count()}
    chosen = {"targets": ["tune", "train@a"], "gpus": ["0", "1,2"], "share": 0.5, "parallel": 0, "where": "ray"}
    assert given[1] == {**defaults, **chosen}


def test_the_help_shows_the_default_of_every_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flows", "--help"])
    with pytest.raises(SystemExit) as end:
        flow_options.run(lambda **_: pytest.fail("it runs"))
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "Usage: fedweave flow" in text
    table = text.partition("Options")[2]
    for name in inspect.signature(flows.reproduce).parameters:
        described = re.search(rf"--{name} (.*?)(?=\n│ --)", table, re.DOTALL)
        assert described is not None, name
        assert "default: " in described[1], name


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a temporary server, which takes seconds to start, and on a named one, which does not answer here."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["flows"])
    monkeypatch.setattr(flows, "server_settings", lambda: server)
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
