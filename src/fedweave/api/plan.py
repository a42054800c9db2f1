"""What a comparison will do: its study, and the data and the model that its tasks stand for."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedweave.api.arguments import as_mapping, as_seeds, check_text
from fedweave.api.central_control import add_control, check_units
from fedweave.api.federation import Federation
from fedweave.api.scorers import register_metric
from fedweave.client.task import RowClassification
from fedweave.errors import BadInput, choose, format_value
from fedweave.federation.executors import choose_executor
from fedweave.federation.protocol import Method
from fedweave.methods import METHODS
from fedweave.metrics import METRICS
from fedweave.models import MODELS
from fedweave.models.adapter import Adapter, adapt
from fedweave.models.source import source_of
from fedweave.runs import assembly, dependencies, graph_files
from fedweave.runs.inputs import Inputs
from fedweave.runs.preparation import try_model
from fedweave.study import plugins, search_spaces
from fedweave.study.code import PACKAGE, digest
from fedweave.study.spec import Run, Study, parse

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
    study: Study
    inputs: Inputs
    title: str

    def hash_code(self, key: str) -> str:
        """A hash of the code that the run `key` depends on, ours by its imports and the user's own, and of the file of
        its graph.

        A process computes it once for a method, a model and a metric: it goes on with the code that it has imported.
        """
        run = self.study.run(key)
        model, metric = str(run.task.model["name"]), str(run.task.metric)
        parts = (METHODS[run.method], MODELS.get(model), METRICS.get(metric))
        entry = (run.method, model, metric, run.task.model.get("code"), *map(id, parts), *plugins.list_loaded())
        if entry not in _CODES:
            _CODES[entry] = (_hash_code(run), parts)
        if not graph_files.files_of(run):
            return _CODES[entry][0]
        both = _CODES[entry][0] + dependencies.inputs_digest(run, None)
        return hashlib.sha256(both.encode()).hexdigest()[:12]


# What was asked for -> (hash, the objects of the key, so that no other object gets their ids).
_CODES: dict[tuple[Any, ...], tuple[str, tuple[Any, ...]]] = {}


def _hash_code(run: Run) -> str:
    """A hash of the code behind a run, also where the method was defined in a notebook."""
    parts = METHODS[run.method].__mro__
    own = [part for part in parts if part.__module__.split(".")[0] not in ("fedweave", "abc", "builtins")]
    # The script or test in which a class stands says more than the class: of it the class alone counts.
    places = (PACKAGE, *plugins.list_loaded())
    ours = [file for file in dependencies.of_run(run) if any(map(file.is_relative_to, places))]
    metric = METRICS.get(str(run.task.metric))
    scored = [] if metric is None or metric.function.__module__.startswith("fedweave.") else [metric.function]
    text = "".join([digest(ours), *map(source_of, [*own, *scored])])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plan(
    federation: Federation,
    methods: Methods,
    *,
    model: Any = None,
    head: str | None = None,
    seeds: int | Sequence[int] = 3,
    tune: int | Mapping[str, Any] = 0,
    metric: Any = None,
    evaluate: Mapping[str, Any] | None = None,
    central: bool = False,
    name: str = "comparison",
    title: str = "compare()",
    train: Mapping[str, Any],
) -> Plan:
    """Everything that can be refused of a comparison is refused here.

    Raises:
        BadInput: one line that names the argument, its value and the way out.
    """
    if not isinstance(federation, Federation):
        raise BadInput(f"{title}: {type(federation).__name__} is no federation; make one with Federation.from_arrays")
    check_text(name, "name", "comparison")
    block, adapter = _resolve_model(federation, model, head)
    listed = resolve_methods(methods)
    check_units(federation, listed, title)
    named = add_control(federation, listed, train) if central else listed
    task = {**_task_block(federation, block, train, evaluate), "metric": register_metric(metric)}
    raw = {
        "study": name,
        "seeds": as_seeds(seeds),
        "tasks": {federation.name: task},
        **_run_blocks(federation, named),
        "tune": _tuning_block(tune, seeds, {method for method, _ in named.values()}),
    }
    inputs = Inputs(federation.dataset, federation.partition, adapter)
    try:
        study = parse(raw, title)
        if adapter:
            _check_model(study, inputs, adapter)
        assembly.check(study, title, inputs)
    except BadInput as error:
        # Nothing stands in a file here: what is wrong was an argument.
        raise BadInput(_rewrite_message(str(error), federation, title)) from error
    return Plan(federation, study, inputs, title)


def _run_blocks(federation: Federation, named: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The blocks `runs` and `methods` of a study."""
    runs = {
        _key(federation, n): {"task": federation.name, "method": m, "set": options} for n, (m, options) in named.items()
    }
    return {"runs": runs, "methods": {method: {} for method, _ in named.values()}}


def _rewrite_message(message: str, federation: Federation, title: str) -> str:
    """`message` with the name of the call or of its argument in place of the place in a file."""
    message = message.removeprefix(f"{title}: ") if f"tasks.{federation.name}.metric: " in message else message
    message = message.replace(f"tasks.{federation.name}.metric: ", "metric: ")
    return re.sub(r"params\.yaml: (methods|runs)\.", f"{title}: ", message)


def resolve_methods(methods: Methods) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> (method of METHODS, its settings) of what a user lists.

    Raises:
        BadInput: nothing is listed, a name is unknown, or two entries are the same.
    """
    if isinstance(methods, str | Method | type):
        methods = [methods]
    if not isinstance(methods, Iterable):
        raise BadInput(
            f"methods: {format_value(methods)} is no list of methods; name some, as ['local', 'fedavg', 'ditto']"
        )
    pairs = [*methods.items()] if isinstance(methods, Mapping) else [(None, one) for one in methods]
    if not pairs:
        raise BadInput("methods: the list is empty; name some, as ['local', 'fedavg', 'ditto']")
    for given in methods if isinstance(methods, Mapping) else ():
        check_text(given, "methods", "first")
    entries = [(label, *_resolve_method(one)) for label, one in pairs]
    counts = [method for _, method, _ in entries]
    named: dict[str, tuple[str, dict[str, Any]]] = {}
    for label, method, options in entries:
        suffix = "-".join(re.sub(r"[^\w-]", "_", f"{key}-{value}") for key, value in options.items())
        name = label or (f"{method}-{suffix}" if counts.count(method) > 1 and suffix else method)
        if name in named:
            raise BadInput(
                f"methods: {name!r} is there twice; change a setting, or give names: {{'first': ..., 'second': ...}}"
            )
        named[name] = (method, options)
    return named


def _resolve_method(one: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(one, str):
        plugins.load_if_missing(one, METHODS)
        return choose(one, METHODS, "methods"), {}
    cls = one if isinstance(one, type) else type(one)
    if not issubclass(cls, Method):
        raise BadInput(
            f"methods: {one!r} is no method; give a name, or a method such as fedweave.methods.Ditto(lam=0.5)"
        )
    name = _register_method(cls)
    if isinstance(one, type):
        return name, {}
    run_sets = {f.name for f in fields(Method)}
    options = {f.name: getattr(one, f.name) for f in fields(one) if f.name not in run_sets}
    return name, {key: value for key, value in options.items() if value != cls.__dataclass_fields__[key].default}


def _register_method(cls: type[Method]) -> str:
    """The name of a method's class; a user's own class is registered under its own name."""
    names = {value: name for name, value in METHODS.items()}
    if cls in names:
        return names[cls]
    name = cls.__name__.lower()
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing or "__dataclass_fields__" not in vars(cls) or not getattr(cls, "label", ""):
        lacking = f"lacks {', '.join(missing)}" if missing else "is no frozen dataclass with a label"
        raise BadInput(f"methods: {cls.__name__} {lacking}; decorate it with @dataclass(frozen=True, kw_only=True)")
    there = METHODS.get(name)
    if there is not None and (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
        raise BadInput(f"methods: {cls.__name__} has the name of {there.__module__}.{there.__name__}; rename the class")
    METHODS[name] = cls
    return name


def _key(federation: Federation, name: str) -> str:
    return f"{federation.name}-{name}"


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
        "partition": dict(federation.dealt),
        "model": model,
        "train": {**defaults, **train},
        "evaluate": as_mapping(evaluate, "evaluate", "{'every': 5}"),
    }


def _tuning_block(tune: int | Mapping[str, Any], seeds: int | Sequence[int], methods: set[str]) -> dict[str, Any]:
    """The tuning budget; its seeds are none of the comparison's."""
    label: dict[str, Any] = dict(tune) if isinstance(tune, Mapping) else {"trials": tune}
    used = as_seeds(seeds)
    spare = next(seed for seed in range(1000, 2000 + len(used)) if seed not in used)
    spaces = as_mapping(label.get("spaces"), "tune.spaces", "{'ditto': {'lam': {'choices': [0.1, 1]}}}")
    return {"seeds": [spare], **label, "spaces": {**_default_spaces(methods), **spaces}}


def _default_spaces(methods: set[str]) -> dict[str, Any]:
    """What is searched for by default: the clients' learning rate, and what the methods' settings declare."""
    return {method: search_spaces.derive_space(method) for method in sorted(methods)}


def _resolve_model(federation: Federation, model: Any, head: str | None) -> tuple[dict[str, Any], Adapter | None]:
    """(model block of the task, maker of the models where they are the user's own)."""
    graph = federation.dataset.kind == "graph"
    model = ("gcn" if graph else "gru" if federation.dataset.kind == "series" else "mlp") if model is None else model
    if isinstance(model, str | Mapping):
        block = {"name": model} if isinstance(model, str) else dict(model)
        if "name" not in block:
            raise BadInput("model.name: missing; give such as {'name': 'mlp', 'hidden': 3}")
        block["name"] = ALIASES.get((federation.dataset.kind, str(block.get("name"))), block.get("name"))
        if head is not None:
            raise BadInput(f"head: {head!r}, but the model {block.get('name')!r} knows its own; leave it out")
        plugins.load_if_missing(block.get("name"), MODELS)
        return {**block, "name": choose(str(block.get("name")), MODELS, "model")}, None
    if federation.dataset.kind != "images":
        raise BadInput(
            f"model: {federation.name} holds a {federation.dataset.kind}, which takes models by name alone; give one"
        )
    windows = len(federation.shape) == 2
    adapter = adapt(model, federation.shape, federation.dataset.outputs, head, windows)
    return {"name": adapter.name, "code": adapter.code, "head": adapter.head}, adapter


def _check_model(study: Study, inputs: Inputs, adapter: Adapter) -> None:
    """Try a user's model as the first run is going to train it."""
    task, train = RowClassification(adapter), study.run(next(iter(study.runs))).train
    executor = choose_executor(train.executor, task.template, assembly.choose_device(train.device))
    try_model(task, inputs.dataset, inputs.partition, adapter.name, executor)
