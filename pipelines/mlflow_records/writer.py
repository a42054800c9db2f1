"""Writing to MLflow: each run exists once, however often it is logged.

A run carries a digest of its source files. A run with the same digest is left alone; any other run of the same name,
also a half-logged one, is replaced.
"""

import hashlib
import json
import logging
import math
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedweave.pipelines import ui

RUN, DIGEST, PARENT = "fedweave.run", "fedweave.digest", "mlflow.parentRunId"
LONGEST = 500  # characters of a parameter; MLflow takes 6000, but nobody reads them
BATCH, FEW = 1000, 100  # most metrics, and most parameters or tags, of one call
ABOUT = """\
Compare the methods on {links}: that is `tags.kind = 'method' AND tags.dataset = '{dataset}'`,
sorted by `metrics.{metric}`.

`kind` says what a run is: `method` (a method on a task, all seeds), `seed`, `tuning`, `trial`, `ablation`, `variant`.
With the filter above and several experiments chosen, the same list spans studies.
"""
CHARTS = "&searchFilter={filter}&orderByKey=metrics.%60{metric}%60&orderByAsc={up}&compareRunsMode=CHART"


class Store(NamedTuple):
    """Where runs are written: a client, an experiment, the tags of code and data, and the runs that exist already."""

    client: MlflowClient
    experiment: str
    provenance: Mapping[str, str]
    runs: Mapping[str, list[mlflow.entities.Run]]


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


def connect(experiment: str, uri: str | None = None) -> Store:
    """The experiment, made where it is not there yet.

    Args:
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: the store is a file that is no database.
    """
    logging.getLogger("mlflow").setLevel(logging.ERROR)  # it announces its migrations
    if uri:
        mlflow.set_tracking_uri(uri)
    ui.check_store(mlflow.get_tracking_uri())
    if not event.contains(Engine, "connect", _unhurried):
        event.listen(Engine, "connect", _unhurried)
    client, experiment_id = MlflowClient(), mlflow.set_experiment(experiment).experiment_id
    return Store(client, experiment_id, provenance(), _known(client, experiment_id))


def _unhurried(connection: Any, _: Any) -> None:
    """A write-ahead log: SQLite need not wait for the disk after each of a thousand entries, and loses no earlier
    one.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")


@cache
def provenance() -> Mapping[str, str]:
    """Git commit (with a mark if files differ from it) and a hash of dvc.lock; what is not there is left out."""
    tags = {}
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    answer = subprocess.run(git, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        tags["mlflow.source.git.commit"] = answer.stdout.strip()
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


def _known(client: MlflowClient, experiment: str) -> dict[str, list[mlflow.entities.Run]]:
    """The runs that are logged, parents and children, by the name of what they were made from."""
    runs: dict[str, list[mlflow.entities.Run]] = {}
    page: str | None = ""
    while page is not None:
        answer = client.search_runs([experiment], page_token=page or None)
        for entry in answer:
            runs.setdefault(entry.data.tags.get(RUN, ""), []).append(entry)
        page = answer.token or None
    return runs


def once(
    store: Store, name: str, mark: str, make: Callable[[], Entry], finish: Callable[[str], None] = lambda run: None
) -> str:
    """Exactly one run called `name`: the one with the digest `mark`, or a new one instead of all others; returns its
    id.

    Args:
        make: what to log.
        finish: adds artifacts to the run with this id, before its digest makes it whole.
    """
    stored = store.runs.get(name, [])
    same = [r for r in stored if r.data.tags.get(DIGEST) == mark and r.info.status == "FINISHED"]
    if same:
        run_id = str(same[0].info.run_id)
        _delete(store, [r for r in stored if run_id not in (r.info.run_id, r.data.tags.get(PARENT))])
        return run_id
    _delete(store, stored)
    return _log(store, make(), {RUN: name, **store.provenance}, mark, finish)


def _delete(store: Store, runs: list[mlflow.entities.Run]) -> None:
    for entry in runs:
        source = f"source_run_id = '{entry.info.run_id}'"
        for model in store.client.search_logged_models([store.experiment], source):
            store.client.delete_logged_model(model.model_id)
        store.client.delete_run(entry.info.run_id)


def _log(store: Store, entry: Entry, tags: Mapping[str, str], mark: str, finish: Callable[[str], None]) -> str:
    """The run of `entry` with its children.

    A parent's digest is last, so that a half-logged run never counts as complete.
    """
    about = {**tags, **entry.tags, "kind": entry.kind}
    run = str(store.client.create_run(store.experiment, entry.begun, about, entry.name).info.run_id)
    _write(store, run, entry.metrics, entry.params)
    finish(run)
    for child in entry.children:
        _log(store, child, {**tags, PARENT: run}, mark, lambda run: None)
    if PARENT not in tags:
        store.client.set_tag(run, DIGEST, mark)
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


def describe(store: Store, metrics: Mapping[str, tuple[str, bool]]) -> None:
    """Describe in the experiment how to compare its runs; `metrics`: data set -> metric, and whether higher is
    better.
    """
    links = []
    for dataset, (metric, higher) in metrics.items():
        chosen = quote(f"tags.kind = 'method' AND tags.dataset = '{dataset}'")
        charts = CHARTS.format(filter=chosen, metric=metric, up=str(not higher).lower())
        links.append(f"[{dataset}]({ui.page(store.experiment)}{charts})")
    dataset, (metric, _) = next(iter(metrics.items()))
    about = ABOUT.format(links=", ".join(links), dataset=dataset, metric=metric)
    store.client.set_experiment_tag(store.experiment, "mlflow.note.content", about)
