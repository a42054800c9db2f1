"""Writing to MLflow: a run with its children, in as few calls as MLflow's limits allow.

A parent gets the digest of its source files at the very end, so that a run that was cut off never counts as whole.
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
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedweave.errors import BadInput
from fedweave.pipelines import addresses
from fedweave.pipelines.mlflow_records import owner

RUN, DIGEST, PARENT = "fedweave.run", "fedweave.digest", "mlflow.parentRunId"
COMMIT = "mlflow.source.git.commit"
RECORD = "record"  # tag: whether a run shows what results/ says now, or what it said before
CURRENT, SUPERSEDED = "current", "superseded"
FORMAT = "2"  # of what is logged of a run; a run of another format is logged again
LONGEST = 500  # characters of a parameter; MLflow takes 6000, but nobody reads them
BATCH, FEW = 1000, 100  # most metrics, and most parameters or tags, of one call
PATIENCE = 120_000  # milliseconds that a connection waits for another one that writes


class Store(NamedTuple):
    """Where runs are written: a client, an experiment and its name, the tags of code, data and project, and the
    project's name, which is empty where the store is its own.
    """

    client: MlflowClient
    experiment: str
    name: str
    provenance: Mapping[str, str]
    project: str = ""


class Entry(NamedTuple):
    """A run to be: `begun` and `ended` are milliseconds since 1970."""

    name: str
    kind: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Iterable[Metric]
    begun: int
    ended: int
    children: Iterable["Entry"] = ()


class Unit(NamedTuple):
    """What becomes one run with its children.

    Attributes:
        name: of what it was made from; the same for all versions of it.
        mark: a digest of the files behind it.
        make: what to log.
        finish: adds artifacts to the run with this id, before its digest makes it whole.
        numbers, tags: what may change although the files behind it do not, such as its rank among others.
    """

    name: str
    mark: str
    make: Callable[[], Entry]
    finish: Callable[[Store, str], None] = lambda store, run: None
    numbers: Mapping[str, float] = {}
    tags: Mapping[str, str] = {}


def connect(experiment: str, uri: str | None = None) -> Store:
    """The experiment, made where it is not there yet.

    Args:
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: the store is a file that is no database, was written by another version of MLflow or in another
            folder, or is a server that does not answer; or the file that keeps the project's name is damaged.
    """
    logging.getLogger("mlflow").setLevel(logging.ERROR)  # it announces its migrations
    if uri:
        mlflow.set_tracking_uri(uri)
    addresses.check_store(mlflow.get_tracking_uri(), experiment)
    project = owner.name_in_store(mlflow.get_tracking_uri())
    if not event.contains(Engine, "connect", _configure_sqlite):
        event.listen(Engine, "connect", _configure_sqlite)
        os.register_at_fork(after_in_child=_forget_connections)
    client = MlflowClient()
    before = client.get_experiment_by_name(experiment)
    if before is not None and not project:
        _check_place(before)
    if before is not None and before.lifecycle_stage == "deleted":
        client.restore_experiment(before.experiment_id)
    number = mlflow.set_experiment(experiment).experiment_id
    return Store(client, number, experiment, {**provenance(), **owner.tags(project)}, project)


def _check_place(experiment: Experiment) -> None:
    """Refuse the project's own record where its folder was moved or copied: files and models of its runs would be
    looked for, and written, at the old place.
    """
    place = Path(experiment.artifact_location.removeprefix("file://"))
    by_default = place.is_absolute() and place.parts[-2:] == ("mlruns", experiment.experiment_id)
    if by_default and not place.resolve().is_relative_to(Path.cwd().resolve()):
        file = addresses.file_of(mlflow.get_tracking_uri())
        raise BadInput(f"{file}: was written in {place.parents[1]}; move it away, then: fedweave log {experiment.name}")


def _configure_sqlite(connection: Any, _: Any) -> None:
    """A write-ahead log: SQLite need not wait for the disk after each of a thousand entries, and loses no earlier
    one. Several processes may write: each waits for the others.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = {PATIENCE}"
        )


def _forget_connections() -> None:
    """A forked process makes connections of its own; those of its parent must not be used, nor closed."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose(close=False)


@cache
def provenance() -> Mapping[str, str]:
    """Git commit (with a mark if files differ from it) and a hash of dvc.lock; what is not there is left out."""
    tags = {}
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    answer = subprocess.run(git, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        tags[COMMIT] = answer.stdout.strip()
    if Path("dvc.lock").is_file():
        tags["dvc.lock"] = digest(Path("dvc.lock"))
    return tags


def digest(*files: Path) -> str:
    """A hash of the content of those of `files` that are there."""
    content = hashlib.sha256()
    for file in files:
        if file.is_file():
            content.update(file.read_bytes())
    return content.hexdigest()[:16]


def source_digest(*files: Path) -> str:
    """A digest of the files behind a run, and of how it is logged."""
    return f"{digest(*files)}.{FORMAT}"


def log(store: Store, unit: Unit) -> str:
    """A new run of `unit` with its children; returns its id."""
    return _log_entry(store, unit.make(), {RUN: unit.name, RECORD: CURRENT, **store.provenance}, unit)


def _log_entry(store: Store, entry: Entry, tags: Mapping[str, str], unit: Unit | None) -> str:
    about = {**tags, **entry.tags, "kind": entry.kind}
    run = str(store.client.create_run(store.experiment, entry.begun, about, entry.name).info.run_id)
    _write(store, run, entry.metrics, entry.params)
    if unit is not None:
        unit.finish(store, run)
    for child in entry.children:
        _log_entry(store, child, {**tags, PARENT: run}, None)
    if unit is not None:
        store.client.set_tag(run, DIGEST, unit.mark)
    store.client.set_terminated(run, "FINISHED", entry.ended)
    return run


def _write(store: Store, run: str, metrics: Iterable[Metric], params: Mapping[str, str]) -> None:
    """All numbers of a run, in as few calls as MLflow's limits allow."""
    finite = [metric for metric in metrics if math.isfinite(metric.value)]
    settings = [Param(name, value) for name, value in params.items()]
    for at in range(0, max(len(finite), 1), BATCH):
        store.client.log_batch(run, finite[at : at + BATCH], settings[:FEW] if not at else ())
    for at in range(FEW, len(settings), FEW):
        store.client.log_batch(run, params=settings[at : at + FEW])


def set_tags(store: Store, run: str, tags: Mapping[str, str]) -> None:
    """All of `tags` in one call."""
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
            flat[f"{prefix}{key}"] = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return flat
