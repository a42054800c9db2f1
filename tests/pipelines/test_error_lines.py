"""The line that says why a stage failed, in its state, in the message of its flow and in the outcome of a job."""

import pytest

from fedweave.pipelines.scheduling.error_lines import find_reason
from fedweave.pipelines.scheduling.host import StageError
from tests.servers import python

DVC = "ERROR: failed to reproduce 'train@a': failed to run: exec python launcher.py train 'a', exited with {}"
NESTED = """
errors = {"disk": OSError(5, "first")}
try:
    if "disk" in errors: raise errors["disk"]
except OSError as error:
    raise RuntimeError("second:\\n  an error on a line of its own") from error
"""


def run(program: str) -> tuple[list[str], int]:
    """The lines that a program prints, as flows keep them, and its exit code."""
    done = python("-c", program)
    return [line.strip() for line in done.stderr.splitlines()], done.returncode


def test_of_a_traceback_it_is_the_last_exception() -> None:
    """And no line of code that has the word "error"."""
    assert find_reason(*run(NESTED)) == (1, "RuntimeError: second:")


@pytest.mark.parametrize("code", [1, 2, 3, 7])
def test_the_exit_code_is_that_of_the_stage(code: int) -> None:
    """DVC ends with 255 after every failure."""
    lines = ["digits, seed 0: round 2/6, loss 1.2", "error: train.lr: -1 is out of range", DVC.format(code)]
    assert find_reason(lines, 255) == (code, "error: train.lr: -1 is out of range")


@pytest.mark.parametrize(("lines", "code"), [([DVC.format(-9)], 255), ([DVC.format(137)], 255), ([], -9)])
def test_a_killed_stage_is_said_to_be_killed(lines: list[str], code: int) -> None:
    assert "memory is short" in find_reason(lines, code)[1]


def test_without_any_line_only_the_code_is_known() -> None:
    reason = find_reason(["digits, seed 0: round 2/6, loss 1.2", DVC.format(7)], 255)
    assert str(StageError(*reason)) == "exit code 7: no error line"
