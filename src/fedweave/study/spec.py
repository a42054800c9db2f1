"""params.yaml as a study of runs."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput, choose, format_value
from fedweave.study import outside, plugins, variants
from fedweave.study.config import MOST_SEEDS, construct, example, read_yaml
from fedweave.study.model_files import add_digest
from fedweave.study.schema import EvaluateSpec, RunEntry, TaskSpec, TrainSpec, TuneSpec

PARAMS = Path("params.yaml")
STATE = Path(".fedweave")  # in a project and in a folder of results: what is kept between runs
# Of params.yaml; `graphs` names the files of given graphs for DVC.
WORDS = (
    "study",
    "about",
    "uses",
    "graphs",
    "seeds",
    "datasets",
    "tasks",
    "runs",
    "methods",
    "tune",
    "ablate",
    "margins",
)
# A name is used as a word of a shell, a key of DVC, a file and a part of a URL. 100 bytes leave room for suffixes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # of a study's name, which is not a key of DVC
LETTERS = "letters (a-z, A-Z), digits, - and _, at most 100, and no - at the start"
KINDS = {str: "a text", dict: "a mapping with entries", list: "a list with entries"}  # that must not be empty
LONGEST_STUDY = 150  # characters of a study's name with its slashes
OWN_FOLDERS = ("ablations", "metrics", "runs", "tuned")  # in the folder of a study
UNRECORDED = ("executor", "chunk", "store", "device", "checkpoint")  # settings of `train` that change no result
DEFAULTS = {"client_optimizer": "fresh", "averaging": "size"}  # values that a run's record leaves out


@dataclass(frozen=True)
class RunSpec:
    """One method on one task, with everything resolved.

    Attributes:
        study, key: names.
        task: the task; `name` is its key in params.yaml.
        method, options: the method and its hyper-parameters.
        train, evaluate: budget and judgement.
        seeds: of the repetitions.
        margins: of practical equivalence, by metric, as they are before the run has scores; "" stands for the metric of
            the run. No score depends on them. None: not known.
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
    margins: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def variant(self) -> str:
        """What distinguishes this run from the plain method on its task: the end of its key, or empty."""
        suffix = self.key.removeprefix(f"{self.name}-")
        return "" if suffix == self.method else suffix

    def specification(self) -> dict[str, Any]:
        """All that the result depends on, as plain data; the executor, the store and the device are not part of it."""
        task = {k: v for k, v in asdict(self.task).items() if k not in ("train", "evaluate", "published")}
        task = {k: v for k, v in task.items() if k not in ("metric", "targets") or v is not None}
        train = {k: v for k, v in asdict(self.train).items() if k not in UNRECORDED}
        train = {k: v for k, v in train.items() if v is not None or k == "clip"}  # settings that are off are left out
        train = {k: v for k, v in train.items() if DEFAULTS.get(k) != v}
        return {
            "task": task,
            "method": {"name": self.method, **self.options},
            "train": train,
            "evaluate": {
                k: v
                for k, v in asdict(self.evaluate).items()
                if (k != "predictions" or not v) and (k not in ("edges", "clients") or v)
            },
        }

    def fingerprint(self) -> str:
        """A hash of `specification`, the same for the same computation."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.specification(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StudySpec:
    """A checked params.yaml."""

    name: str
    about: str
    seeds: tuple[int, ...]
    tasks: dict[str, TaskSpec]
    runs: dict[str, RunEntry]
    methods: dict[str, dict[str, Any]]
    tune: TuneSpec
    ablate: dict[str, dict[str, Any]]
    margins: dict[str, Any]  # of practical equivalence, by metric
    uses: tuple[str, ...] = ()
    contestants: dict[str, Any] = field(default_factory=dict)  # programs among the methods, as they are declared
    where: str = str(PARAMS)  # the file that was read, or the call that gave the settings, for messages

    def load_code(self) -> None:
        """Load the plug-ins and list the contestants, which a new process has not done."""
        plugins.load(self.uses)
        outside.enter(self.contestants, self.where)

    def run(self, key: str, tuned: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None) -> RunSpec:
        """The run `key`; later layers win: task, method block, `tuned`, the run's own `set`, `extra`.

        Raises:
            BadInput: for an unknown run.
        """
        item, where = self.runs[choose(key, self.runs, f"{self.where}: runs")], f"{self.where}: runs.{key}"
        task = self.tasks[item.task]
        run_settings = nest(item.set, f"{where}.set: ")
        layers = [self.methods.get(item.method) or {}, nest(tuned or {}), run_settings, nest(extra or {})]
        places = {block: f"{self.where}: tasks.{item.task}.{block}" for block in ("train", "evaluate")}
        options: dict[str, Any] = {}
        train, evaluate = dict(task.train), dict(task.evaluate)
        for layer in layers:
            for name, block in (("train", train), ("evaluate", evaluate)):
                settings = layer.get(name, {})
                if not isinstance(settings, Mapping):
                    raise BadInput(f"{where}: {name}", f"{format_value(settings)} is not a mapping of settings")
                block.update(settings)
                places |= {name: f"{where}.{name}"} if settings else {}
            options.update({k: v for k, v in layer.items() if k not in ("train", "evaluate")})
        return RunSpec(
            self.name,
            key,
            item.task,
            task,
            item.method,
            options,
            construct(TrainSpec, train, places["train"]),
            construct(EvaluateSpec, evaluate, places["evaluate"]),
            self.seeds,
            self.margins,
        )


def nest(settings: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """{"train.lr": 1, "lam": 2} -> {"train": {"lr": 1}, "lam": 2}; no two may set the same thing in `where`."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        head, _, tail = str(key).partition(".")
        within = {tail: value} if tail else value
        both = isinstance(within, Mapping) and isinstance(nested.get(head), dict)
        if head in nested and not (both and within.keys().isdisjoint(nested[head])):
            other = f"{head}: {format_value(nested[head])}"
            raise BadInput(f"{where}{key}", f"{format_value(value)}, but {other} is given too; give one of them")
        nested[head] = {**nested.get(head, {}), **within} if isinstance(within, Mapping) else within
    return nested


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"lr": 1}, "lam": 2} -> {"train.lr": 1, "lam": 2}, the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def load(path: Path | str = PARAMS) -> StudySpec:
    """Read params.yaml, load the plug-ins it uses, and check its form; `validate.load` also checks names and settings.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    raw = read_yaml(Path(path))
    check_names(raw, str(path))
    plugins.load(plugins.resolve_paths(raw.get("uses") or {}, str(path), Path(path).parent).values())
    return parse(raw, str(path))


def parse(raw: Mapping[str, Any], where: str = "params.yaml") -> StudySpec:
    """A study from plain data, its form checked."""
    _check_keys(raw, where)
    check_names(raw, where)
    _check_seeds(raw["seeds"], f"{where}: seeds")
    tasks = {name: construct(TaskSpec, block, f"{where}: tasks.{name}") for name, block in raw["tasks"].items()}
    tasks = {name: replace(task, model=add_digest(task.model)) for name, task in tasks.items()}
    runs = {key: construct(RunEntry, block, f"{where}: runs.{key}") for key, block in raw["runs"].items()}
    tune = construct(TuneSpec, raw.get("tune", {}), f"{where}: tune")
    _check_seeds(tune.seeds, f"{where}: tune.seeds")
    if shared := {*tune.seeds} & {*raw["seeds"]}:
        raise BadInput(f"{where}: tune.seeds", f"{format_value(sorted(shared))} overlap the study's seeds; use others")
    if tune.objectives not in (["score"], ["score", "bytes"]):
        raise BadInput(
            f"{where}: tune.objectives", f"{format_value(tune.objectives)} must be [score] or [score, bytes]"
        )
    for key, item in runs.items():
        choose(item.task, tasks, f"{where}: runs.{key}.task")
    if "datasets" in raw and _name_set(raw["datasets"]) != (needed := {task.dataset for task in tasks.values()}):
        raise BadInput(
            f"{where}: datasets",
            f"{format_value(raw['datasets'])} must name the data sets of the tasks: {', '.join(sorted(needed))}",
        )
    ablate = {
        name: variants.expand(block, f"{where}: ablate.{name}") for name, block in (raw.get("ablate") or {}).items()
    }
    for name, block in ablate.items():
        choose(block["run"], runs, f"{where}: ablate.{name}.run")
    uses = tuple(plugins.resolve_paths(raw.get("uses") or {}, where).values())
    contestants, methods = outside.split(raw["methods"])
    outside.enter(contestants, where)
    return StudySpec(
        raw["study"],
        raw.get("about", ""),
        tuple(raw["seeds"]),
        tasks,
        runs,
        methods,
        tune,
        ablate,
        _check_margins(raw.get("margins") or {}, f"{where}: margins"),
        uses,
        contestants,
        where,
    )


def _check_margins(margins: object, where: str) -> dict[str, Any]:
    """Refuse margins that are no numbers or shares; metrics are checked where their names are known."""
    if not isinstance(margins, Mapping):
        raise BadInput(where, f"{format_value(margins)} is not a mapping of metrics to margins; see docs/comparison.md")
    if margins:
        from fedweave.metrics import parse_margins  # imported here, because it loads NumPy

        parse_margins(margins, f"{where}.")
    return dict(margins)


def _check_keys(raw: Mapping[str, Any], where: str) -> None:
    """Refuse unknown words, and blocks that are empty or of another kind."""
    for key in raw:
        choose(key, WORDS, where)
    for key, kind in {"study": str, "tasks": dict, "runs": dict, "methods": dict, "seeds": list}.items():
        if not isinstance(raw.get(key), kind) or not raw[key]:
            problem = f"{format_value(raw[key])} is not" if key in raw else "missing; it must be"
            raise BadInput(f"{where}: {key}", f"{problem} {KINDS[kind]}; see: fedweave study show {example()}")
    if not isinstance(raw.get("about", ""), str):
        raise BadInput(f"{where}: about", f"{format_value(raw['about'])} is not text; write it in quotes")


def check_names(raw: Mapping[str, Any], where: str) -> None:
    """Refuse blocks that are not mappings, and names that are not safe in a shell, a file, a URL or a key of DVC."""
    for key in ("graphs", "tasks", "runs", "methods", "ablate"):
        block = raw.get(key) or {}
        if not isinstance(block, Mapping):
            raise BadInput(f"{where}: {key}", f"{format_value(block)} is not a mapping of names to blocks")
        for name in block:
            _check_name(name, f"{where}: {key}")
        _check_case(block, f"{where}: {key}")
    for name, block in (raw.get("methods") or {}).items():
        if block is not None and not isinstance(block, Mapping):
            raise BadInput(
                f"{where}: methods.{name}", f"{format_value(block)} is not a mapping of settings; write {{}} for none"
            )
    plugins.check_names(raw.get("uses"), where)
    _check_references(raw, where)
    _check_study(raw.get("study"), where)


def _check_name(name: object, where: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BadInput(where, f"{format_value(name)} is not a name; use {LETTERS}")


def _check_case(names: Iterable[str], where: str) -> None:
    """Refuse names that are the same on some file systems."""
    first_names: dict[str, str] = {}
    for name in names:
        if (other := first_names.setdefault(name.lower(), name)) != name:
            raise BadInput(
                where, f"{name!r} and {other!r} differ in capital letters only; some file systems take them for one"
            )


def _check_references(raw: Mapping[str, Any], where: str) -> None:
    """Refuse values that are not names, but that DVC uses in commands and paths: DVC does not check params.yaml."""
    for block, words in {"tasks": ("dataset",), "runs": ("task", "method"), "ablate": ("run",)}.items():
        for name, entry in (raw.get(block) or {}).items():
            for word in words if isinstance(entry, Mapping) else ():
                if isinstance(entry.get(word), str) and entry[word]:  # other values are refused where they are read
                    _check_name(entry[word], f"{where}: {block}.{name}.{word}")
    datasets = raw.get("datasets")
    for name in datasets if isinstance(datasets, list) else ():
        _check_name(name, f"{where}: datasets")


def _check_study(study: object, where: str) -> None:
    parts = study.split("/") if isinstance(study, str) else []
    if not parts or len(str(study)) > LONGEST_STUDY or not all(map(PART.fullmatch, parts)):
        raise BadInput(
            f"{where}: study",
            f"{format_value(study)} is not a name; use {LETTERS}, and also dots and single slashes, "
            f"{LONGEST_STUDY} characters in all",
        )
    if reserved := next((part for part in parts[1:] if part in OWN_FOLDERS), None):
        raise BadInput(
            f"{where}: study: {study!r}", f"{reserved!r} is a folder of the results of {parts[0]!r}; use another name"
        )


def _check_seeds(seeds: Sequence[object], where: str) -> None:
    """Refuse no seeds, too many, duplicates, and values that are not seeds."""
    valid = 0 < len(seeds) <= MOST_SEEDS and all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    if not valid or len({*seeds}) < len(seeds):
        rule = f"different whole numbers, at least 0 and below 2^31, between 1 and {MOST_SEEDS} of them"
        raise BadInput(where, f"{format_value(seeds)} must be {rule}")


def _name_set(names: object) -> set[Any] | None:
    return {*names} if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
