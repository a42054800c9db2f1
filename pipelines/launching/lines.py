"""What `dvc repro` says: one line for each stage that it runs; meanwhile a progress line in a terminal, and elsewhere a
line now and then.
"""

import os
import re
import time
from typing import TextIO

RUNNING = re.compile(r"Running stage '(.+)':$")
RESTORED = re.compile(r"Stage '(.+)' is cached - skipping run")
UNCHANGED = re.compile(r"Stage '(.+)' didn't change, skipping|'.+' didn't change, skipping")
BLOCKS = {"uses": 1, "datasets": 1, "tasks": 2, "runs": 1, "ablate": 1}  # of params.yaml: stages for each entry
SINGLE = 5  # stages that every study has: names, code of fedweave, sources, evaluate, report
WIDEST = 120
NEWS = 60.0  # seconds between two lines about a stage that goes on, where no terminal shows it


def count_stages(params: str) -> int:
    """How many stages the study of params.yaml has, without a YAML library: exact for files that fedweave wrote."""
    total = SINGLE
    for name, stages in BLOCKS.items():
        block = re.search(rf"^{name}:(.*(?:\n[ #].*)*)", params, re.M)
        text = block[1].strip() if block else ""
        if text.startswith("["):
            total += stages * len([word for word in text.strip("[]").split(",") if word.strip()])
        elif block and not text.startswith("{"):
            total += stages * len(re.findall(r"^  [^\s#]", block[1], re.M))
    return total


def format_duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def terminal_width(stream: TextIO) -> int:
    """The width of the terminal behind `stream`."""
    return min(WIDEST, os.get_terminal_size(stream.fileno()).columns)


class ProgressView:
    """The lines on `output`, and errors on `errors`; `total` stages are to come."""

    def __init__(self, output: TextIO, errors: TextIO, total: int) -> None:
        self._output, self._errors, self._squared_sum = output, errors, total
        self._moving = output.isatty()  # a line that is written over and over
        self._stage, self._begun, self._seen = "", 0.0, 0
        self._message = ""  # the last line of the stage
        self._first = self._latest = time.monotonic()
        self._counts = dict.fromkeys(("ran", "restored", "unchanged"), 0)

    def show_output(self, line: str) -> None:
        """A line of DVC or of a stage."""
        if match := RUNNING.match(line):
            self._begin_stage(match[1])
        elif match := RESTORED.match(line):
            self._begin_stage(match[1])
            self._finish_stage("restored")
        elif UNCHANGED.match(line):
            self._begin_stage("")
            self._counts["unchanged"] += 1
        elif self._stage and line.strip() and not line.startswith(("> ", "Updating lock file", "Generating lock file")):
            self._message = f": {line.strip()}"
            self._redraw(self._stage + self._message)

    def show_running(self) -> None:
        """In a log or a pipe, a line now and then tells that the stage still runs."""
        now = time.monotonic()
        if self._stage and not self._moving and now - self._latest >= NEWS:
            self._print(
                f"{self._counter()} {self._stage} (running for {format_duration(now - self._begun)}){self._message}"
            )

    def show_error(self, line: str) -> None:
        """A line of their errors, shown as it is."""
        if line.strip():
            self._clear()
            print(line, file=self._errors, flush=True)

    def end(self, status: int) -> None:
        """The last stage has ended, and DVC with it."""
        if self._stage:
            self._finish_stage("failed" if status else "ran")
        self._clear()
        counts = ", ".join(f"{number} {word}" for word, number in self._counts.items() if number)
        spent = format_duration(time.monotonic() - self._first)
        if not status:
            self._print(f"{self._seen} stages ({counts}) in {spent}")
        else:
            self._print(f"stopped after {spent} ({counts or 'nothing ran'}); all output: .fedweave/repro.log")

    def _begin_stage(self, stage: str) -> None:
        if self._stage:
            self._finish_stage("ran")
        self._stage, self._begun, self._message, self._seen = stage, time.monotonic(), "", self._seen + 1
        self._latest = self._begun
        self._squared_sum = max(self._squared_sum, self._seen)
        self._redraw(stage)

    def _finish_stage(self, how: str) -> None:
        spent = format_duration(time.monotonic() - self._begun) if how != "restored" else "restored"
        self._counts[how] = self._counts.get(how, 0) + 1
        self._clear()
        self._print(f"{self._counter()} {self._stage:44} {'failed after ' if how == 'failed' else ''}{spent}".rstrip())
        self._stage = ""

    def _counter(self) -> str:
        return f"{self._seen:{len(str(self._squared_sum))}}/{self._squared_sum}"

    def _print(self, line: str) -> None:
        self._latest = time.monotonic()
        print(line, file=self._output, flush=True)

    def _redraw(self, text: str) -> None:
        if self._moving:
            width = terminal_width(self._output) - 1
            print(f"\r{self._counter()} {text}"[: width + 1], end="\x1b[K", file=self._output, flush=True)

    def _clear(self) -> None:
        if self._moving:
            print("\r", end="\x1b[K", file=self._output, flush=True)
