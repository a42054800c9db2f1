"""A contestant among the methods: it brings predictions, and everything behind them works as for any method."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.contestants.rows import ContestAnswers, ContestTask
from fedweave.contestants.running import ANSWERS, GRAPH, play
from fedweave.engine.protocol import ClientState, Method, Server, Stage, Start, Update
from fedweave.engine.records import Report
from fedweave.errors import BadInput, choose, format_value
from fedweave.methods import METHODS
from fedweave.runs.build import PreparedRun
from fedweave.settings import Space
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

OWN_BUDGET, UNTUNED = "its budget is its own", "fedweave has not tuned it"
OWN_SPACE = "of its settings, a search tunes those that it declares"


class Runner(ABC):
    """How the code of a contestant runs.

    Attributes:
        how: in one or two words, which stand behind its name in tables.
        unequal: what is not equal to the methods that fedweave trains, for the notes of a board.
    """

    how: ClassVar[str]
    unequal: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files and folders that its code is read from, as far as they are known."""
        return ()

    @abstractmethod
    def digest(self) -> str:
        """A text that changes with all that the predictions depend on, the rows and the seed excepted."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the record of a run says about it, as plain data."""

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse rows that the code cannot read, before any work.

        Args:
            names: of the raw columns; empty if the rows have none.

        Raises:
            BadInput: naming what is missing.
        """
        del names

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
    digest: ClassVar[Any]

    point = "pre"
    fixed_point = True
    robust_part = ""
    parameters = ()
    has_models = False
    epochs = 0

    def stages(self, rounds: int) -> list[Stage]:
        """One round: what a contestant does with its rounds is its own matter."""
        return [Stage(self, 1)]

    def play(self, prepared: PreparedRun, seed: int) -> Report:
        """Run the code and score its predictions; as of `fedweave.runs.repetition.Outsider`."""
        return play(self.runner.run, self.own_name, prepared, seed)

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


@dataclass(frozen=True)
class DeclaredSpace(Space):
    """The values that a search may try, as the contestant declares them."""

    content: Mapping[str, Any]

    def entry(self) -> dict[str, Any]:
        return {**self.content}

    def __str__(self) -> str:
        return ", ".join(f"{word} {value}" for word, value in self.content.items())


def build_entry(
    name: str, runner: Runner, settings: Mapping[str, Any] | None = None, space: Mapping[str, Any] | None = None
) -> type[Contestant]:
    """A class of methods that is this contestant.

    Args:
        name: in lists and tables.
        settings: values that its task names, and that runs may change.
        space: setting -> the values that a search may try, as in `tune.spaces`.

    Raises:
        BadInput: `settings` or `space` is no mapping, a setting is no number, text or bool or has a name that it cannot
            have, or a space has no setting.
    """
    settings, space = settings or {}, space or {}
    for option, block in (("settings", settings), ("space", space)):
        if not isinstance(block, Mapping):
            raise BadInput(
                f"contestant {name}: {option}", f"{format_value(block)} is not a mapping; give {{name: value}}"
            )
    for key in space:
        choose(key, settings, f"contestant {name}: space")
    taken = {field.name for field in fields(Contestant)}
    for key, value in settings.items():
        if not (isinstance(key, str) and key.isidentifier()) or key in {*taken, "train", "evaluate", "contestant"}:
            raise BadInput(f"contestant {name}: settings", f"{format_value(key)} cannot be a setting; rename it")
        if not isinstance(value, bool | int | float | str):
            raise BadInput(f"contestant {name}: settings.{key}", f"{format_value(value)} is no number, text or bool")
    types: dict[str, Any] = {key: type(value) for key, value in settings.items()}
    types |= {key: Annotated[types[key], DeclaredSpace(values)] for key, values in space.items()}
    declared = [(key, types[key], value) for key, value in settings.items()]
    entry: Any = make_dataclass("Entry", declared, bases=(Contestant,), frozen=True, kw_only=True)
    entry.__doc__, entry.__module__ = "A contestant with its code.", __name__
    entry.label, entry.own_name, entry.runner = f"{name} ({runner.how})", name, runner
    entry.digest = runner.digest
    unequal = [line for line in runner.unequal if line != UNTUNED or not space] + [OWN_SPACE] * bool(space)
    entry.record = {"contestant": {"how": runner.how, "unequal": unequal, **runner.describe()}}
    return entry


def rename(contestant: type[Contestant], name: str) -> type[Contestant]:
    """The same contestant with another name."""
    label = f"{name} ({contestant.runner.how})"
    return type(contestant.__name__, (contestant,), {"label": label, "own_name": name, "__doc__": contestant.__doc__})


def find_entry(method: str) -> type[Contestant] | None:
    """The class of the contestant `method`; None for methods that fedweave trains, and unknown ones."""
    cls = METHODS.get(method)
    return cls if cls is not None and issubclass(cls, Contestant) else None


def enter(contestant: type[Contestant], where: str) -> str:
    """The name of a contestant, which takes the place of an earlier one of its name among the methods.

    Raises:
        BadInput: at `where`; a method has its name.
    """
    name = contestant.own_name
    if name in METHODS and find_entry(name) is None:
        raise BadInput(f"{where}: the contestant {name!r} has the name of a method; give it another one: name=...")
    METHODS[name] = contestant
    return name
