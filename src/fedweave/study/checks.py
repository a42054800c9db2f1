"""Checks that need no data: names, types, ranges, and settings that contradict each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedweave import data
from fedweave.data.normalisation import NAMES_BY_KIND, parse_options
from fedweave.data.partitions import registry as partitions
from fedweave.data.partitions.checks import check_integer
from fedweave.data.partitions.splits import check_shares
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput, choose, format_value, relocate
from fedweave.families.weaving import Weaving
from fedweave.graphs.setting import parse
from fedweave.methods import METHODS
from fedweave.models import MODELS, options, settings
from fedweave.models.adapters import ADAPTERS
from fedweave.registry import users_file
from fedweave.settings import LARGEST_WHOLE
from fedweave.study import model_files
from fedweave.study.config import construct
from fedweave.study.objects import build_upload_path
from fedweave.study.schema import EVERY_RULE, TaskSpec
from fedweave.study.spec import RunSpec, StudySpec
from fedweave.threats.attacks import ON_EMBEDDINGS, AttackSpec

MOST_CLIENTS = 1_000_000
COLUMN = ("paper", "table", "dataset", "setting", "budget", "row")  # words of `published`


def check_methods(study: StudySpec, where: str) -> None:
    """Refuse blocks of settings that belong to no method, and wrong settings in them."""
    for name, block in study.methods.items():
        check_settings(choose(name, METHODS, f"{where}: methods"), block or {}, f"{where}: methods.{name}")


def check_settings(method: str, block: Mapping[str, Any], where: str) -> None:
    """Refuse unknown and ill-typed settings of a method; `train` and `evaluate` are checked with the runs."""
    settings = {setting.name: setting for setting in METHODS[method].settings()}
    for name, value in block.items():
        if name not in ("train", "evaluate"):
            if name not in settings:
                choose(str(name), settings, f"{where}.{name}: not a setting of {method}")
            settings[name].check(value, f"{where}.{name}")


def check_task(task: TaskSpec, where: str) -> None:
    """Refuse unknown data sets, partitions, models and their options."""
    choose(task.dataset, data.DATASETS, f"{where}.dataset")
    tables: dict[str, Mapping[str, Any]] = {"partition": data.PARTITIONS, "model": MODELS}
    for key, table in tables.items():
        block = getattr(task, key)
        if "name" not in block:
            raise BadInput(f"{where}.{key}.name", f"missing; choices: {', '.join(sorted(table))}")
        choose(block["name"], table, f"{where}.{key}.name")
    check_model(task.model, f"{where}.model")
    _check_partition(task.partition, f"{where}.partition")
    _check_references(task, where)
    _check_kinds(task, where)
    if task.attack is not None:
        construct(AttackSpec, task.attack, f"{where}.attack").check(f"{where}.attack")


def _list_models(kind: str) -> list[str]:
    """The models that read graphs, or those that do not, as the kind of the data set asks for."""
    return sorted(name for name, model in MODELS.items() if (model.reads == "graph") == (kind == "graph"))


def _check_kinds(task: TaskSpec, where: str) -> None:
    """Refuse a model, partition rule or normalisation that does not fit the kind of the data set, if that is known."""
    kind = data.KINDS.get(task.dataset)
    if kind is None:
        return
    rules = sorted(name for name in data.PARTITIONS if kind in partitions.TRAITS[name].kinds)
    for key, name, fits in (
        ("model.name", task.model["name"], _list_models(kind)),
        ("partition.name", task.partition["name"], rules),
        ("normalize", parse_options(task.normalize)[0], NAMES_BY_KIND[kind]),
    ):
        if name not in fits:
            raise BadInput(
                f"{where}.{key}", f"{name!r} does not fit {task.dataset} ({kind}); choices: {', '.join(fits)}"
            )


def _check_references(task: TaskSpec, where: str) -> None:
    """Refuse a normalisation that does not exist, and an unknown word of `published`."""
    with relocate({"": f"{where}."}):
        parse_options(task.normalize)
        for word in task.published or ():
            choose(word, COLUMN, "published")


def check_model(model: Mapping[str, Any], where: str) -> None:
    """Refuse unknown and ill-typed options of a model that exists, its adapter among them, and missing weights."""
    options = {setting.name: setting for setting in settings(model["name"])}
    for name, value in model.items():
        if name == "adapter":
            check_adapter(value, f"{where}.adapter")
        elif name != "name" and not (name == model_files.DIGEST and "weights" in options):
            if not options:
                raise BadInput(f"{where}.{name}", f"{model['name']} has no options; drop it")
            choose(name, [*options, "adapter"], where)
            options[name].check(value, f"{where}.{name}")
    model_files.check(model, where)
    MODELS[model["name"]].check(model, where)


def check_adapter(block: Any, where: str) -> None:
    """Refuse an adapter that does not exist, and unknown or ill-typed settings of it; null is none."""
    if isinstance(block, str):
        choose(block, ADAPTERS, where)
    elif block is not None:
        if not isinstance(block, Mapping) or "name" not in block:
            raise BadInput(where, f"{format_value(block)} has no name; for example adapter: {{name: lora, rank: 4}}")
        settings = {name: value for name, value in block.items() if name != "name"}
        construct(ADAPTERS[choose(str(block["name"]), ADAPTERS, f"{where}.name")], settings, where)


def _check_partition(partition: Mapping[str, Any], where: str) -> None:
    options = {setting.name: setting for setting in partitions.settings(partition["name"])}
    common = dict.fromkeys(EVERY_RULE)
    for name, value in partition.items():
        if name not in EVERY_RULE:
            options[choose(name, {**options, **common}, where)].check(value, f"{where}.{name}")
        if name == "split" and value is not None:
            check_shares(value, f"{where}.{name}")
    if "clients" in partition or not partitions.TRAITS[partition["name"]].owners:
        check_integer("clients", partition.get("clients"), 1, MOST_CLIENTS, where)
    for block in data.splits(partition, where):
        check_integer("seed", block.get("seed"), 0, LARGEST_WHOLE, where)


def check_splits(run: RunSpec, trials: int, where: str) -> None:
    """Refuse several splits of a task with another number of seeds, or with a setting that has one value for all."""
    seeds = run.task.partition.get("seeds")
    if seeds is None:
        return
    prefix = f"{where}: tasks.{run.name}.partition.seeds: {format_value(seeds)}"
    if len(seeds) != len(run.seeds):
        run_seeds = format_value([*run.seeds])
        raise BadInput(prefix, f"{len(seeds)} splits, but {len(run.seeds)} seeds {run_seeds}; give one seed per split")
    if trials:
        raise BadInput(prefix, "values tuned on one split have seen test rows of the others; set tune.trials: 0")
    if run.task.attack:
        raise BadInput(prefix, "who attacks depends on the seed of the partition; give one seed, or no attack")


def check_samples(runs: Sequence[RunSpec], where: str) -> None:
    """Refuse runs of one task that are evaluated on different numbers of clients."""
    first: dict[str, RunSpec] = {}
    for run in runs:
        other = first.setdefault(run.name, run)
        clients, other_clients = run.evaluate.clients, other.evaluate.clients
        if clients != other_clients:
            raise BadInput(
                f"{where}: runs.{run.key}: evaluate.clients",
                f"{clients}, but runs.{other.key} has {other_clients}; "
                f"methods of one task are compared on the same clients, so set it in tasks.{run.name}.evaluate",
            )


def check_budget(run: RunSpec, where: str, clients: int | None) -> None:
    """Refuse settings of `train` that contradict each other or the number of clients; None: it is not yet known."""
    train = run.train
    if train.steps and train.epochs != 1:
        raise BadInput(where, f"train.steps {train.steps} and train.epochs {train.epochs}: give one of them")
    if train.freeze and not train.newcomers:
        raise BadInput(where, "train.freeze holds from the round in which train.newcomers join; set both or neither")
    if bool(train.newcomers) != bool(train.join_round) or train.join_round >= train.rounds:
        raise BadInput(
            where, "train.newcomers and train.join_round go together, and the round must be below train.rounds"
        )
    if clients is None:
        return
    if train.newcomers >= clients:
        raise BadInput(f"{where}: train.newcomers", f"{train.newcomers} of {clients} clients; leave at least one")
    if train.participation > clients or (train.participation > 1 and train.participation != int(train.participation)):
        raise BadInput(
            f"{where}: train.participation",
            f"{train.participation!r} of {clients} clients; a share up to 1, or a whole number of them",
        )


def check_graph(run: RunSpec, where: str) -> None:
    """Refuse a word that is not a graph of the run's method, and any graph of a method that has none."""
    cls, word = METHODS[run.method], run.options.get("graph")
    if word is None:
        return
    if not issubclass(cls, Weaving):
        names = ", ".join(sorted(name for name, other in METHODS.items() if issubclass(other, Weaving)))
        raise BadInput(f"{where}.graph", f"{run.method} has no collaboration graph; leave it out, or use {names}")
    if isinstance(word, str):  # another type is refused with the other settings
        parse(word, cls.own_graphs, f"{where}.graph")


def check_method(run: RunSpec, method: Method, where: str, capabilities: frozenset[str]) -> None:
    """Refuse a method on a task whose `capabilities` lack what the method or the settings of its run need."""
    _check_uploads(run, method, where, capabilities)
    missing = METHODS[run.method].needs - capabilities
    if missing:
        adapter = " and its adapter" if run.task.model.get("adapter") else ""
        raise BadInput(
            where,
            f"{METHODS[run.method].label} needs {' and '.join(sorted(missing))}, which "
            f"{run.task.dataset} with model {run.task.model['name']}{adapter} does not have; drop the run or change "
            f"the task"
            f"{_declare(run) if 'batch_norm' in missing else ''}",
        )


def _check_uploads(run: RunSpec, method: Method, where: str, capabilities: frozenset[str]) -> None:
    """Refuse attacks, defences and options of averaging that fit neither the method nor the task's `capabilities`."""
    kind = (run.task.attack or {}).get("kind")
    if kind in ON_EMBEDDINGS and not method.embeds:
        raise BadInput(
            where,
            f"tasks.{run.name}.attack {kind} is on embeddings, and {run.method} has none; "
            f"use {_list_methods('embeds')}",
        )
    if kind == "label_flip" and "classes" not in capabilities:
        raise BadInput(
            f"{where}: tasks.{run.name}.attack", f"label_flip needs classes, {run.task.dataset} has none; use sign_flip"
        )
    if run.train.class_weights and "classes" not in capabilities:
        raise BadInput(where, f"train.class_weights needs classes, {run.task.dataset} has none; leave it out")
    if run.train.bn_buffers:
        _check_buffers(run, method, f"{where}: train.bn_buffers {run.train.bn_buffers}", capabilities)
    if run.train.server_optimizer and not method.server_steps:
        raise BadInput(
            where,
            f"train.server_optimizer {run.train.server_optimizer} replaces a mean, and {run.method} takes "
            f"none or has an optimiser of its own; use it with {_list_methods('server_steps')}",
        )
    robust = build_upload_path(run, where).robust
    if robust and not method.robust_part:
        raise BadInput(
            where,
            f"train.robust.rule {robust.rule} acts on uploaded models, and {run.method} uploads none; "
            "leave it out, or use another method",
        )
    if robust and robust.replaces_mean and not method.averages:
        raise BadInput(
            where,
            f"train.robust.rule {robust.rule} replaces a mean, and {run.method} takes none; "
            f"use clip, or {_list_methods('averages')}",
        )


def _check_buffers(run: RunSpec, method: Method, where: str, capabilities: frozenset[str]) -> None:
    """Refuse averages of BatchNorm statistics without BatchNorm, without a mean of models, or with noise.

    With noise, a variance could become negative.
    """
    if "batch_norm" not in capabilities:
        raise BadInput(
            where, f"model {run.task.model['name']} has no BatchNorm with its settings; leave it out{_declare(run)}"
        )
    if not method.averages:
        raise BadInput(where, f"{run.method} takes no mean; use {_list_methods('averages')}")
    if run.train.privacy:
        raise BadInput(
            where,
            "train.privacy adds noise to what is averaged, and a variance cannot be negative; leave one of them out",
        )


def _list_methods(trait: str) -> str:
    return ", ".join(sorted(name for name, cls in METHODS.items() if getattr(cls, trait)))


def _declare(run: RunSpec) -> str:
    """How a user's model says that it has BatchNorm layers; empty for others, and where an option says it."""
    name = run.task.model["name"]
    cls = MODELS.get(name)
    if cls is None or cls.has_batch_norm or users_file(cls) is None or "batch_norm" in options(name):
        return ""
    return f", or set has_batch_norm = True in {cls.__name__} if it has BatchNorm layers"
