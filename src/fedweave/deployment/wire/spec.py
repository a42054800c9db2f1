"""What all hosts of a federation know: the run, the shapes of its data, its clients, and the tensors that nodes send.

It holds no row of any client. Its hash is what the owner of a node agrees to.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.client.task import Task
from fedweave.data import Dataset, Partition, splits
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method, Start
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_sample
from fedweave.engine.timeline import Timeline
from fedweave.errors import BadInput, choose
from fedweave.files.atomic import write_atomic
from fedweave.methods import METHODS
from fedweave.runs import tasks
from fedweave.study import objects, plugins
from fedweave.study.config import construct
from fedweave.study.schema import EvaluateSpec, TaskSpec, TrainSpec
from fedweave.study.spec import RunSpec
from fedweave.tensors import trees

FILE, VERSION = "spec.json", 1
HASH_DIGITS = 16  # least number of digits of a hash that name a specification


@dataclass(frozen=True, eq=False)
class AppSpec:
    """The content of spec.json.

    Attributes:
        run: the run, with the one seed of this federation.
        data: shapes of the data, from `facts_of`.
        clients: names of the clients, by identity.
        group: planted group of each client, or None; `group_names` names them.
        relation: [2, R] the given client graph, or None.
        forms: what nodes send: "enrol" -> stage -> tensors, "train" -> list of {"from": round, "tensors": ...}.
        scaling: numbers that scale features, and the columns of a table, for data that are prepared on a node.
        secure: whether nodes mask their uploads, so that the server learns their mean only.
        units: unit of each client, by identity, or none.
    """

    run: RunSpec
    data: Mapping[str, Any]
    clients: tuple[str, ...]
    group: tuple[int, ...] | None
    group_names: tuple[str, ...]
    relation: tuple[tuple[int, ...], ...] | None
    forms: Mapping[str, Any]
    scaling: Mapping[str, Any]
    secure: bool = False
    units: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """Seed of the federation's initial model, participation and minibatches."""
        return self.run.seeds[0]

    @cached_property
    def task(self) -> Task:
        """What clients learn, built without data."""
        dataset, partition = placeholder_data(self.data)
        return tasks.build_task(self.run, dataset, partition)

    @cached_property
    def method(self) -> Method:
        """The method, the same object on all hosts."""
        return objects.build_method(self.run, self.task)

    @cached_property
    def settings(self) -> Settings:
        """The engine's settings."""
        return objects.build_settings(self.run, self.seed)

    @cached_property
    def timeline(self) -> Timeline:
        """Stages and rounds of evaluation; who takes part is known only while the federation runs."""
        return Timeline.of(self.method, self.placeholder(range(len(self.clients))), self.settings)

    @cached_property
    def evaluated_clients(self) -> Tensor | None:
        """Identities of the clients that are evaluated, the same as in the simulation; None for all."""
        everybody, first = torch.arange(len(self.clients)), splits(self.run.task.partition)[0]
        mask = evaluation_sample(first["seed"], everybody, self.run.evaluate.clients)
        return None if mask is None else everybody[mask]

    def placeholder(self, members: Sequence[int]) -> Clients:
        """A federation of `members` (identities in the order in which they joined) that holds no data."""
        no_rows = torch.full((len(members), 0), -1, dtype=torch.int64)
        ids = torch.tensor([*members], dtype=torch.int64)
        known = self.group is not None and all(i < len(self.group) for i in members)
        group = torch.tensor([self.group[i] for i in members]) if known and self.group is not None else None
        evaluated = None if self.evaluated_clients is None else torch.isin(ids, self.evaluated_clients)
        relation = None
        if self.relation is not None:
            positions = {identity: i for i, identity in enumerate(members)}
            pairs = [
                (positions[a], positions[b]) for a, b in zip(*self.relation, strict=True) if {a, b} <= {*positions}
            ]
            relation = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
        return Clients({}, {}, no_rows, no_rows, no_rows, ids, relation=relation, group=group, evaluated=evaluated)

    def evaluated_positions(self, members: Sequence[int]) -> list[int]:
        """Positions of the members that are evaluated, ascending."""
        return self.placeholder(members).sample.tolist()

    def member_names(self, members: Sequence[int]) -> tuple[str, ...]:
        """Names of the members; the name of a client that the specification does not know is its number."""
        return tuple(self.clients[i] if i < len(self.clients) else f"client {i}" for i in members)

    def member_units(self, members: Sequence[int]) -> tuple[str, ...]:
        """Units of the members, or none; a client that the specification does not know is a unit of its own."""
        units = self.units
        return tuple(units[i] if i < len(units) else f"client {i}" for i in members) if units else ()

    @property
    def founder_count(self) -> int:
        """How many clients take part from the start."""
        return len(self.clients) - (self.settings.newcomers if self.settings.join_round else 0)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the content, in hexadecimal digits."""
        return hashlib.sha256(text_of(self).encode()).hexdigest()

    @property
    def short_hash(self) -> str:
        """The first digits of the hash, which name this specification."""
        return self.hash[:HASH_DIGITS]

    def enrolment_form(self, stage: int) -> dict[str, Any]:
        """Name -> [shape, type] of the tensors that a node sends on joining, for a stage."""
        return dict(self.forms["enrol"][str(stage)])

    def upload_form(self, round: int) -> dict[str, Any]:
        """Name -> [shape, type] of the tensors that a node sends after the training of a round."""
        return dict(next(part["tensors"] for part in reversed(self.forms["train"]) if part["from"] <= round))

    def imagine_start(self, start: Start, count: int) -> Start:
        """What the server knows of the first `count` clients, if all of them enrol as the first one of `start` does."""
        placeholder = self.placeholder(range(count))
        enrolled = trees.broadcast(trees.at(start.enrolled, 0), count)
        return start._replace(enrolled=enrolled, clients=count, relation=placeholder.relation, ids=placeholder.ids)


def text_of(spec: AppSpec) -> str:
    """The text of spec.json."""
    run = asdict(spec.run)
    content = {name: getattr(spec, name) for name in AppSpec.__dataclass_fields__ if name != "run"}
    # The text, and so the hash, of a federation without units, margins or `drop_last` is that of earlier versions.
    if not spec.units:
        del content["units"]
    if not spec.run.margins:
        del run["margins"]
    if spec.run.train.drop_last is None:
        del run["train"]["drop_last"]
    return json.dumps({"version": VERSION, "run": run, **content}, indent=1, sort_keys=True, default=list) + "\n"


def write(spec: AppSpec, folder: Path) -> None:
    """Write spec.json."""
    write_atomic(folder / FILE, text_of(spec))


def read(path: Path) -> AppSpec:
    """Read spec.json.

    Raises:
        BadInput: the file is missing, damaged, or of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version, run = content.pop("version"), content.pop("run")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(path, f"no specification of a federation ({reason}); export it again") from error
    if version != VERSION:
        raise BadInput(path, f"version {version}, but this fedweave reads {VERSION}; install the same on all hosts")
    try:
        return AppSpec(_parse_run(run, str(path)), **_lists_to_tuples(content))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(path, f"an incomplete specification ({error}); export it again") from error


def _parse_run(block: dict[str, Any], where: str) -> RunSpec:
    plugins.load_if_missing(block["method"], METHODS)
    choose(block["method"], METHODS, f"{where}: run.method")
    records: dict[str, Any] = {
        name: construct(cls, block.pop(name), f"{where}: run.{name}")
        for name, cls in (("task", TaskSpec), ("train", TrainSpec), ("evaluate", EvaluateSpec))
    }
    return RunSpec(**{**block, **records, "seeds": tuple(block["seeds"])})


def _lists_to_tuples(content: dict[str, Any]) -> dict[str, Any]:
    names = ("clients", "group", "group_names")
    converted = {name: None if content[name] is None else tuple(content[name]) for name in names}
    pairs = content["relation"]
    converted["units"] = tuple(content.get("units", ()))
    return {**content, **converted, "relation": None if pairs is None else tuple(map(tuple, pairs))}


def facts_of(dataset: Dataset, partition: Partition, widths: Mapping[str, int]) -> dict[str, Any]:
    """What models need to know of a data set: kind, shapes, numbers of classes and outputs; no row."""
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "shape": [*dataset.x.shape[1:]],
        "classes": dataset.classes,
        "targets": None if dataset.targets is None else dataset.targets.shape[1],
        "categories": [*dataset.categories],
        "channels": [*dataset.channels],
        "class_names": [*dataset.class_names],
        "class_type": dataset.label_type,
        "layout": dict(partition.layout),
        "note": dataset.note,
        "shared_test": partition.test_weight is not None,
        "widths": dict(widths),
    }


def placeholder_data(facts: Mapping[str, Any]) -> tuple[Dataset, Partition]:
    """A data set of one blank row, and one client that holds it: enough to build models and tasks."""
    kind, blank = facts["kind"], np.zeros((1, *facts["shape"]), dtype=np.float32)
    targets = None if facts["targets"] is None else np.zeros((1, facts["targets"]), dtype=np.float32)
    is_series = kind == "series"
    dataset = Dataset(
        facts["name"],
        kind,
        blank,
        None if is_series or targets is not None else np.zeros(1, dtype=np.int64),
        facts["classes"],
        edges=np.zeros((2, 0), dtype=np.int64) if kind == "graph" else None,
        time=np.zeros(blank.shape[1], dtype=np.float32) if is_series else None,
        categories=tuple(facts["categories"]),
        targets=targets,
        channels=tuple(facts["channels"]),
        class_names=tuple(facts["class_names"]),
        note=facts["note"],
    )
    row = (np.zeros(1, dtype=np.int64),)
    weight = np.ones((1, facts["classes"]), dtype=np.float32) if facts["shared_test"] else None
    return dataset, Partition(row, row, row, layout=dict(facts["layout"]), test_weight=weight)
