"""A life in MLflow: the scores of its models with their dates, and the champion as the alias of a registered model.

`models:/LIFE@champion` answers all along: MLflow moves an alias in one step, and a model that is loaded stays as it is.
"""

import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
from mlflow.entities import Metric

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.lifecycle.record import CHAMPION
from fedweave.lifecycle.roles import MOVES, Deployed

from . import database, registry, tracking, writer
from .writer import Store

if TYPE_CHECKING:
    import pandas as pd

LIFE, VERSION = "life", "version"  # tags of a run
_LATER = "fedweave challenge {}"
FORBIDDEN = re.compile(r"[^\w\-. ]", re.ASCII)  # in names of metrics


def try_record(life: "fw.Lifecycle") -> None:
    """Bring MLflow up to date; a failure is one line, because it can be repeated later."""
    try:
        if line := record_life(life):
            print(line)
    except (BadInput, OSError) as error:
        reason = str(error).replace(f"fedweave log {name_of(life)}", _LATER.format(life.folder))
        print(f"not logged to MLflow: {reason}", file=sys.stderr)


def name_of(life: "fw.Lifecycle") -> str:
    """The name of a life in MLflow: its folder, seen from that of the project."""
    folder, here = life.folder.resolve(), Path.cwd().resolve()
    return "-".join(folder.relative_to(here).parts if folder.is_relative_to(here) else folder.parts[-1:])


def record_life(life: "fw.Lifecycle", uri: str | None = None) -> str:
    """Bring MLflow up to date with a life; returns a line that names the champion.

    Each training whose models have or had a role has a run, with the scores of its models on every delivery.

    Args:
        life: with a champion.
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: the store cannot be used.
    """
    name, roles, record = name_of(life), life.roles, life.record
    if roles.champion is None:
        return ""
    with tracking.locked(), database.store_errors(uri or mlflow.get_tracking_uri(), name):
        store = writer.connect(name, uri)
        deployed = {event.model.version: event.model for event in roles.events}
        runs = {version: _find_run(store, name, one) for version, one in deployed.items()}
        for version, run_id in runs.items():
            _log_scores(store, run_id, record[record["version"] == version])
        champion, run_id = roles.champion, runs[roles.champion.version]
        model = registry.update_model(store, life.champion.trained.deployed_run(), run_id, True)
        if model is None:
            return f"MLflow has the scores of {name}; its models cannot be served, as they are defined in Python alone"
        event = next(one for one in reversed(roles.events) if one.model == champion and one.event in MOVES)
        registered = "-".join(filter(None, (store.project, name)))
        number = registry.set_alias(store, registered, model, run_id, champion.method, event.reason, CHAMPION)
        facts = {"data": champion.data, "deliveries": str(champion.version), "event": event.event, "when": event.when}
        facts |= {"by": event.by} if event.by else {}
        facts |= {"warm_start": f"version {champion.parent}"} if champion.parent else {}
        for key, value in facts.items():
            store.client.set_model_version_tag(registered, str(number), key, value)
    return (
        f"MLflow: models:/{registered}@{CHAMPION} is version {number}, {champion.method} of version {champion.version}"
    )


def _find_run(store: Store, name: str, deployed: Deployed) -> str:
    """The run of a training, which is made once."""
    query = f"tags.{LIFE} = '{name}' and tags.{VERSION} = '{deployed.version}'"
    if found := store.client.search_runs([store.experiment], query, max_results=1):
        return str(found[0].info.run_id)
    tags = {
        **store.provenance,
        LIFE: name,
        VERSION: str(deployed.version),
        "method": deployed.method,
        "data": deployed.data,
    }
    start = int(1000 * time.time())
    run = store.client.create_run(store.experiment, start, tags, f"version {deployed.version}")
    store.client.set_terminated(run.info.run_id, "FINISHED", start)
    return str(run.info.run_id)


def _log_scores(store: Store, run_id: str, record: "pd.DataFrame") -> None:
    """Log the scores of a training's models, of deliveries that the run lacks: the step is the delivery's number."""
    logged = store.client.get_run(run_id).data.metrics.get("delivery", 0)
    points = [*_points(record[record["delivery"] > logged])]
    for start in range(0, len(points), writer.METRICS_PER_CALL):
        store.client.log_batch(run_id, points[start : start + writer.METRICS_PER_CALL])


def _points(record: "pd.DataFrame") -> Iterator[Metric]:
    """Means over clients and the scores of each; the number of the delivery comes last, and says that all are there."""
    for number, rows in record.groupby("delivery", sort=True):
        at, metric = int(1000 * datetime.fromisoformat(rows["date"].iloc[0]).timestamp()), str(rows["metric"].iloc[0])
        values = {
            metric: rows["score"].mean(),
            "calibration_error": rows["calibration"].mean(),
            "coverage": rows["coverage"].mean(),
            "rows": rows["rows"].sum(),
        }
        values |= {f"clients/{FORBIDDEN.sub('_', one.client)}": one.score for one in rows.itertuples()}
        values["delivery"] = number
        yield from (writer.metric(key, value, number, at) for key, value in values.items() if value == value)  # no NaN
