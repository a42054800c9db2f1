"""What `make repro` prints while DVC runs."""

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from fedweave.pipelines.launching import lines
from tests.small_project import params, part

ROOT = Path(__file__).resolve().parents[2]
DVC_OUTPUT = """Stage 'code@fedweave' didn't change, skipping
Running stage 'train@digits-ditto':
> exec python -IS pipelines/launching/launcher.py train 'digits-ditto'
digits-ditto seed 0: round 1/2
Updating lock file 'dvc.lock'

Stage 'evaluate' is cached - skipping run, checking out outputs
Running stage 'report':"""


class Terminal(io.StringIO):
    """A terminal of any width."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "text", [(ROOT / "params.yaml").read_text(), params(), part("other", 3.0)], ids=["quick", "small", "part"]
)
def test_stages_are_counted_without_dvc(text: str) -> None:
    content = yaml.safe_load(text)
    parts = (content["datasets"], content["tasks"], content["tasks"], content["runs"], content["ablate"])
    count = 5 + len(content.get("uses") or ()) + sum(map(len, parts))
    assert lines.count_stages(content) == count
    with_graphs = {**content, "graphs": {"graph-1": "graphs/a.csv", "graph-2": "results/x/runs/y"}}
    assert lines.count_stages(with_graphs) == count + 2


@pytest.mark.parametrize(
    ("status", "last"), [(0, "4 stages (2 ran, 1 restored, 1 unchanged) in"), (2, "stopped after")]
)
def test_each_stage_that_was_not_skipped_has_one_line(status: int, last: str) -> None:
    output, errors = io.StringIO(), io.StringIO()
    view = lines.ProgressView(output, errors, 12)
    for line in DVC_OUTPUT.splitlines():
        view.show_output(line)
    view.show_error("error: a line of its own")
    view.end(status)
    shown = output.getvalue().splitlines()
    assert [line.split()[:2] for line in shown[:3]] == [
        ["2/12", "train@digits-ditto"],
        ["3/12", "evaluate"],
        ["4/12", "report"],
    ]
    assert ("failed after" in shown[2]) == bool(status)
    assert shown[3].startswith(last)
    assert len(shown) == 4
    assert "\r" not in output.getvalue()
    assert errors.getvalue() == "error: a line of its own\n"


def test_a_stage_whose_files_cannot_be_restored_has_failed() -> None:
    """DVC reports the stage as cached before it copies the files."""
    output = io.StringIO()
    view = lines.ProgressView(output, io.StringIO(), 3)
    view.show_output("Stage 'train@a' is cached - skipping run, checking out outputs")
    view.show_output("Stage 'train@b' is cached - skipping run, checking out outputs")
    view.show_error("ERROR: failed to reproduce 'train@b': No possible cache link types")
    view.end(255)
    first, second, end = output.getvalue().splitlines()
    assert re.fullmatch(r"1/3 train@a +restored", first)
    assert re.fullmatch(r"2/3 train@b +failed after \d\.\d s", second)
    assert "(1 restored, 1 failed)" in end


def test_a_log_names_the_running_stage_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so after a minute without other output, and not where a terminal shows the stage."""
    output, terminal = io.StringIO(), Terminal()
    monkeypatch.setattr(lines, "terminal_width", lambda stream: 60)
    views = [lines.ProgressView(stream, io.StringIO(), 12) for stream in (output, terminal)]
    for view in views:
        for line in DVC_OUTPUT.splitlines()[:4]:
            view.show_output(line)
        view.show_running()
    assert output.getvalue() == ""
    monkeypatch.setattr(lines, "MESSAGE_INTERVAL", 0.0)
    for view in views:
        view.show_running()
    shown = r" 2/12 train@digits-ditto \(running for \d\.\d s\): digits-ditto seed 0: round 1/2\n"
    assert re.fullmatch(shown, output.getvalue())
    assert "running for" not in terminal.getvalue()


def test_a_terminal_shows_the_last_line_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "terminal_width", lambda stream: 60)
    output = Terminal()
    view = lines.ProgressView(output, io.StringIO(), 12)
    for line in DVC_OUTPUT.splitlines()[:4]:
        view.show_output(line)
    assert output.getvalue().rpartition("\r")[2] == " 2/12 train@digits-ditto: digits-ditto seed 0: round 1/2\x1b[K"


@pytest.mark.parametrize("errors", [["exited with 130"], ["KeyboardInterrupt", "exited with 1"]])
def test_a_stage_that_ctrl_c_has_ended_has_not_failed(errors: list[str]) -> None:
    """Python's own start ends with code 1."""
    output = io.StringIO()
    view = lines.ProgressView(output, io.StringIO(), 3)
    view.show_output("Running stage 'train@a':")
    for line in errors:
        view.show_error(line)
    view.end(255)
    stage, end = output.getvalue().splitlines()
    assert re.fullmatch(r"1/3 train@a +stopped after \d\.\d s", stage)
    assert "(1 stopped)" in end


def test_a_line_of_progress_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds train in processes that share a log: a separate write of the end of a line would mix two lines."""
    from fedweave.engine.records import Report
    from fedweave.pipelines.stages.train import progress_printer

    writes: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append, flush=lambda: None))
    report = cast(Report, SimpleNamespace(round=3, loss=0.5, dropped=()))
    progress_printer("digits-ditto", 3)(1, report)
    assert [text for text in writes if text] == ["digits-ditto, seed 1: round 3/3, loss 0.5\n"]
