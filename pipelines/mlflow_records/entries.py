"""The runs in MLflow that show a study: parents and their children.

A method on a task is a parent with a child for each seed, a search one with a child for each trial, and an ablation one
with a child for each variant. Runs that may not be compared with the others have no rank, and a verdict that says why.
"""

import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_svg  # noqa: F401  # imported before the forks, each of which needs it for pictures
import numpy as np
import pandas as pd
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset import Dataset
from mlflow.data.meta_dataset import MetaDataset
from mlflow.data.numpy_dataset import from_numpy
from mlflow.entities import DatasetInput, InputTag, Metric

from fedweave import plots, results
from fedweave.data import load_dataset
from fedweave.errors import BadInput
from fedweave.report import optional_files
from fedweave.results import Run, Study, Tables
from fedweave.results.marks import GRAPH_CONTROL, assign_marks

from . import writer
from .writer import Entry, Store, Unit, metric

TAGS = (
    "study",
    "task",
    "dataset",
    "setting",
    "method",
    "label",
    "point",
    "select",
    "spec_hash",
    "device",
    "processor",
    "note",
)
MAX_PICTURES = 6  # pictures of a run's graph over its rounds
MIN_PICTURE_SIZE = 240  # smallest width and height of such a picture, in pixels
LEAKY = "trained on test rows"
HEADLINE = {
    "std": "std",
    "worst10": "worst10",
    "pre": "pre",
    "post": "post",
    "client_std": "client_std",
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "seconds": "seconds",
    "published": "published_mean",
}
RANKING = ("rank", "p_adjusted")  # numbers that compare a run with others


def units(study: Study, tables: Tables) -> Iterator[Unit]:
    """Everything that the experiment of a study shows."""
    for run in study.runs:
        yield run_unit(run, tables)
    yield from _unranked_units(study.pooled, study, "method", results.POOLED)
    yield from _unranked_units(study.leaky, study, "leaky", LEAKY)
    for search in optional_files.tuning(study.folder):
        yield from _search_units(study, search)
    for name, table in optional_files.ablations(study.folder).groupby("ablation", sort=False):
        yield _ablation_unit(study, str(name), table)


def run_unit(run: Run, tables: Tables, kind: str = "method", unranked: str = "") -> Unit:
    """A method on a task: the leaderboard's numbers, mean curves, and a child for every seed.

    Args:
        kind: what MLflow calls the run.
        unranked: the reason why the run may not be compared with others; empty where it may.
    """
    files = sorted(file for file in run.folder.iterdir() if not file.name.startswith("models-"))
    values = headline(run, tables)
    if unranked:
        values = {name: value for name, value in values.items() if name not in RANKING}
    tags = _run_tags(run) | {"verdict": unranked or _verdicts(run, tables)[run.label]}
    make = partial(_method_entry, run, tables, values, tags, kind)
    return Unit(run.name, writer.source_digest(*files), make, partial(_log_artifacts, run), values, tags)


def _unranked_units(runs: tuple[Run, ...], study: Study, kind: str, verdict: str) -> Iterator[Unit]:
    """Units of `runs` of a study that are on no leaderboard; their numbers are computed from these runs alone."""
    if not runs:
        return
    tables = results.compute_tables(study._replace(runs=runs, leaky=(), pooled=()))
    yield from (run_unit(run, tables, kind, verdict) for run in runs)


def _verdicts(run: Run, tables: Tables) -> dict[str, str]:
    of_task = tables.board["task"] == run.task
    return assign_marks(tables.board[of_task], tables.significance[tables.significance["task"] == run.task])


def headline(run: Run, tables: Tables) -> dict[str, float]:
    """Name -> number of the leaderboard, with measures of the graph; NaN where there is none."""
    ranked = tables.board[tables.board["task"] == run.task].reset_index(drop=True)
    rank, row = next((rank, row) for rank, row in enumerate(ranked.to_dict("records"), 1) if row["run"] == run.name)
    tests = tables.significance.query("task == @run.task and family == 'leader' and other == @run.label")
    values = {
        str(run.info["metric"]): row["mean"],
        **{name: row[column] for name, column in HEADLINE.items()},
        **{name: row[name] for name in results.MEANING},
        "bytes": row["bytes_up"] + row["bytes_down"],
        "parameters": run.info["parameters"],
        "rank": np.nan if row["mark"] == GRAPH_CONTROL else rank,
        "p_adjusted": next(iter(tests["p_adjusted"]), np.nan),
        **{name: run.info[name] for name in ("dropped", "epsilon") if run.info.get(name) is not None},
    }
    return {name: float(value) for name, value in values.items()}


def _run_tags(run: Run) -> dict[str, str]:
    own = writer.flatten(run.info.get("contestant") or {}, "contestant.")  # how it ran, and what is not equal
    return {name: str(run.info[name]) for name in TAGS if run.info.get(name)} | own


def _method_entry(run: Run, tables: Tables, values: dict[str, float], tags: dict[str, str], kind: str) -> Entry:
    end = int((run.folder / "run.json").stat().st_mtime * 1000)
    durations = (run.rounds.groupby("seed")["seconds"].sum() * 1000).astype(int)
    ends = end - int(durations.sum()) + durations.cumsum()
    children = (
        Entry(
            f"{run.name} seed {seed}",
            "seed",
            _run_tags(run) | {"seed": str(seed)},
            {"seed": str(seed)},
            _seed_metrics(run, tables, seed),
            int(ends[seed] - durations[seed]),
            int(ends[seed]),
        )
        for seed in run.info["seeds"]
    )
    params = writer.flatten(run.info["spec"]) | {"seeds": str(list(run.info["seeds"]))}
    return Entry(
        run.name, kind, tags, params, _method_metrics(run, tables, values), end - int(durations.sum()), end, children
    )


def _method_metrics(run: Run, tables: Tables, values: dict[str, float]) -> Iterator[Metric]:
    """The leaderboard's numbers, the mean over seeds of every curve, and the machine's load."""
    yield from (metric(name, value) for name, value in values.items())
    yield from _curves(run, tables.curves[tables.curves["run"] == run.name], "mean")
    yield from _machine(run)


def _machine(run: Run) -> Iterator[Metric]:
    """The load of the machine during training, under the names that MLflow draws as system metrics."""
    for step, row in enumerate(run.machine.to_dict("records")):
        milliseconds = int(row.pop("time") * 1000)
        yield from (metric(f"system/{name}", value, step, milliseconds) for name, value in row.items())


def _seed_metrics(run: Run, tables: Tables, seed: int) -> Iterator[Metric]:
    """Curves, costs and diagnostics of evaluated rounds, and the value of every client, whose number is the step."""
    evaluations = run.evaluations[run.evaluations["seed"] == seed]
    means = evaluations.groupby(["point", "split", "round"], as_index=False)["value"].mean()
    yield from _curves(run, means, "value")
    # MLflow takes half a millisecond for a number; those of every round are in rounds.csv.
    evaluated = run.rounds["round"].isin(means["round"])
    for row in run.rounds[(run.rounds["seed"] == seed) & evaluated].itertuples():
        for name in ("train_loss", "bytes_up", "bytes_down", "seconds"):
            yield metric(f"round/{name}", getattr(row, name), row.round)
    for row in run.diagnostics[run.diagnostics["seed"] == seed].itertuples():
        yield metric(f"diagnostic/{row.name}", row.value, row.round)
    final = tables.clients[(tables.clients["run"] == run.name) & (tables.clients["seed"] == seed)]
    for row in final.itertuples():
        yield metric(f"client/{run.info['metric']}", row.value, row.client)
    yield metric(run.info["metric"], final["value"].mean())


def _curves(run: Run, table: pd.DataFrame, column: str) -> Iterator[Metric]:
    for row in table.to_dict("records"):
        yield metric(f"{run.info['metric']}/{row['split']}_{row['point']}", row[column], row["round"])


def _log_artifacts(run: Run, store: Store, run_id: str) -> None:
    """Log everything except numbers: the data, the files, the graphs."""
    store.client.log_inputs(run_id, [_dataset(run)])
    for path in sorted(run.folder.iterdir()):
        if not path.name.startswith("models-"):  # they are the logged model's, and large
            store.client.log_artifact(run_id, str(path), "run")
    _log_graphs(store, run_id, run)


_content_of_data = cache(writer.digest)  # many runs share the files of a data set, which may be large


def _dataset(run: Run) -> DatasetInput:
    """The data set and its partition as MLflow's input of a run; the digest is of their files."""
    name = str(run.info["dataset"])
    features = Path("data", "features", name)
    partition = Path("data", "partitions", run.task, "partition.npz")
    digest = _content_of_data(*sorted(features.glob("*")), partition)
    source = CodeDatasetSource({"stage": f"partition@{run.task}", "setting": run.info["setting"]})
    try:
        content: Dataset = from_numpy(load_dataset(features, raw=False).x, source, name=name, digest=digest)
    except BadInput:
        content = MetaDataset(source, name, digest)  # type: ignore[abstract]  # MLflow makes these itself
    return DatasetInput(content._to_mlflow_entity(), [InputTag("mlflow.data.context", "training")])


def _log_graphs(store: Store, run_id: str, run: Run) -> None:
    """Log the collaboration graph: one picture of all layers, and one for each layer and stored round.

    MLflow shows the pictures of rounds as steps.
    """
    graphs = results.graphs(run)
    if graphs is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder, "collaboration.svg")
        plots.save(picture, plots.collaboration(graphs.weights, graphs.rounds, graphs.layers))
        store.client.log_artifact(run_id, str(picture))
    scaled = graphs.weights / max(float(graphs.weights.max()), 1e-12)
    layers = {"all layers": scaled.mean(axis=1)}
    if len(graphs.layers) > 1:
        layers |= {str(layer): scaled[:, index] for index, layer in enumerate(graphs.layers)}
    for layer, weights in layers.items():
        for index in plots.spaced_indices(len(graphs.rounds), MAX_PICTURES):
            shade = (255 * weights[index].clip(0, 1)).astype(np.uint8)
            square = np.ones([max(1, MIN_PICTURE_SIZE // len(shade))] * 2, np.uint8)
            store.client.log_image(
                run_id, np.kron(shade, square), key=f"collaboration/{layer}", step=int(graphs.rounds[index])
            )


def _search_units(study: Study, search: optional_files.Tuning) -> Iterator[Unit]:
    """A search: its best value, the importance of each parameter, and a child for every trial."""
    run = next((run for run in study.runs if run.name == search.run), None)
    if run is None:
        return
    tags = {name: _run_tags(run)[name] for name in ("study", "task", "dataset", "setting", "method", "label")}
    value = f"validation_{run.info['metric']}"

    def entry() -> Entry:
        start, end = (
            int(1000 * t)
            for t in (search.trials["started"].min(), (search.trials["started"] + search.trials["seconds"]).max())
        )
        metrics = [
            metric(value, search.value),
            metric("trials", len(search.trials)),
            metric("pruned", search.trials["value"].isna().sum()),
        ]
        metrics += [metric(f"importance/{name}", share) for name, share in search.importance.items()]
        params = writer.flatten({"best": search.best, "budget": search.budget})
        children = (_trial_entry(search, tags, value, number) for number in range(len(search.trials)))
        return Entry(f"{run.name} tuning", "tuning", tags, params, metrics, start, end, children)

    yield Unit(f"tuning/{run.name}", writer.source_digest(search.file), entry)


def _trial_entry(search: optional_files.Tuning, tags: dict[str, str], value: str, number: int) -> Entry:
    row = search.trials.iloc[number]
    start = int(1000 * row["started"])
    metrics = [
        metric(value, row["value"]),
        *(metric(f"{value}/reached", v, step) for step, v in search.curves[number].items()),
    ]
    metrics += [metric("bytes", row["bytes"])] if "bytes" in row else []
    trial_tags = tags | {"state": "pruned" if np.isnan(row["value"]) else "finished"}
    params = writer.flatten({name: row[name] for name in search.names})
    return Entry(
        f"{search.run} trial {number}", "trial", trial_tags, params, metrics, start, start + int(1000 * row["seconds"])
    )


def _ablation_unit(study: Study, name: str, table: pd.DataFrame) -> Unit:
    """An ablation: a child for every variant, with its settings as parameters."""
    file = study.folder / "ablations" / name / "table.csv"
    milliseconds = int(file.stat().st_mtime * 1000) if file.is_file() else int(datetime.now().timestamp() * 1000)
    first = table.iloc[0]
    tags = {"study": study.name, **{key: str(first[key]) for key in ("task", "method")}}

    def variant(row: dict[str, Any]) -> Entry:
        metrics = [
            metric(row["metric"], row["mean"]),
            *(metric(key, row[key]) for key in optional_files.NUMBERS if key != "mean"),
        ]
        return Entry(
            f"{name}: {row['variant']}",
            "variant",
            tags,
            writer.flatten(json.loads(row["settings"])),
            metrics,
            milliseconds,
            milliseconds,
        )

    def entry() -> Entry:
        return Entry(
            name,
            "ablation",
            tags,
            {"run": str(first["run"])},
            (),
            milliseconds,
            milliseconds,
            map(variant, table.to_dict("records")),
        )

    return Unit(f"ablation/{name}", writer.source_digest(file), entry)
