"""params.yaml as a study of runs."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedweave import ablations
from fedweave.blocks import EvaluateSpec, Item, TaskSpec, TrainSpec, TuneSpec
from fedweave.config import construct, read_yaml
from fedweave.errors import BadInput, choose

PARAMS = Path("params.yaml")
NAME = r"(?!\.)[\w .+=,()@-]{1,120}"  # of a study, a task, a run: it becomes a folder


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
