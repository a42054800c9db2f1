"""MLflow as a sink: what a results folder says, as runs to browse and compare.

A parent run per method and task, a child per seed. The files are the truth: the database may be deleted at any
time, and `log_study` writes it again. A run that is there already is left alone, one whose files changed is
replaced.
"""

import hashlib
import json
import logging
import math
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset import Dataset
from mlflow.data.meta_dataset import MetaDataset
from mlflow.data.numpy_dataset import from_numpy
from mlflow.entities import DatasetInput, InputTag, Metric, Param
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedweave import plots, results, spec
from fedweave.data import load_dataset
from fedweave.errors import BadInput
from fedweave.results import Run, Study, Tables
from pipelines.paths import RESULTS
from pipelines.processes import stage

RUN, DIGEST, PARENT = "fedweave.run", "fedweave.digest", "mlflow.parentRunId"
TAGS = ("study", "task", "dataset", "setting", "method", "label", "point", "select", "spec_hash", "device", "note")
LONGEST = 500  # characters of a parameter; MLflow takes 6000, but nobody reads them
STEPS = 16  # most pictures that a run's graph steps through
BATCH, FEW = 1000, 100  # most metrics, and most parameters or tags, of one call
CODE = [str(files(package)) for package in ("fedweave", "pipelines")]


class Sink(NamedTuple):
    """Where runs go: a client, an experiment, and the tags that say which code and data made them."""

    client: MlflowClient
    experiment: str
    provenance: Mapping[str, str]


def log_study(folder: Path | str, uri: str | None = None) -> list[str]:
    """Log every finished run of results/<study>; returns the parents' run ids, in the order of the runs' names.

    Args:
        folder: results/<study>.
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: no finished run, or a broken one.
    """
    study = results.load_study(folder)
    made, sink = results.current(study), _open(study.name, uri)
    known = _known(sink)
    return [_keep_or_log(sink, run, made, known.get(run.name, [])) for run in study.runs]


def log_run(folder: Path | str, uri: str | None = None) -> str:
    """Log one finished run; returns the parent's run id.

    Raises:
        BadInput: a missing or broken file.
    """
    run = results.load_run(folder)
    alone = Study(str(run.info["study"]), run.folder, (run,), ())
    sink = _open(alone.name, uri)
    return _keep_or_log(sink, run, results.tables(alone), _known(sink).get(run.name, []))


def _open(study: str, uri: str | None) -> Sink:
    # It announces its migrations, and warns of pickles that are made here on purpose: graph models cannot be exported.
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    if uri:
        mlflow.set_tracking_uri(uri)
    if not event.contains(Engine, "connect", _unhurried):
        event.listen(Engine, "connect", _unhurried)
    return Sink(MlflowClient(), mlflow.set_experiment(study).experiment_id, _provenance())


def _unhurried(connection: Any, _: Any) -> None:
    """A write-ahead log: SQLite need not wait for the disk after each of a thousand entries, and still loses no earlier one."""
    if isinstance(connection, sqlite3.Connection):
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")


@cache
def _provenance() -> Mapping[str, str]:
    """Git commit (with a mark if files differ from it) and a hash of dvc.lock; what is not there is left out."""
    found = {}
    git = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    asked = subprocess.run(git, capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        found["mlflow.source.git.commit"] = asked.stdout.strip()
    lock = Path("dvc.lock")
    if lock.is_file():
        found["dvc.lock"] = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    return found


def _known(sink: Sink) -> dict[str, list[mlflow.entities.Run]]:
    """The runs that are logged, parents and children, by the name of the results folder they came from."""
    found: dict[str, list[mlflow.entities.Run]] = {}
    page: str | None = ""
    while page is not None:
        answer = sink.client.search_runs([sink.experiment], page_token=page or None)
        for entry in answer:
            found.setdefault(entry.data.tags.get(RUN, ""), []).append(entry)
        page = answer.token or None
    return found


def _digest(run: Run) -> str:
    """A hash of the files that say what happened."""
    return _content(*(run.folder / name for name in ("run.json", "rounds.csv", "evaluations.parquet")))


def _keep_or_log(sink: Sink, run: Run, made: Tables, there: list[mlflow.entities.Run]) -> str:
    """Exactly one parent for `run`: the one that holds the same content, or a new one in place of all others."""
    digest = _digest(run)
    same = [r for r in there if r.data.tags.get(DIGEST) == digest and r.info.status == "FINISHED"]
    if same:
        kept = same[0].info.run_id
        _delete(sink, [r for r in there if kept not in (r.info.run_id, r.data.tags.get(PARENT))])
        return kept
    _delete(sink, there)
    return _log(sink, run, made, digest)


def _delete(sink: Sink, runs: list[mlflow.entities.Run]) -> None:
    for entry in runs:
        source = f"source_run_id = '{entry.info.run_id}'"
        for model in sink.client.search_logged_models([sink.experiment], source):
            sink.client.delete_logged_model(model.model_id)
        sink.client.delete_run(entry.info.run_id)


def _log(sink: Sink, run: Run, made: Tables, digest: str) -> str:
    """A new parent with its children. Its digest comes last, so that a half-logged run is never taken for whole."""
    end = int((run.folder / "run.json").stat().st_mtime * 1000)
    spent = run.rounds.groupby("seed")["seconds"].sum() * 1000
    tags = {RUN: run.name, **{name: str(run.info[name]) for name in TAGS if run.info.get(name)}, **sink.provenance}
    start = end - int(spent.sum())
    parent = sink.client.create_run(sink.experiment, start, tags, run.name).info.run_id
    sink.client.log_inputs(parent, [_dataset(run)])
    _write(sink, parent, _headline(run, made), flatten(run.info["spec"]) | {"seeds": str(list(run.info["seeds"]))})
    sink.client.log_artifacts(parent, str(run.folder), "run")
    _log_graphs(sink, parent, run)
    _log_model(parent, run)
    for seed in run.info["seeds"]:
        about = tags | {PARENT: parent, "seed": str(seed)}
        child = sink.client.create_run(sink.experiment, start, about, f"{run.name} seed {seed}").info.run_id
        _write(sink, child, _of_seed(run, made, seed), {"seed": str(seed)})
        start += int(spent[seed])
        sink.client.set_terminated(child, "FINISHED", start)
    sink.client.set_tag(parent, DIGEST, digest)
    sink.client.set_terminated(parent, "FINISHED", end)
    return parent


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


def _write(sink: Sink, run_id: str, metrics: Iterable[Metric], params: Mapping[str, str]) -> None:
    """All numbers of a run, in as few calls as MLflow's limits allow."""
    finite = [metric for metric in metrics if math.isfinite(metric.value)]
    for at in range(0, len(finite), BATCH):
        sink.client.log_batch(run_id, metrics=finite[at : at + BATCH])
    settings = [Param(name, value) for name, value in params.items()]
    for at in range(0, len(settings), FEW):
        sink.client.log_batch(run_id, params=settings[at : at + FEW])


def _headline(run: Run, made: Tables) -> Iterator[Metric]:
    """The leaderboard's numbers, and the mean over seeds of every curve."""
    row = made.board[made.board["run"] == run.name].iloc[0]
    named = {run.info["metric"]: "mean", "std": "std", "worst10": "worst10", "client_std": "client_std",
             "bytes_up": "bytes_up", "bytes_down": "bytes_down", "seconds": "seconds"}  # fmt: skip
    yield from (_metric(name, row[column]) for name, column in named.items())
    yield _metric("parameters", run.info["parameters"])
    yield from _curves(run, made.curves[made.curves["run"] == run.name], "mean")


def _of_seed(run: Run, made: Tables, seed: int) -> Iterator[Metric]:
    """Curves, ledger and diagnostics by round, and the selected value of every client (its number as the step)."""
    mine = run.evaluations[run.evaluations["seed"] == seed]
    means = mine.groupby(["point", "split", "round"], as_index=False)["value"].mean()
    yield from _curves(run, means, "value")
    for row in run.rounds[run.rounds["seed"] == seed].itertuples():
        for name in ("train_loss", "bytes_up", "bytes_down", "seconds"):
            yield _metric(f"round/{name}", getattr(row, name), row.round)
    for row in run.diagnostics[run.diagnostics["seed"] == seed].itertuples():
        yield _metric(f"diagnostic/{row.name}", row.value, row.round)
    final = made.clients[(made.clients["run"] == run.name) & (made.clients["seed"] == seed)]
    for row in final.itertuples():
        yield _metric(f"client/{run.info['metric']}", row.value, row.client)
    yield _metric(run.info["metric"], final["value"].mean())


def _curves(run: Run, table: pd.DataFrame, column: str) -> Iterator[Metric]:
    for row in table.to_dict("records"):
        yield _metric(f"{run.info['metric']}/{row['split']}_{row['point']}", row[column], row["round"])


def _metric(name: str, value: float, step: int = 0) -> Metric:
    return Metric(name, float(value), 0, int(step))


def _content(*files: Path) -> str:
    """A hash of the content of those of `files` that are there."""
    content = hashlib.sha256()
    for file in files:
        if file.is_file():
            content.update(file.read_bytes())
    return content.hexdigest()[:16]


_content_of_data = cache(_content)  # which many runs share, and which may be large


def _dataset(run: Run) -> DatasetInput:
    """The data set, dealt as the task deals it, as MLflow's input of a run; the digest is that of the files."""
    name = str(run.info["dataset"])
    features = Path("data", "features", name)
    dealt = Path("data", "partitions", run.task, "partition.npz")
    digest = _content_of_data(*sorted(features.glob("*")), dealt)
    source = CodeDatasetSource({"stage": f"partition@{run.task}", "setting": run.info["setting"]})
    try:
        made: Dataset = from_numpy(load_dataset(features).x, source, name=name, digest=digest)
    except BadInput:
        made = MetaDataset(source, name, digest)  # type: ignore[abstract]  # MLflow makes these itself
    return DatasetInput(made._to_mlflow_entity(), [InputTag("mlflow.data.context", "training")])


def _log_graphs(sink: Sink, run_id: str, run: Run) -> None:
    """Who learned from whom: one picture for all layers, and one per kept round that MLflow can step through."""
    graphs = results.graphs(run)
    if graphs is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "collaboration.svg")
        plots.save(picture, plots.collaboration(graphs.weights, graphs.rounds, graphs.layers))
        sink.client.log_artifact(run_id, str(picture))
    for place in plots.some(len(graphs.rounds), STEPS):
        number, weights = graphs.rounds[place], graphs.weights[place].mean(axis=0)
        shade = (255 * (weights / max(float(graphs.weights.max()), 1e-12)).clip(0, 1)).astype(np.uint8)
        square = np.ones([max(1, 240 // len(shade))] * 2, np.uint8)
        sink.client.log_image(run_id, np.kron(shade, square), key="collaboration", step=number)


def _log_model(run_id: str, run: Run) -> None:
    """The first client's model of the first seed as an MLflow model; the models of all are in the run's files."""
    from mlflow.models import infer_signature

    from pipelines.serving import servable  # and with it PyTorch

    seed = min(run.info["seeds"])
    made = servable(run, seed) if (run.folder / f"models-{seed}.pt").is_file() else None
    if made is None:
        return
    signature = infer_signature(made.example, made.answer)
    with mlflow.start_run(run_id=run_id):
        mlflow.pytorch.log_model(
            made.module, name=f"{run.name}-client-0", serialization_format="pickle", code_paths=CODE,
            signature=signature, input_example=made.example,
            pip_requirements=[f"{package}=={version(package)}" for package in ("torch", "numpy")],
        )  # fmt: skip


def main(study: str = "") -> None:
    """Log results/<study> (default: the one that params.yaml names): the way back when the database is gone."""
    folder = RESULTS / (study or spec.load().name)
    print(f"MLflow holds {len(log_study(folder))} runs of {folder.name}")


if __name__ == "__main__":
    stage(main)
