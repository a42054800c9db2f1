"""Checks of a whole study: every method with its settings, every run on its task, search spaces and variants."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedweave import data
from fedweave.client.task import NodeClassification, RowClassification, Task
from fedweave.data.facts import FACTS
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput, choose, format_value, relocate
from fedweave.families.base import check_parts
from fedweave.methods import METHODS
from fedweave.metrics import METRICS, check_fit
from fedweave.models import MODELS, ClientModel, build
from fedweave.models.base import BODY
from fedweave.models.registry import capabilities as model_capabilities
from fedweave.study import checks, objects, search_spaces, spec
from fedweave.study.model_files import DIGEST, replace_digest
from fedweave.study.schema import TaskSpec
from fedweave.study.spec import PARAMS, RunSpec, StudySpec, nest
from fedweave.study.task_blocks import drop_replaced_seed

EXAMPLES = {"partition": "iid", "model": "mlp"}
ADAPTER = "model.adapter"


def load(path: Path | str = PARAMS) -> StudySpec:
    """Read and check params.yaml: form, names, hyper-parameters, search spaces, and whether every method fits its task.

    Raises:
        BadInput: one line that names the key, the value and the way out.
    """
    return check(spec.load(path), str(path))


def check(
    study: StudySpec, where: str = str(PARAMS), on_data: Callable[[RunSpec, str], object] | None = None
) -> StudySpec:
    """`study` unchanged, or the first error in it.

    Args:
        on_data: checks a run on data and a model in memory, which have no names to look up; default: `check_run`.

    Raises:
        BadInput: as `load`.
    """
    checks.check_methods(study, where)
    for name in study.margins:
        choose(name, METRICS, f"{where}: margins")
    for name, task in study.tasks.items() if on_data is None else ():
        checks.check_task(task, f"{where}: tasks.{name}")
    runs = [study.run(key) for key in study.runs]
    for run in runs:
        own_settings = study.runs[run.key].set  # the other settings of its method were found right above
        with relocate(_places(run, where, f"{where}: runs.{run.key}.set") if own_settings else {}):
            (on_data or check_run)(run, where)
        checks.check_splits(run, study.tune.trials, where)
    checks.check_samples(runs, where)
    search_spaces.check(study, where)
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            _check_variant(study, block["run"], settings, where, f"{where}: ablate.{name}.{variant}")
    return study


def _check_variant(study: StudySpec, key: str, settings: Mapping[str, Any], where: str, place: str) -> None:
    """Refuse a variant of the run `key` that could not be compared with it."""
    base = study.run(key)
    with relocate({"": f"{place}.", where: where, **_places(base, where, place)}):
        run = build_variant(study, key, {}, settings)
        checks.check_samples([base, run], place)
        checks.check_task(run.task, place)
        checks.check_splits(run, study.tune.trials, place)
        if check_run(run, where).leaks:
            raise BadInput(place, "trains on test rows, which no comparison includes; make it a run")


def _places(run: RunSpec, where: str, place: str) -> dict[str, str]:
    """For `relocate`: `place` holds the settings that make `run` wrong."""
    return {f"{where}: runs.{run.key}": place, f"{where}: methods.{run.method}": place}


def build_variant(study: StudySpec, key: str, tuned: Mapping[str, Any], settings: Mapping[str, Any]) -> RunSpec:
    """The run `key` with `settings`, which may also reach the `partition` and the `model` of its task.

    A partition or model with another name keeps no option of the old one, except the number of clients and the seed.
    """
    nested = nest(settings)
    blocks = {block: nested.pop(block) for block in ("partition", "model") if block in nested}
    run = study.run(key, tuned, nested)
    for block, changes in blocks.items():
        if not isinstance(changes, Mapping):
            raise BadInput(
                block,
                f"{format_value(changes)} is not a mapping of settings; for example {block}.name={EXAMPLES[block]}",
            )
        old = getattr(run.task, block)
        if "name" in changes:
            old = {name: value for name, value in old.items() if name in ("clients", "seed", "seeds")}
        if block == "partition":
            old = drop_replaced_seed(old, changes)
        else:
            changes = nest(changes, f"{block}.")  # of an adapter
            adapter, before = changes.get("adapter"), old.get("adapter")
            if isinstance(adapter, Mapping) and "name" not in adapter and isinstance(before, Mapping):
                changes = {**changes, "adapter": {**before, **adapter}}
        new = replace_digest(old, changes) if block == "model" else {**old, **changes}
        merged: dict[str, Any] = {block: new}
        run = replace(run, task=replace(run.task, **merged))
    return run


def check_run(run: RunSpec, where: str) -> Method:
    """The run's method, on a placeholder of its task if shapes are not known yet; refuses unknown names and misfits."""
    place = f"{where}: runs.{run.key}"
    choose(run.method, METHODS, f"{place}.method")
    checks.check_budget(run, place, run.task.partition.get("clients"))
    checks.check_graph(run, place)
    name, options = run.task.model["name"], run.task.model
    kind = NodeClassification if MODELS[name].reads == "graph" else RowClassification
    known = _build_known_task(run.task, f"{where}: tasks.{run.name}")
    method = objects.build_method(run, known or kind(lambda: build("mlp", (1,), 1)), where)  # any model will do
    targets = run.task.targets
    capabilities = model_capabilities(name, options) - (set() if targets in (None, "classes") else {"classes"})
    if run.task.metric is not None:
        expected = targets or ("classes" if "classes" in capabilities else "forecasts")
        check_fit(run.task.metric, expected, f"{where}: tasks.{run.name}.metric")
    if known:
        capabilities = capabilities - {BODY} | (known.capabilities & {BODY})
    checks.check_method(run, method, place, capabilities)
    if known:
        check_parts(method, name, place)
    return method


def _build_known_task(task: TaskSpec, where: str) -> Task | None:
    """What clients of `task` learn; None where shapes are known only with the data, or the model does not fit them.

    Raises:
        BadInput: the adapter does not fit the model.
    """
    sizes, kind = FACTS.get(task.dataset), data.KINDS.get(task.dataset)
    if sizes is None or kind == "series" or not sizes.classes:
        return None
    with relocate({ADAPTER: f"{where}.{ADAPTER}"}):
        block, cls = json.dumps({**task.model}, default=list), MODELS[task.model["name"]]
        return _build(block, cls, sizes.shape[1:], sizes.classes, kind == "graph")


@lru_cache(maxsize=32)
def _build(block: str, _cls: type[ClientModel], shape: tuple[int, ...], classes: int, graph: bool) -> Task | None:
    """The task of a model block; its class is a part of the key of the cache."""
    options = {key: value for key, value in json.loads(block).items() if key != DIGEST}
    name = options.pop("name")
    kind: Callable[..., Task] = NodeClassification if graph else RowClassification
    try:
        return kind(lambda: build(name, shape, classes, **options))
    except Exception as error:  # of a model that does not fit, which is refused with its data
        if isinstance(error, BadInput) and error.place.startswith(ADAPTER):
            raise
        return None
