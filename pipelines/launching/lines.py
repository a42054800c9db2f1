"""The output of `dvc repro` in short: one line for each stage that it runs.

While a stage runs, a terminal shows a progress line, and other outputs get a line every `MESSAGE_INTERVAL` seconds.
"""

import os
import re
import time
from collections.abc import Mapping
from typing import Any, TextIO

RUNNING = re.compile(r"Running stage '(.+)':$")
RESTORED = re.compile(r"Stage '(.+)' is cached - skipping run")
UNCHANGED = re.compile(r"Stage '(.+)' didn't change, skipping|'.+' didn't change, skipping")
# Block of params.yaml -> how many stages each of its entries has.
BLOCKS = {"uses": 1, "graphs": 1, "datasets": 1, "tasks": 2, "runs": 1, "ablate": 1}
SINGLE = 5  # stages that every study has once: names, code of fedweave, sources, evaluate, report
MAX_WIDTH = 120
MESSAGE_INTERVAL = 60.0  # seconds between two lines about a running stage, where the output is not a terminal

# DVC's words about a stage that Ctrl-C has ended, at work or during its start, and about its own end by Ctrl-C
INTERRUPTED = ("exited with 130", "exited with -2", "interrupted by the user")
TRACEBACK_END = "KeyboardInterrupt"  # the last line of a Python that Ctrl-C ends before it runs code; its code is 1
FAILURES = ("failed", "stopped")


def count_stages(params: Mapping[str, Any]) -> int:
    """How many stages the study of params.yaml has."""
    blocks = ((params.get(name), stages) for name, stages in BLOCKS.items())
    return SINGLE + sum(stages * len(block) for block, stages in blocks if isinstance(block, Mapping | list))


def format_duration(seconds: float) -> str:
    """A duration in seconds as text, such as 4.2 s or 3 min 5 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def terminal_width(stream: TextIO) -> int:
    return min(MAX_WIDTH, os.get_terminal_size(stream.fileno()).columns)


class ProgressView:
    """Writes lines to `output` and errors to `errors`; `total` is the expected number of stages."""

    def __init__(self, output: TextIO, errors: TextIO, total: int) -> None:
        self._output, self._errors, self._total = output, errors, total
        self._is_terminal = output.isatty()  # where one line is overwritten again and again
        self._stage, self._stage_start, self._count, self._outcome = "", 0.0, 0, "ran"
        self._message = ""  # the last line of the stage
        self.was_interrupted = False  # by Ctrl-C
        self._start = self._last_print = time.monotonic()
        self._counts = dict.fromkeys(("ran", "restored", "unchanged"), 0)

    def show_output(self, line: str) -> None:
        """Process a line of DVC or of a stage."""
        if match := RUNNING.match(line):
            self._begin_stage(match[1])
        elif match := RESTORED.match(line):
            self._begin_stage(match[1], "restored")  # the copying of its files may fail
        elif UNCHANGED.match(line):
            self._begin_stage("")
            self._counts["unchanged"] += 1
        elif self._stage and line.strip() and not line.startswith(("> ", "Updating lock file", "Generating lock file")):
            self._message = f": {line.strip()}"
            self._redraw(self._stage + self._message)

    def show_running(self) -> None:
        """In a log or a pipe, print from time to time that the stage still runs."""
        now = time.monotonic()
        if self._stage and not self._is_terminal and now - self._last_print >= MESSAGE_INTERVAL:
            duration = format_duration(now - self._stage_start)
            self._print(f"{self._counter()} {self._stage} (running for {duration}){self._message}")

    def show_error(self, line: str) -> None:
        """Print a line of the errors of DVC or of a stage as it is."""
        self.was_interrupted |= line == TRACEBACK_END or any(words in line for words in INTERRUPTED)
        if line.strip():
            self._clear()
            print(line, file=self._errors, flush=True)

    def end(self, status: int) -> None:
        """Print the summary, after DVC has ended with the exit code `status`."""
        if self._stage:
            failure = "stopped" if self.was_interrupted else "failed"
            self._finish_stage(failure if status else self._outcome)
        self._clear()
        counts = ", ".join(f"{number} {word}" for word, number in self._counts.items() if number)
        duration = format_duration(time.monotonic() - self._start)
        if not status:
            self._print(f"{self._count} stage{'s' * (self._count != 1)} ({counts}) in {duration}")
        else:
            self._print(f"stopped after {duration} ({counts or 'nothing ran'}); all output: .fedweave/repro.log")

    def _begin_stage(self, stage: str, outcome: str = "ran") -> None:
        """End the stage before, and begin `stage`, whose outcome is `outcome` unless it fails."""
        if self._stage:
            self._finish_stage(self._outcome)
        self._outcome = outcome
        self._stage, self._stage_start, self._message, self._count = stage, time.monotonic(), "", self._count + 1
        self._last_print = self._stage_start
        self._total = max(self._total, self._count)
        self._redraw(stage)

    def _finish_stage(self, outcome: str) -> None:
        duration = format_duration(time.monotonic() - self._stage_start) if outcome != "restored" else "restored"
        self._counts[outcome] = self._counts.get(outcome, 0) + 1
        self._clear()
        prefix = f"{outcome} after " if outcome in FAILURES else ""
        self._print(f"{self._counter()} {self._stage:44} {prefix}{duration}".rstrip())
        self._stage = ""

    def _counter(self) -> str:
        return f"{self._count:{len(str(self._total))}}/{self._total}"

    def _print(self, line: str) -> None:
        self._last_print = time.monotonic()
        print(line, file=self._output, flush=True)

    def _redraw(self, text: str) -> None:
        if self._is_terminal:
            width = terminal_width(self._output) - 1
            print(f"\r{self._counter()} {text}"[: width + 1], end="\x1b[K", file=self._output, flush=True)

    def _clear(self) -> None:
        if self._is_terminal:
            print("\r", end="\x1b[K", file=self._output, flush=True)
