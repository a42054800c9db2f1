"""The plan of a comparison: its study, and the data and the model of its tasks."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

from fedweave import data
from fedweave.client.task import RowClassification
from fedweave.comparison.call_arguments import as_seeds, check_train_names
from fedweave.comparison.central_control import add_control, check_units
from fedweave.comparison.user_metrics import register_metric
from fedweave.contestants.checks import check_terms
from fedweave.contestants.entry import Contestant, enter, find_entry, rename
from fedweave.engine.executors import choose_device, choose_executor
from fedweave.engine.protocol import Method
from fedweave.engine.registry import find_name
from fedweave.errors import BadInput, choose, format_value, relocate
from fedweave.methods import METHODS
from fedweave.metrics import METRICS
from fedweave.models import MODELS
from fedweave.models.inputs import layout_of
from fedweave.models.own_module import OwnModule, wrap
from fedweave.models.source import describe_code, digest_text, is_users
from fedweave.own_data.argument_checks import as_mapping, as_python, check_text
from fedweave.own_data.federation import Federation, check_federation
from fedweave.runs import dependencies, graph_files
from fedweave.runs.build import check_on_data, try_model
from fedweave.runs.inputs import Inputs
from fedweave.study import checks, plugins, search_spaces, validate
from fedweave.study.code import digest, is_own
from fedweave.study.schema import TrainSpec
from fedweave.study.spec import RunSpec, StudySpec, nest, parse

ROWS = {"epochs": 1, "batch_size": 32, "lr": 0.05}
GRAPH = {"epochs": 3, "batch_size": 0, "optimizer": "adam", "lr": 0.01, "weight_decay": 0.0005}
ALIASES = {("images", "gru"): "gru_window", ("images", "lenet"): "lenet16"}  # (kind of data, short name) -> model
Methods = Sequence[str | Method | type[Method]] | Mapping[str, str | Method | type[Method]]


@dataclass(frozen=True, eq=False)
class Plan:
    """A checked comparison.

    Attributes:
        federation: the clients.
        study: its runs, one a method.
        inputs: the data and the model of its task.
        title: how a message names the call.
    """

    federation: Federation
    study: StudySpec
    inputs: Inputs
    title: str

    def hash_code(self, key: str) -> str:
        """A hash of the code that the run `key` depends on (fedweave's and the user's) and of the file of its graph."""
        run = self.study.run(key)
        if run.method not in self._codes:
            self._codes[run.method] = _hash_code(run)
        code = self._codes[run.method]
        if not graph_files.files_of(run) and METHODS[run.method].has_models:
            return code
        return digest_text(code + dependencies.inputs_digest(run, None))

    @cached_property
    def metric_hash(self) -> str:
        """A hash of the code of the user's metric, which all runs of a folder share; empty for one of fedweave."""
        code = describe_code(_list_metric_code(self.study.run(next(iter(self.study.runs))).task.metric))
        return digest_text(code) if code else ""

    @cached_property
    def _codes(self) -> dict[str, str]:
        """Method -> hash of its code, as far as asked for: all runs of a plan have one model and one metric."""
        return {}


def _hash_code(run: RunSpec) -> str:
    """A hash of the code behind a run, also where the method was defined in a notebook."""
    # Of a script or test that defines a class, only the source of the class counts, and what it reads.
    folders = plugins.list_loaded()
    package_files = [
        file for file in dependencies.of_run(run) if is_own(file) or any(map(file.is_relative_to, folders))
    ]
    model = MODELS.get(run.task.model["name"])
    classes = filter(is_users, (*METHODS[run.method].__mro__, *getattr(model, "__mro__", ())))
    return digest_text(digest(package_files) + describe_code([*classes, *_list_metric_code(run.task.metric)]))


def _list_metric_code(name: str | None) -> Iterator[Any]:
    """The function of a user's metric, also that in a scorer of scikit-learn."""
    function = METRICS[name].function if name in METRICS else None
    score = getattr(getattr(function, "scorer", None), "_score_func", None)
    yield from (part for part in (function, score) if part is not None and is_users(part))


def plan(
    federation: Federation,
    methods: Methods,
    *,
    model: Any = None,
    head: str | None = None,
    adapter: str | Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 3,
    tune: int | Mapping[str, Any] | None = 0,
    metric: Any = None,
    evaluate: Mapping[str, Any] | None = None,
    central: bool = False,
    name: str = "comparison",
    title: str = "compare()",
    train: Mapping[str, Any],
    per_method: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """The checked plan of a comparison; all bad input is refused here.

    Raises:
        BadInput: one line that names the argument, its value and how to fix it.
    """
    check_federation(federation, title)
    check_text(name, "name", "comparison")
    block, module = _resolve_model(federation, model, head, adapter)
    entries = _add_own_training(_resolve_entries(methods, train, title), per_method, title)
    check_units(federation, entries, title)
    entries = add_control(federation, entries, train) if central else entries
    task = {**_task_block(federation, block, train, evaluate), "metric": register_metric(metric)}
    used_seeds, used_methods = as_seeds(seeds), {method for method, _ in entries.values()}
    search = default_search(federation, train) if tune is None else tune
    raw = {
        "study": name,
        "seeds": used_seeds,
        "tasks": {federation.name: task},
        **_run_blocks(federation, entries),
        "tune": _tuning_block(search, used_seeds, used_methods),
    }
    inputs = Inputs(federation.dataset, federation.partition, module)
    with relocate(_places(federation, entries, title)):
        study = parse(as_python(raw), title)
        if module:
            _check_model(study, inputs, module)
        validate.check(study, title, partial(check_on_data, inputs=inputs))
        for key in study.runs:
            if entry := find_entry((run := study.run(key)).method):
                check_terms(run, title)
                with relocate({"raw": f"{title}: {run.method}: raw"}):
                    entry.runner.check_columns([*map(str, () if inputs.dataset.raw is None else inputs.dataset.raw)])
    return Plan(federation, study, inputs, title)


def _resolve_entries(methods: Methods, train: Mapping[str, Any], title: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """As `resolve_methods`; a setting of a method among those of the training is refused, too."""
    entries = resolve_methods(methods)
    check_train_names(train, title)
    for name in train.keys() - {field.name for field in fields(TrainSpec)}:
        for method, cls in ((method, METHODS[method]) for method, _ in entries.values()):
            if name in {setting.name for setting in cls.settings()}:
                own = f"{cls.__name__}({name}={format_value(train[name])})"
                place = f"fedweave.methods.{own}" if cls.__module__.startswith("fedweave.methods.") else own
                raise BadInput(
                    f"{title}: {name}: is a setting of {method} and not of the training; in Python, list {place} in "
                    f"place of {method!r}; on the command line, --set {method}.{name}={format_value(train[name])}"
                )
    return entries


def _add_own_training(
    entries: dict[str, tuple[str, dict[str, Any]]], per_method: Mapping[str, Mapping[str, Any]] | None, title: str
) -> dict[str, tuple[str, dict[str, Any]]]:
    """`entries` with settings of the training that single methods have of their own, as in `set` of a run."""
    given = as_mapping(per_method, "per_method", "{'fedprox': {'epochs': 2}}")
    names = {find_name(name) if name not in entries else name: settings for name, settings in given.items()}
    for name, settings in names.items():
        choose(name, entries, f"{title}: per_method")
        for setting in as_mapping(settings, f"per_method: {name}", "{'epochs': 2}"):
            choose(str(setting), [field.name for field in fields(TrainSpec)], f"{title}: per_method: {name}")
    return {
        name: (method, {**options, **{f"train.{key}": value for key, value in names.get(name, {}).items()}})
        for name, (method, options) in entries.items()
    }


def _run_blocks(federation: Federation, entries: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The blocks `runs` and `methods` of a study."""
    runs = {
        f"{federation.name}-{n}": {"task": federation.name, "method": m, "set": options}
        for n, (m, options) in entries.items()
    }
    return {"runs": runs, "methods": {method: {} for method, _ in entries.values()}}


def _places(federation: Federation, entries: Mapping[str, tuple[str, Any]], title: str) -> dict[str, str]:
    """For `relocate`: the arguments of the call in place of keys of a file. All runs have the same training."""
    task, call = f"tasks.{federation.name}", f"{title}: "
    places = {f"{call}methods": call, f"{call}{task}": call, f"{call}{task}.train": call, task: ""}
    places[f"{call}{task}.metric"] = "metric"
    for name, (method, _) in entries.items():
        run = f"{call}runs.{federation.name}-{name}"
        places |= {f"{run}.set": f"{call}{method}", f"{run}.train": call, f"{run}.evaluate": f"{call}evaluate"}
    return places


def resolve_methods(methods: Methods) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> (method of METHODS, its settings) of what a user lists.

    Raises:
        BadInput: nothing is listed, a name is unknown, or two entries are the same.
    """
    if isinstance(methods, str | Method | type):
        methods = [methods]
    if not isinstance(methods, Iterable):
        raise BadInput(
            f"methods: {format_value(methods)} is not a list of methods; name some, as ['local', 'fedavg', 'ditto']"
        )
    pairs = [*methods.items()] if isinstance(methods, Mapping) else [(None, one) for one in methods]
    if not pairs:
        raise BadInput("methods: the list is empty; name some, as ['local', 'fedavg', 'ditto']")
    for key in methods if isinstance(methods, Mapping) else ():
        check_text(key, "methods", "first")
    repeated = _repeated_names([one for _, one in pairs])
    entries = [(label, *_resolve_method(one, repeated, label or "")) for label, one in pairs]
    method_names = [method for _, method, _ in entries]
    by_name: dict[str, tuple[str, dict[str, Any]]] = {}
    for label, method, options in entries:
        suffix = "-".join(re.sub(r"[^\w-]", "_", f"{key}-{value}") for key, value in options.items())
        name = label or (f"{method}-{suffix}" if method_names.count(method) > 1 and suffix else method)
        if name in by_name:
            raise BadInput(
                f"methods: {name!r} occurs twice; change a setting, or give names: {{'first': ..., 'second': ...}}"
            )
        by_name[name] = (method, options)
    return by_name


def _repeated_names(listed: Sequence[Any]) -> set[str]:
    """Names of several contestants or classes of methods: by one name, all of them would be the last one.

    Raises:
        BadInput: several classes of methods that are no contestants have one name.
    """
    classes = {
        cls for one in listed for cls in [one if isinstance(one, type) else type(one)] if issubclass(cls, Method)
    }
    counts = Counter(cls.own_name if issubclass(cls, Contestant) else cls.__name__.lower() for cls in classes)
    repeated = {name for name, count in counts.items() if count > 1}
    for cls in classes:
        if not issubclass(cls, Contestant) and cls.__name__.lower() in repeated:
            raise BadInput(f"methods: several classes have the name {cls.__name__}; rename all but one")
    return repeated


def _resolve_method(entry: Any, repeated: set[str], label: str) -> tuple[str, dict[str, Any]]:
    """(its name, its settings).

    Args:
        repeated: names of several contestants; each of them gets the name `label` that the user gave it, if any.
    """
    if isinstance(entry, str):
        entry = find_name(entry)
        plugins.load_if_missing(entry, METHODS)
        return choose(find_name(entry), METHODS, "methods"), {}
    cls = entry if isinstance(entry, type) else type(entry)
    if not issubclass(cls, Method):
        raise BadInput(
            f"methods: {entry!r} is not a method; give a name, or a method such as fedweave.methods.Ditto(lam=0.5)"
        )
    if issubclass(cls, Contestant):
        name = enter(rename(cls, label) if label and cls.own_name in repeated else cls, "methods")
    else:
        name = _register_method(cls)
    if isinstance(entry, type):
        return name, {}
    engine_fields = {f.name for f in fields(Method)}
    options = {f.name: getattr(entry, f.name) for f in fields(entry) if f.name not in engine_fields}
    return name, {key: value for key, value in options.items() if value != cls.__dataclass_fields__[key].default}


def _register_method(cls: type[Method]) -> str:
    """The name of a method's class; a user's own class is registered under its own name."""
    names = {value: name for name, value in METHODS.items()}
    if cls in names:
        return names[cls]
    name = cls.__name__.lower()
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing or "__dataclass_fields__" not in vars(cls) or not getattr(cls, "label", ""):
        problem = f"lacks {', '.join(missing)}" if missing else "is not a frozen dataclass with a label"
        raise BadInput(f"methods: {cls.__name__} {problem}; decorate it with @dataclass(frozen=True, kw_only=True)")
    other = METHODS.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise BadInput(f"methods: {cls.__name__} has the name of {other.__module__}.{other.__name__}; rename the class")
    METHODS[name] = cls
    return name


def _task_block(
    federation: Federation, model: dict[str, Any], train: Mapping[str, Any], evaluate: Mapping[str, Any] | None
) -> dict[str, Any]:
    defaults = GRAPH if federation.dataset.kind == "graph" else ROWS
    if "steps" in train:
        defaults = {key: value for key, value in defaults.items() if key != "epochs"}
    kind = federation.dataset.targets_are
    return {
        **({"targets": kind} if federation.dataset.targets is not None else {}),
        "dataset": federation.name,
        "setting": federation.setting,
        "normalize": federation.normalize,
        "partition": dict(federation.partition_block),
        "model": model,
        "train": {**defaults, **train},
        "evaluate": as_mapping(evaluate, "evaluate", "{'every': 5}"),
    }


def default_search(federation: Federation, train: Mapping[str, Any]) -> dict[str, Any]:
    """The block `tune` of a call that names no search: of the learning rate, unless the user gave it.

    There is none without validation rows, nor with several splits, where those of one are test rows of another.
    """
    has_rows = any(len(rows) for rows in federation.partition.val)
    if "lr" in train or not has_rows or len(data.splits(federation.partition_block)) > 1:
        return {"trials": 0}
    return {"trials": search_spaces.RATE_COUNT, "share": 0.5, "sampler": search_spaces.RATES}


def _tuning_block(tune: int | Mapping[str, Any], seeds: Sequence[int], methods: set[str]) -> dict[str, Any]:
    """The block `tune`; its default seed is not a seed of the comparison."""
    block: dict[str, Any] = dict(tune) if isinstance(tune, Mapping) else {"trials": tune}
    unused_seed = next(seed for seed in range(1000, 2000 + len(seeds)) if seed not in seeds)
    spaces = as_mapping(block.get("spaces"), "tune.spaces", "{'ditto': {'lam': {'choices': [0.1, 1]}}}")
    searches_rates = block.get("sampler") == search_spaces.RATES
    declared = {} if searches_rates else {method: search_spaces.derive_space(method) for method in sorted(methods)}
    return {"seeds": [unused_seed], **block, "spaces": {**declared, **spaces}}


def _resolve_model(
    federation: Federation, model: Any, head: str | None, adapter: str | Mapping[str, Any] | None
) -> tuple[dict[str, Any], OwnModule | None]:
    """(model block of the task, what makes models of a user's own module, or None)."""
    checks.check_adapter(adapter, "adapter")
    given = {} if adapter is None else {"adapter": adapter}
    graph = federation.dataset.kind == "graph"
    model = ("gcn" if graph else "gru" if federation.dataset.kind == "series" else "mlp") if model is None else model
    if isinstance(model, str | Mapping):
        block: dict[str, Any] = {"name": model} if isinstance(model, str) else nest(model, "model.")
        if "name" not in block:
            raise BadInput("model.name: missing; for example {'name': 'mlp', 'hidden': 3}")
        check_text(block["name"], "model.name", "mlp")
        block["name"] = ALIASES.get((federation.dataset.kind, str(block.get("name"))), block.get("name"))
        if head is not None:
            raise BadInput(f"head: {head!r}, but the model {block.get('name')!r} declares its own; leave it out")
        plugins.load_if_missing(block.get("name"), MODELS)
        block["name"] = choose(block["name"], MODELS, "model")
        if given and block.get("adapter") is not None:
            raise BadInput("adapter", f"{format_value(adapter)}, but the model has one, too; give one of them")
        checks.check_model(as_python(block), "model")
        return {**block, **given}, None
    if federation.dataset.kind != "images":
        raise BadInput(
            f"model: {federation.name} holds a {federation.dataset.kind}, which takes models by name alone; give one"
        )
    windows = len(federation.shape) == 2
    inputs = layout_of(federation.dataset.columns)
    module = wrap(model, federation.shape, federation.dataset.outputs, head, windows, inputs, given.get("adapter"))
    reads = {"reads": dict(module.reads)} if module.reads else {}
    return {"name": module.name, "code": module.code, "head": module.head, **reads, **given}, module


def _check_model(study: StudySpec, inputs: Inputs, own: OwnModule) -> None:
    """Try a user's model in the way in which the first run will train it."""
    task, run = RowClassification(own), study.run(next(iter(study.runs)))
    train = run.train
    executor = choose_executor(train.executor, task.template, choose_device(train.device))
    try_model(task, run.task.normalize, inputs.dataset, inputs.partition, own.name, executor)
