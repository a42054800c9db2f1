"""Writing to MLflow: a run with its children, in as few calls as MLflow's limits allow.

A parent gets the digest of its source files at the very end, so that an interrupted run never counts as complete.
"""

import hashlib
import json
import logging
import math
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Experiment, Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedweave.errors import BadInput
from fedweave.processes.user import user_name

from .. import addresses
from . import database, owner

RUN, DIGEST, PARENT = "fedweave.run", "fedweave.digest", "mlflow.parentRunId"
COMMIT = "mlflow.source.git.commit"
RECORD = "record"  # tag: whether a run shows the current results or earlier ones
CURRENT, SUPERSEDED = "current", "superseded"
FORMAT = "2"  # version of what is logged of a run; a run of another version is logged again
MAX_PARAM_LENGTH = 500  # characters; MLflow accepts 6000, which are too long to read
METRICS_PER_CALL, PARAMS_PER_CALL = 1000, 100  # MLflow's limits
BUSY_TIMEOUT = 120_000  # milliseconds that a connection waits for another one that writes


class Store(NamedTuple):
    """Where runs are written.

    Attributes:
        client: MLflow's client.
        experiment: id of the experiment.
        name: of the experiment.
        provenance: tags with the version of the code and the data, and with the project.
        project: name of the project; empty where the store is the project's own.
    """

    client: MlflowClient
    experiment: str
    name: str
    provenance: Mapping[str, str]
    project: str = ""


class Entry(NamedTuple):
    """A run to be logged; `start` and `end` are milliseconds since 1970."""

    name: str
    kind: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Iterable[Metric]
    start: int
    end: int
    children: Iterable["Entry"] = ()


class Unit(NamedTuple):
    """What becomes one run with its children.

    Attributes:
        name: of the source, such as a run or a search; the same for all versions of it.
        digest: of the source files.
        make: returns what to log.
        finish: adds artifacts to the run with the given id, before the digest marks the run as complete.
        numbers, tags: values that may change although the source files do not, such as a rank.
    """

    name: str
    digest: str
    make: Callable[[], Entry]
    finish: Callable[[Store, str], None] = lambda store, run: None
    numbers: Mapping[str, float] = {}
    tags: Mapping[str, str] = {}


def connect(experiment: str, uri: str | None = None) -> Store:
    """A store for the experiment, which is created if it does not exist.

    Args:
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: the store is a file that is not a database, was written in another folder, or cannot be written, or is
            a server that does not answer.
    """
    logging.getLogger("mlflow").setLevel(logging.ERROR)  # it announces its migrations
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints the errors that it also raises
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.set(True)  # of a server it prints two lines a run
    if uri:
        mlflow.set_tracking_uri(uri)
    addresses.check_store(mlflow.get_tracking_uri(), experiment)
    project = owner.name_in_store(mlflow.get_tracking_uri())
    database.create(mlflow.get_tracking_uri())
    if not event.contains(Engine, "connect", _configure_sqlite):
        event.listen(Engine, "connect", _configure_sqlite)
        os.register_at_fork(after_in_child=_forget_connections)
    client = MlflowClient()
    existing = client.get_experiment_by_name(experiment)
    if existing is not None and not project:
        _check_place(existing)
    if existing is not None and existing.lifecycle_stage == "deleted":
        client.restore_experiment(existing.experiment_id)
    number = mlflow.set_experiment(experiment).experiment_id
    return Store(client, number, experiment, {**provenance(), **owner.tags(project)}, project)


def _check_place(experiment: Experiment) -> None:
    """Refuse the project's own record if the folder was moved or copied.

    MLflow would read and write files and models of its runs in the old folder.
    """
    location = Path(experiment.artifact_location.removeprefix("file://"))
    by_default = location.is_absolute() and location.parts[-2:] == ("mlruns", experiment.experiment_id)
    if by_default and not location.resolve().is_relative_to(Path.cwd().resolve()):
        file = addresses.file_of(mlflow.get_tracking_uri())
        raise BadInput(
            f"{file}: was written in {location.parents[1]}; move it away, then: fedweave log {experiment.name}"
        )


def _configure_sqlite(connection: Any, _: Any) -> None:
    """Use a write-ahead log, and let each of several writing processes wait for the others.

    With the log SQLite need not wait for the disk after each of a thousand entries, and loses no earlier entry.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = {BUSY_TIMEOUT}"
        )


def close_connections() -> None:
    """Close MLflow's connections to databases, which it opens again when it needs them.

    With the last one SQLite writes its log into the file of the database, so that a copy of that file alone is whole.
    """
    for engine in _engines():
        engine.dispose()


def _forget_connections() -> None:
    """Let a forked process make new connections; it must neither use nor close those of its parent."""
    for engine in _engines():
        engine.dispose(close=False)


def _engines() -> list[Engine]:
    """What MLflow uses for databases in this process."""
    from mlflow.store.model_registry import sqlalchemy_store as registry
    from mlflow.store.tracking import sqlalchemy_store as tracking

    return [engine for store in (tracking, registry) for engine in [*store.SqlAlchemyStore._engine_map.values()]]


@cache
def provenance() -> Mapping[str, str]:
    """Tags: user, git commit, with -dirty if files differ from it, and a hash of dvc.lock; missing ones are left out.

    MLflow shows a commit only beside the name of a source.
    """
    tags = {"mlflow.user": user_name(), "mlflow.source.name": "fedweave", "mlflow.source.type": "LOCAL"}
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    answer = subprocess.run(git, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        tags[COMMIT] = answer.stdout.strip()
    if Path("dvc.lock").is_file():
        tags["dvc.lock"] = digest(Path("dvc.lock"))
    return tags


def digest(*files: Path) -> str:
    """A hash of the content of those `files` that exist."""
    hashed = hashlib.sha256()
    for file in files:
        if file.is_file():
            hashed.update(file.read_bytes())
    return hashed.hexdigest()[:16]


def source_digest(*files: Path) -> str:
    """A digest of the source files of a run, with the version of what is logged."""
    return f"{digest(*files)}.{FORMAT}"


def log(store: Store, unit: Unit) -> str:
    """Log `unit` as a new run with its children; returns its id."""
    return _log_entry(store, unit.make(), {RUN: unit.name, RECORD: CURRENT, **store.provenance}, unit)


def _log_entry(store: Store, entry: Entry, tags: Mapping[str, str], unit: Unit | None) -> str:
    entry_tags = {**tags, **entry.tags, "kind": entry.kind}
    run = str(store.client.create_run(store.experiment, entry.start, entry_tags, entry.name).info.run_id)
    _write(store, run, entry.metrics, entry.params)
    if unit is not None:
        unit.finish(store, run)
    for child in entry.children:
        _log_entry(store, child, {**tags, PARENT: run}, None)
    if unit is not None:
        store.client.set_tag(run, DIGEST, unit.digest)
    store.client.set_terminated(run, "FINISHED", entry.end)
    return run


def _write(store: Store, run: str, metrics: Iterable[Metric], params: Mapping[str, str]) -> None:
    """Write all numbers and parameters of a run, in as few calls as MLflow's limits allow."""
    finite = [metric for metric in metrics if math.isfinite(metric.value)]
    settings = [Param(name, value) for name, value in params.items()]
    for start in range(0, max(len(finite), 1), METRICS_PER_CALL):
        store.client.log_batch(
            run, finite[start : start + METRICS_PER_CALL], settings[:PARAMS_PER_CALL] if not start else ()
        )
    for start in range(PARAMS_PER_CALL, len(settings), PARAMS_PER_CALL):
        store.client.log_batch(run, params=settings[start : start + PARAMS_PER_CALL])


def set_tags(store: Store, run: str, tags: Mapping[str, str]) -> None:
    """Set all `tags` of a run in one call."""
    store.client.log_batch(run, tags=[RunTag(name, value) for name, value in tags.items()])


def metric(name: str, value: float, step: int = 0, at: int = 0) -> Metric:
    """A number of a run; `at` is milliseconds since 1970."""
    return Metric(name, float(value), at, int(step))


def flatten(block: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"train": {"lr": 0.1}} -> {"train.lr": "0.1"}; lists as JSON, long values cut."""
    flat: dict[str, str] = {}
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[f"{prefix}{key}"] = text if len(text) <= MAX_PARAM_LENGTH else text[: MAX_PARAM_LENGTH - 1] + "…"
    return flat
