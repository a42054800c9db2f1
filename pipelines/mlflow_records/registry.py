"""Registered models in MLflow: those of the best method of each task, with an alias."""

import json
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import mlflow
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import infer_signature

from fedweave.api import packing
from fedweave.methods import METHODS
from fedweave.models import MODELS
from fedweave.pipelines.mlflow_records.writer import Store
from fedweave.results import Run, Study, Tables, verdicts
from fedweave.study import plugins

SERVED = Path(__file__).with_name("served_model.py")
CODE = [str(files("fedweave"))]
REQUIREMENTS = ("numpy", "pandas", "torch", "tqdm")  # what `fedweave.api.packing` imports, in addition to MLflow itself
ALIAS = "best"
DEFAULTS = {"client": "", "seed": -1}  # no client, which is refused; the first seed
PLUGINS = "plugins.json"  # beside the models: modules to be imported before them


def log_model(store: Store, run: Run, run_id: str) -> str | None:
    """The models of all clients and seeds as one MLflow model, with the numbers of the run `run_id`; returns its id.

    None where there are no models, or the data or what defines the models are not here.
    """
    plugins.load_if_missing(run.info["method"], METHODS)
    if run.info["method"] not in METHODS or run.info["spec"]["task"]["model"].get("name") not in MODELS:
        return None  # the method or the model is of a plug-in that is not here, or was given in Python
    end = store.client.get_run(run_id).info.end_time
    with tempfile.TemporaryDirectory() as folder:
        example = packing.pack(run, Path(folder))
        if example is None:
            return None
        plugin_files = plugins.list_loaded()
        (Path(folder) / PLUGINS).write_text(json.dumps([name for names in plugin_files.values() for name in names]))
        predictor = packing.unpack(Path(folder))
        client, seed = predictor.available[0], min(run.seeds)
        outputs = predictor.outputs(example, client, seed)
        with mlflow.start_run(run_id=run_id):
            logged = mlflow.pyfunc.log_model(
                name=run.name, python_model=str(SERVED), artifacts={"run": folder},
                code_paths=[*CODE, *map(str, plugin_files)], input_example=(example, {"client": client, "seed": seed}),
                signature=infer_signature(example, outputs, DEFAULTS),
                pip_requirements=[f"{package}=={version(package)}" for package in ("mlflow", *REQUIREMENTS)],
            )  # fmt: skip
    store.client.set_terminated(run_id, "FINISHED", end)  # which MLflow has set to now
    return str(logged.model_id)


def register_best_models(store: Store, tables: Tables, study: Study, logged: Mapping[str, str]) -> dict[str, str]:
    """Log the models of each task's leader, and let `<study>-<task>@best` refer to them; returns name -> version.

    In a store that projects share, a name begins with that of the project: `<project>-<study>-<task>@best`.

    Args:
        store, tables, study: MLflow's store, and the study with its tables.
        logged: run -> id of its MLflow run.
    """
    versions, runs = {}, {run.name: run for run in study.runs}
    for task, board in tables.board.groupby("task", sort=False):
        leader = board.iloc[0]
        run, run_id = runs[leader["run"]], logged[leader["run"]]
        model = _find_model(store, run_id) or log_model(store, run, run_id)
        if model is not None:
            text = verdicts.verdict(
                board, verdicts.assign_marks(board, tables.significance[tables.significance["task"] == task])
            )
            name = "-".join(filter(None, (store.project, study.name, str(task)))).replace("/", "-").replace(":", "-")
            versions[name] = _set_alias(store, name, model, run_id, str(leader["method"]), text)
    return versions


def _find_model(store: Store, run_id: str) -> str | None:
    """The id of the model that is logged for a run, or None; models that were not written to their end are deleted."""
    ready = None
    for model in store.client.search_logged_models([store.experiment], f"source_run_id = '{run_id}'"):
        if model.status == LoggedModelStatus.READY:
            ready = str(model.model_id)
        else:
            store.client.delete_logged_model(model.model_id)
    return ready


def _set_alias(store: Store, name: str, model: str, run_id: str, method: str, description: str) -> str:
    """Register `model` as a version of `name`, once, and set the alias to it; returns the version."""
    try:
        store.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = [v for v in store.client.search_model_versions(f"name = '{name}'") if v.run_id == run_id]
    version = (
        versions[0] if versions else store.client.create_model_version(name, f"models:/{model}", run_id, model_id=model)
    )
    if version.tags.get("method") != method:
        store.client.set_model_version_tag(name, version.version, "method", method)
    if version.description != description:
        store.client.update_model_version(name, version.version, description)
    if ALIAS not in version.aliases:
        store.client.set_registered_model_alias(name, ALIAS, version.version)
    return str(version.version)
