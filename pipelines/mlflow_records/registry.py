"""Models in MLflow: those of every run of a method; of each task the best method and the one to deploy are registered,
with an alias each.

MLflow can load the models of every run. Of registered ones it has a copy, with the code that they need, so that it can
serve them elsewhere. The weights of the others stay in the folder of results that they refer to, or are copied on
request.
"""

import json
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import mlflow
import numpy as np
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.models import Model, infer_signature

from fedweave import results
from fedweave.methods import METHODS
from fedweave.models import MODELS
from fedweave.prediction import packing
from fedweave.report.answers import answer
from fedweave.results import Run, Study, Tables
from fedweave.study import plugins

from . import stamp
from .owner import PROJECT
from .writer import Store

SERVED = Path(__file__).with_name("served_model.py")
CODE = [str(files("fedweave"))]
REQUIREMENTS = ("numpy", "pandas", "torch", "tqdm")  # what `fedweave.prediction.packing` imports
ALIAS, TO_DEPLOY = "best", "deploy"
DEFAULTS = {"client": "", "seed": -1}  # no client, which is refused; the first seed
LOCATION = "location"  # the tag of models that stay in a folder of results
NO_STEP = -1  # of a model, which is no step of the curves of its run
PLUGINS = "plugins.json"  # beside the models: modules to be imported before them


def log_models(
    store: Store, study: Study, tables: Tables, logged: Mapping[str, str], copy_all: bool = False
) -> dict[str, str]:
    """Log the models of every run of the study; returns run -> id of its model, where there is one.

    Args:
        logged: run -> id of its MLflow run.
        copy_all: copy the models of all runs, not only those that are registered.
    """
    registered = {run for task in results.by_task(study) for run in _runs_by_alias(study, tables, task).values()}
    models = {
        run.name: update_model(store, run, logged[run.name], copy_all or run.name in registered)
        for run in study.all_runs
    }
    return {name: model for name, model in models.items() if model is not None}


def update_model(store: Store, run: Run, run_id: str, copy: bool) -> str | None:
    """The id of the model of a run, logged anew where its files are lost or are to be copied; None: it has no model."""
    stored = _find_model(store, run_id)
    if stored is not None and not stamp.is_lost(stored.artifact_location) and not (copy and LOCATION in stored.tags):
        points = sorted(stored.metrics or [], key=lambda point: (point.step, point.timestamp))  # the last one counts
        _log_numbers(store, stored.model_id, run_id, {point.key: point.value for point in points})
        return str(stored.model_id)
    if stored is not None:
        store.client.delete_logged_model(stored.model_id)
    return log_model(store, run, run_id, copy)


def _log_numbers(store: Store, model_id: str, run_id: str, stored: Mapping[str, float]) -> None:
    """Log numbers of a run for its model: the scores, and no curve and no load of the machine, which have a "/".

    A missing number is left out, because MLflow would show 0 for NaN, and so is one that is `stored`: others have
    changed with the results of other runs, such as a rank.
    """
    points = map(Metric.from_proto, store.client.get_run(run_id).data.to_proto().metrics)  # the last of each name
    scores = [
        # A point of the same time and step is no new point of the run.
        Metric(point.key, point.value, point.timestamp, point.step, model_id=model_id)
        for point in points
        if "/" not in point.key and not np.isnan(point.value) and point.value != stored.get(point.key)
    ]
    store.client.log_batch(run_id, scores)


def log_model(store: Store, run: Run, run_id: str, copy: bool) -> str | None:
    """The models of all clients and seeds as one MLflow model, with the numbers of the run `run_id`; returns its id.

    With `copy` it has the weights and the code; otherwise it refers to the folder of results.

    None where there are no models, or the data or what defines the models are not here.
    """
    plugins.load_if_missing(run.info["method"], METHODS)
    if run.info["method"] not in METHODS or run.info["spec"]["task"]["model"].get("name") not in MODELS:
        return None  # the method or the model is of a plug-in that is not here, or was given in Python
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "run")
        packed.mkdir()
        example = packing.pack(run, packed, copy)
        if example is None:
            return None
        plugin_files = plugins.list_loaded()
        (packed / PLUGINS).write_text(json.dumps([name for names in plugin_files.values() for name in names]))
        predictor = packing.unpack(packed)
        client, seed = predictor.available[0], min(run.seeds)
        outputs = predictor.outputs(example, client, seed)
        # Not `log_model`, which reads the history of every number of the run and loads the model once more.
        logged = store.client.create_logged_model(
            store.experiment,
            run.name,
            run_id,
            tags=None if copy else {LOCATION: str(run.folder)},
            params=store.client.get_run(run_id).data.params,
            model_type=str(run.info["method"]),
        )
        store.client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, NO_STEP)])
        number = str(logged.model_id)
        mlflow.pyfunc.save_model(
            Path(folder, "saved"),
            mlflow_model=Model(logged.artifact_location, run_id, model_uuid=number, model_id=number),
            python_model=str(SERVED),
            artifacts={"run": str(packed)},
            code_paths=[*(CODE if copy else ()), *map(str, plugin_files)] or None,
            input_example=(example, {"client": client, "seed": seed}),
            signature=infer_signature(example, outputs, DEFAULTS),
            pip_requirements=[f"{package}=={version(package)}" for package in ("mlflow", *REQUIREMENTS)],
        )
        store.client.log_model_artifacts(number, str(Path(folder, "saved")))
        store.client.finalize_logged_model(number, LoggedModelStatus.READY)
    _log_numbers(store, number, run_id, {})
    return number


def _runs_by_alias(study: Study, tables: Tables, task: str) -> dict[str, str]:
    """Alias -> run of a task: the leader, and the method that the report deploys, where it names one."""
    board = tables.board[tables.board["task"] == task]
    runs = dict(zip(board["method"], board["run"], strict=True))
    to_deploy = runs.get(answer(study, tables, task).method)
    return {ALIAS: str(board["run"].iloc[0]), **({TO_DEPLOY: to_deploy} if to_deploy else {})}


def register_best_models(
    store: Store, study: Study, tables: Tables, logged: Mapping[str, str], models: Mapping[str, str]
) -> list[str]:
    """Let `<study>-<task>@best` refer to the models of each task's leader, and `@deploy` to those that the report
    deploys, if any; returns why the name of a task does not.

    In a store that projects share, a name begins with that of the project: `<project>-<study>-<task>@best`. A name that
    belongs to another task or study, as "a-b-c" of the task "c" of "a-b" and of "a/b", is not taken from it.

    Args:
        logged: run -> id of its MLflow run.
        models: run -> id of its copied model, as `log_models` returns them.
    """
    refusals = []
    for task in map(str, tables.board["task"].unique()):
        runs = {alias: run for alias, run in _runs_by_alias(study, tables, task).items() if run in models}
        name = "-".join(filter(None, (store.project, study.name, task))).replace("/", "-").replace(":", "-")
        if ALIAS in runs and (owner := _other_owner(store, name, study.name, task)) is not None:
            refusals.append(
                f"models:/{name}: is the model of {owner}, so that task {task!r} of study {study.name!r} has none; "
                "rename a study or a task, or delete that model in MLflow"
            )
            continue
        text = "\n".join(
            f"- {one.question.rstrip('?')}: **{one.word}**: {one.reason}" for one in answer(study, tables, task)[:3]
        )
        labels = dict(zip(tables.board["run"], tables.board["method"], strict=True))
        for alias, run in runs.items():
            set_alias(store, name, models[run], logged[run], str(labels[run]), text, alias)
        if ALIAS in runs and TO_DEPLOY not in runs:
            store.client.delete_registered_model_alias(name, TO_DEPLOY)
    return refusals


def _other_owner(store: Store, name: str, study: str, task: str) -> str | None:
    """The task whose best models the registered model `name` has, unless it is `task` of `study` of this project."""
    try:
        run_id = store.client.get_model_version_by_alias(name, ALIAS).run_id
        tags = store.client.get_run(str(run_id)).data.tags
    except MlflowException:  # no such model, or its run was deleted
        return None
    owner = (tags.get(PROJECT, ""), tags.get("study"), tags.get("task"))
    if owner == (store.project, study, task):
        return None
    return f"task {owner[2]!r} of study {owner[1]!r}" + (f" of project {owner[0]!r}" if owner[0] else "")


def _find_model(store: Store, run_id: str) -> LoggedModel | None:
    """The model that is logged for a run, or None; models that were not written to their end are deleted."""
    ready = None
    for model in store.client.search_logged_models([store.experiment], f"source_run_id = '{run_id}'"):
        if model.status == LoggedModelStatus.READY:
            ready = model
        else:
            store.client.delete_logged_model(model.model_id)
    return ready


def set_alias(
    store: Store, name: str, model: str, run_id: str, method: str, description: str, alias: str = ALIAS
) -> int:
    """Register `model` as a version of `name`, once, and set the alias to it; returns the version's number."""
    try:
        store.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"models:/{model}"
    registered = store.client.search_model_versions(f"name = '{name}'")
    versions = [version for version in registered if (version.run_id, version.source) == (run_id, source)]
    version = versions[0] if versions else store.client.create_model_version(name, source, run_id, model_id=model)
    if version.tags.get("method") != method:
        store.client.set_model_version_tag(name, version.version, "method", method)
    if version.description != description:
        store.client.update_model_version(name, version.version, description)
    if alias not in version.aliases:
        store.client.set_registered_model_alias(name, alias, version.version)
    return int(version.version)
