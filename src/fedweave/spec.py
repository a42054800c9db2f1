"""params.yaml as typed records."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedweave import ablations
from fedweave.config import construct, read_yaml
from fedweave.errors import BadInput, choose

PARAMS = Path("params.yaml")
NAME = r"(?!\.)[\w .+=,()@-]{1,120}"  # of a study, a task, a run: it becomes a folder


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """Budget and local optimiser of a task.

    Attributes:
        rounds: T.
        epochs, steps, batch_size: local work per round; `steps` replaces epochs, batch_size 0 is the whole training set.
        participation: fraction (≤ 1) or number (> 1) of clients per round.
        optimizer, lr, momentum, weight_decay, clip: the clients' solver.
        augment: pixels by which training images are shifted at random, and then mirrored half of the time, or null.
        bn_buffers: "average" lets methods that average do so with BatchNorm statistics; null leaves them with the clients.
        executor, chunk: how clients are mapped; never changes a result beyond rounding.
        device: "auto" takes a GPU where there is one.
        newcomers, join_round: how many clients join late, and before which round.
        freeze: the server learns nothing more once they have joined.
        checkpoint: rounds between checkpoints, 0 for none.
        privacy: {clip, noise, delta} of what clients send, see `fedweave.privacy.Privacy`, or null.
        robust: {rule, trim, bound} of the server's aggregation, see `fedweave.robust.Robust`, or null.
    """

    rounds: int
    lr: float
    epochs: int = 1
    steps: int = 0
    batch_size: int = 32
    participation: float = 1.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    augment: int | None = None
    bn_buffers: Literal["average"] | None = None
    executor: Literal["auto", "loop", "batched", "compiled"] = "auto"
    chunk: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    newcomers: int = 0
    join_round: int = 0
    freeze: bool = False
    checkpoint: int = 25
    privacy: dict[str, Any] | None = None
    robust: dict[str, Any] | None = None

    bounds: ClassVar = {
        "rounds": (1, None),
        "lr": (0, None),
        "epochs": (1, None),
        "steps": (0, None),
        "batch_size": (0, None),
        "participation": (1e-6, None),
        "augment": (1, None),
        "momentum": (0, 1),
        "weight_decay": (0, None),
        "clip": (1e-12, None),
        "chunk": (0, None),
        "newcomers": (0, None),
        "join_round": (0, None),
        "checkpoint": (0, None),
    }


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """When and how models are judged.

    Attributes:
        every: rounds between evaluations.
        select: how the reported round is chosen; always from validation data.
        point: "pre", "post", or "method" for the point the method's paper reports.
    """

    every: int = 1
    select: Literal["best_val_round", "per_client_best_val", "last"] = "best_val_round"
    point: Literal["method", "pre", "post"] = "method"

    bounds: ClassVar = {"every": (1, None)}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A data set, how it is dealt to clients, what they train and how long.

    Attributes:
        dataset, normalize, partition, model: names and options of the data layer and the client model.
        setting: how the partition is called in tables.
        published: the printed column this task may stand beside, or null.
        attack: how some clients lie about their data, or null.
    """

    dataset: str
    setting: str
    partition: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    normalize: Any = "none"
    evaluate: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] | None = None
    attack: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """The tuning budget, the same for every method.

    Attributes:
        trials: per run; 0 turns tuning off.
        share: of the task's rounds that a trial trains, rounded up.
        seeds: of a trial; disjoint from the study's seeds.
        workers: parallel processes.
        spaces: method -> {parameter: {low, high, log, step} or {choices}}; "train.lr" reaches the solver.
    """

    trials: int = 0
    share: float = 1.0
    seeds: list[int] = field(default_factory=lambda: [1000])
    sampler: Literal["tpe", "random"] = "tpe"
    workers: int = 2
    spaces: dict[str, Any] = field(default_factory=dict)

    bounds: ClassVar = {"trials": (0, None), "share": (1e-6, 1), "workers": (1, None)}


@dataclass(frozen=True, kw_only=True)
class Item:
    """An entry of `runs`: one train stage. `set` holds settings of this run alone."""

    task: str
    method: str
    set: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One method on one task, with everything resolved.

    Attributes:
        study, key: names.
        task: the task; `name` is its key in params.yaml.
        method, options: the method and its hyper-parameters.
        train, evaluate: budget and judgement.
        seeds: of the repetitions.
    """

    study: str
    key: str
    name: str
    task: TaskSpec
    method: str
    options: dict[str, Any]
    train: TrainSpec
    evaluate: EvaluateSpec
    seeds: tuple[int, ...]

    @property
    def variant(self) -> str:
        """What distinguishes this run from the plain method on its task: the end of its key, or empty."""
        suffix = self.key.removeprefix(f"{self.name}-")
        return "" if suffix == self.method else suffix

    def resolved(self) -> dict[str, Any]:
        """All that the result depends on, as plain data; the executor and the device are not part of it."""
        task = {k: v for k, v in asdict(self.task).items() if k not in ("train", "evaluate", "published")}
        train = {k: v for k, v in asdict(self.train).items() if k not in ("executor", "chunk", "device", "checkpoint")}
        train = {k: v for k, v in train.items() if v is not None or k == "clip"}  # what is off is not there
        return {"task": task, "method": {"name": self.method, **self.options}, "train": train, "evaluate": asdict(self.evaluate)}

    def fingerprint(self) -> str:
        """A hash of `resolved`, the same for the same computation."""
        return hashlib.sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Study:
    """A checked params.yaml."""

    name: str
    about: str
    seeds: tuple[int, ...]
    tasks: dict[str, TaskSpec]
    runs: dict[str, Item]
    methods: dict[str, dict[str, Any]]
    tune: TuneSpec
    ablate: dict[str, dict[str, Any]]

    def run(self, key: str, tuned: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None) -> Run:
        """The run `key`; later layers win: task, method block, `tuned`, the run's own `set`, `extra`.

        Raises:
            BadInput: for an unknown run.
        """
        item = self.runs[choose(key, self.runs, "params.yaml: runs")]
        task = self.tasks[item.task]
        layers = [self.methods.get(item.method) or {}, nest(tuned or {}), nest(item.set), nest(extra or {})]
        options: dict[str, Any] = {}
        train, evaluate = dict(task.train), dict(task.evaluate)
        for layer in layers:
            for name, block in (("train", train), ("evaluate", evaluate)):
                given = layer.get(name, {})
                if not isinstance(given, Mapping):
                    raise BadInput(f"params.yaml: runs.{key}: {name}: {given!r} is not a mapping of settings")
                block.update(given)
            options.update({k: v for k, v in layer.items() if k not in ("train", "evaluate")})
        where = f"params.yaml: runs.{key}"
        return Run(
            self.name,
            key,
            item.task,
            task,
            item.method,
            options,
            construct(TrainSpec, train, f"{where}.train"),
            construct(EvaluateSpec, evaluate, f"{where}.evaluate"),
            self.seeds,
        )


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.lr": 1, "lam": 2} -> {"train": {"lr": 1}, "lam": 2}."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        head, _, tail = str(key).partition(".")
        within = {tail: value} if tail else value
        if isinstance(within, Mapping) and isinstance(nested.get(head, {}), dict):
            nested.setdefault(head, {}).update(within)
        else:
            nested[head] = within
    return nested


def load(path: Path | str = PARAMS) -> Study:
    """Read params.yaml and check its form; `assemble.load` also checks names and hyper-parameters.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return parse(read_yaml(Path(path)), str(path))


def parse(raw: Mapping[str, Any], where: str = "params.yaml") -> Study:
    """A study from plain data, its form checked."""
    for key in raw:
        choose(key, ("study", "about", "seeds", "datasets", "tasks", "runs", "methods", "tune", "ablate"), where)
    for key, kind in {"study": str, "tasks": dict, "runs": dict, "methods": dict, "seeds": list}.items():
        if not isinstance(raw.get(key), kind) or not raw[key]:
            raise BadInput(f"{where}: {key}: {raw.get(key)!r} must be a non-empty {kind.__name__}; see: fedweave study show quick")
    _check_names(raw, where)
    if not all(type(s) is int and 0 <= s < 2**31 for s in raw["seeds"]) or len({*raw["seeds"]}) < len(raw["seeds"]):
        raise BadInput(f"{where}: seeds: {raw['seeds']!r} must be different whole numbers, at least 0 and below 2^31")
    tasks = {name: construct(TaskSpec, block, f"{where}: tasks.{name}") for name, block in raw["tasks"].items()}
    runs = {key: construct(Item, block, f"{where}: runs.{key}") for key, block in raw["runs"].items()}
    tune = construct(TuneSpec, raw.get("tune", {}), f"{where}: tune")
    if {*tune.seeds} & {*raw["seeds"]}:
        raise BadInput(f"{where}: tune.seeds: {tune.seeds} overlap the study's seeds {raw['seeds']}; use others")
    for key, item in runs.items():
        choose(item.task, tasks, f"{where}: runs.{key}.task")
    if "datasets" in raw and _set(raw["datasets"]) != (needed := {task.dataset for task in tasks.values()}):
        raise BadInput(f"{where}: datasets: {raw['datasets']!r} must name the data sets of the tasks: {', '.join(sorted(needed))}")
    ablate = {name: ablations.expand(block, f"{where}: ablate.{name}") for name, block in (raw.get("ablate") or {}).items()}
    for name, block in ablate.items():
        choose(block["run"], runs, f"{where}: ablate.{name}.run")
    return Study(raw["study"], raw.get("about", ""), tuple(raw["seeds"]), tasks, runs, dict(raw["methods"]), tune, ablate)


def _check_names(raw: Mapping[str, Any], where: str) -> None:
    """Refuse blocks that are no mappings, and names that cannot be those of a folder."""
    for key in ("tasks", "runs", "methods", "ablate"):
        block = raw.get(key) or {}
        if not isinstance(block, Mapping):
            raise BadInput(f"{where}: {key}: {block!r} is not a mapping of names to blocks")
        for name in block:
            if not isinstance(name, str) or not re.fullmatch(NAME, name):
                raise BadInput(f"{where}: {key}: {name!r} names a folder; use letters, digits, dots, dashes, underscores and spaces")
    for name, block in raw["methods"].items():
        if block is not None and not isinstance(block, Mapping):
            raise BadInput(f"{where}: methods.{name}: {block!r} is not a mapping of settings; write {{}} for none")
    if not all(re.fullmatch(NAME, part) for part in raw["study"].split("/")):
        raise BadInput(
            f"{where}: study: {raw['study']!r} names a folder; use letters, digits, dots, dashes, underscores and single slashes"
        )


def _set(names: object) -> set[Any] | None:
    return {*names} if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
