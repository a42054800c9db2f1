"""Test windows of forecasts, one origin at a time: the input of a later window contains the targets of earlier ones.

At each origin the next window of every client is handed out, and its forecasts are taken before the one after it is.
"""

import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.contestants import checks, exchange
from fedweave.contestants.rows import ContestAnswers, ContestTask
from fedweave.errors import ContestantFailed
from fedweave.files.atomic import FULL

LOOK = 0.002  # seconds between two looks for the forecasts of an origin
DONE = "done-{}"  # file by which a program says that its forecasts of an origin are there


def ask_functions(task: ContestTask, answers: Any) -> ContestAnswers:
    """Answers whose forecasts of test rows come from the function of each client, in the order of time.

    Args:
        task: with its test windows.
        answers: what code gave for the task without them.

    Raises:
        ContestantFailed: a client has no function.
    """
    given = answers if isinstance(answers, ContestAnswers) else ContestAnswers(answers)
    pairs = checks.pair_up(task, given.predictions)
    functions: list[Callable[[np.ndarray], Any]] = []
    for client, pair in zip(task.clients, pairs, strict=True):
        if client.evaluated and not callable(pair[1]):
            problem = "it gave no function for its test windows; of forecasts, give (val, function of one window)"
            raise ContestantFailed(f"client {client.name!r}", problem)
        functions.append(pair[1] if client.evaluated else lambda window: window)
    outputs = collect(task, lambda position, window: functions[position](window))
    return replace(given, predictions=[(pair and pair[0], own) for pair, own in zip(pairs, outputs, strict=True)])


def collect(task: ContestTask, predict: Callable[[int, np.ndarray], Any]) -> list[np.ndarray]:
    """The forecasts [m, K] of each client's test windows, by `predict` (position of a client, window [1, ...])."""
    outputs: list[list[np.ndarray]] = [[] for _ in task.clients]
    for number in range(task.origins):
        for position, window in _windows(task, number):
            outputs[position].append(_check(task, position, number, predict(position, window)))
    return [_stack(task, own) for own in outputs]


def _windows(task: ContestTask, number: int) -> Iterator[tuple[int, np.ndarray]]:
    """(position of a client, its window [1, ...]) at an origin."""
    for position, client in enumerate(task.clients):
        if number < len(client.test_x):
            yield position, client.test_x[number : number + 1].copy()  # a view leads to the later ones


def _check(task: ContestTask, position: int, number: int, value: Any) -> np.ndarray:
    return checks.check_outputs(task, value, 1, f"client {task.clients[position].name!r}: test window {number}")


def _stack(task: ContestTask, outputs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(outputs) if outputs else np.zeros((0, task.outputs))


@dataclass
class Origins:
    """The origins of a program that runs: it reads their numbers from its standard input, one a line.

    Attributes:
        task: with its test windows.
        handed, output: folders of its task and its output.
        waiting: number of the origin whose forecasts are not there yet; None after the last.
        outputs: forecasts so far, of each client.
    """

    task: ContestTask
    handed: Path
    output: Path
    waiting: int | None = 0
    outputs: list[list[np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = [[] for _ in self.task.clients]

    def hand_out(self, process: "subprocess.Popen[bytes]") -> Iterator[None]:
        """Hand out the windows of one origin after the other and take its forecasts; stops while they are not there.

        Raises:
            ContestantFailed: forecasts that cannot be read, a folder that it has changed, or nobody reads the numbers.
        """
        assert process.stdin is not None
        with _own_files():
            for number in range(self.task.origins):
                self.waiting = number
                for position, window in _windows(self.task, number):
                    place = exchange.client_folder(self.handed, position)
                    exchange.write_part(place, f"test-{number}", {"x": window}, self.task)
                if not select.select([], [process.stdin], [], 0)[1]:
                    problem = "numbers of origins are waiting there"
                    raise ContestantFailed("it does not read its standard input", problem)
                with suppress(OSError):  # it has ended
                    process.stdin.write(f"{number}\n".encode())
                    process.stdin.flush()
                while not (self.output / DONE.format(number)).exists():
                    yield
                self._take(number)
        self.waiting = None
        with suppress(OSError):
            process.stdin.close()

    def answers(self) -> list[np.ndarray]:
        """The forecasts [m, K] of each client.

        Raises:
            ContestantFailed: the program has ended before the last origin.
        """
        if self.waiting is not None:
            missing = DONE.format(self.waiting)
            raise ContestantFailed(f"it ended without a file {missing}", f"there are {self.task.origins} origins")
        return [_stack(self.task, own) for own in self.outputs]

    def _take(self, number: int) -> None:
        """Read the forecasts of an origin. They are removed, so that the folders stay small."""
        part = f"test-{number}"
        exchange.refuse_links(self.output)
        for position, _ in _windows(self.task, number):
            place, client = exchange.client_folder(self.output, position), self.task.clients[position]
            value = exchange.read_part(place, part, 1, client)
            self.outputs[position].append(_check(self.task, position, number, value))
            for folder in (place, exchange.client_folder(self.handed, position)):
                for ending in exchange.ENDINGS:
                    (folder / f"{part}{ending}").unlink(missing_ok=True)
        (self.output / DONE.format(number)).unlink(missing_ok=True)


@contextmanager
def _own_files() -> Iterator[None]:
    """A file that cannot be written, read or removed in the folders of a program is its own matter, if there is space.

    Raises:
        ContestantFailed: naming the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        place = f"file {Path(str(error.filename)).name} of an origin"
        problem = f"it cannot be used ({error.strerror}); write files, and leave the folder of the task as it is"
        raise ContestantFailed(place, problem) from error
