"""A contestant among the methods: it brings predictions, and everything behind them works as for any method."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.contestants.rows import ContestAnswers, ContestTask
from fedweave.engine.protocol import ClientState, Method, Server, Stage, Start, Update
from fedweave.methods import METHODS
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

ANSWERS, GRAPH = "answers", "graph"


class Runner(ABC):
    """How the code of a contestant runs.

    Attributes:
        how: in one or two words, which stand behind its name in tables.
        unequal: what is not equal to the methods that fedweave trains, for the notes of a board.
    """

    how: ClassVar[str]
    unequal: tuple[str, ...]

    @abstractmethod
    def digest(self) -> str:
        """A text that changes with all that the predictions depend on, the rows and the seed excepted."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the record of a run says about it, as plain data."""

    @abstractmethod
    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        """The predictions for `task`, not checked yet.

        Args:
            log: file for what the code prints, if it prints into files.

        Raises:
            ContestantFailed: with the reason as its place.
        """


@dataclass(frozen=True, kw_only=True)
class Contestant(Method):
    """Predictions of code that fedweave does not know, in the place of a method.

    The "model" of a client is a table: "rows" [R], and the "outputs" [R, K] that the contestant gave for them. So they
    are scored, stored and compared by the same code as those of a model. Nothing is trained.
    """

    label: ClassVar[str] = "Contestant"
    own_name: ClassVar[str] = "contestant"
    runner: ClassVar[Runner]

    point = "pre"
    fixed_point = True
    robust_part = ""
    parameters = ()
    has_models = False
    epochs = 0

    def stages(self, rounds: int) -> list[Stage]:
        """One round: what a contestant does with its rounds is its own matter."""
        return [Stage(self, 1)]

    def join(self, model: Tree) -> ClientState:
        return {}

    def init(self, start: Start) -> Server:
        return {}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {}, trees.take(server[ANSWERS], ids)

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        return Update({}, {}, own, torch.zeros(()))

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        return server

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        return own

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        """The outputs [B, K] that the contestant gave for `rows` [B], which are validation or test rows."""
        places = (rows[:, None] == model["rows"]).int().argmax(1) if len(rows) else rows
        return torch.as_tensor(model["outputs"][places])

    def collaboration(self, server: Server) -> Tensor | None:
        return server.get(GRAPH)


def build_entry(name: str, runner: Runner) -> type[Contestant]:
    """A class of methods that is this contestant; `name` is its name in lists and tables."""

    @dataclass(frozen=True, kw_only=True)
    class Entry(Contestant):
        """A contestant with its code."""

    Entry.label, Entry.own_name, Entry.runner = f"{name} ({runner.how})", name, runner
    Entry.record = {"contestant": {"how": runner.how, "unequal": [*runner.unequal], **runner.describe()}}
    return Entry


def find_entry(method: str) -> type[Contestant] | None:
    """The class of the contestant `method`; None for methods that fedweave trains, and unknown ones."""
    cls = METHODS.get(method)
    return cls if cls is not None and issubclass(cls, Contestant) else None
