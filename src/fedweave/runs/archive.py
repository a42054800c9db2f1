"""Writes a finished run as plain files, and selects the value of every client that is reported."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.files.atomic import atomic_path, remove_temporary_files, save_tensors, write_json, write_table
from fedweave.models import parameter_count
from fedweave.runs import federations, predictions
from fedweave.runs.analyst_controls import fit_controls
from fedweave.runs.build import PreparedRun
from fedweave.runs.dependent_clients import find_parts
from fedweave.runs.history import ROWS, SPLITS, History, pad_scores, select_rows
from fedweave.runs.machine import describe_machine
from fedweave.study import objects

# Table of a run -> the attribute of a history with its rows.
TABLES = {"rounds.csv": "ledger", "dropped.csv": "dropped", "edges.csv": "edges", "diagnostics.csv": "diagnostics"}
# Files that not every run has.
PARTS = (
    "models-*.pt",
    "state-*.pt",
    "collaboration-*.npz",
    "portrait-*.npz",
    "dropped.csv",
    "edges.csv",
    *predictions.FILES,
)


def write(
    folder: Path,
    prepared: PreparedRun,
    histories: dict[int, History],
    answers: dict[str, Any] | None = None,
    others: Mapping[str, Path] | None = None,
    controls: Path | None = None,
) -> None:
    """Write a finished run: evaluations.parquet, rounds.csv, diagnostics.csv, graphs, vectors, models; run.json last.

    A run without run.json is unfinished. An older run.json is removed first, so that files of two runs are never mixed.

    Args:
        answers: the entries of run.json about predictions, if the data are on other hosts; by default they are made
            here.
        others: files that move into the folder, by their names there.
        controls: where the outputs of an analyst's controls are kept for other runs on the same rows; None if the run
            has only the rules without a model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "run.json", *(old for pattern in PARTS for old in folder.glob(pattern))):
        old.unlink(missing_ok=True)
    remove_temporary_files(folder)
    for seed, history in histories.items():
        _write_graphs(folder / f"collaboration-{seed}.npz", history, prepared.for_seed(seed))
        _write_portrait(folder / f"portrait-{seed}.npz", history, prepared.for_seed(seed))
        # A deployed run has the scaling and the graphs of the first split.
        deployable = prepared.split is None or seed == prepared.run.seeds[0]
        if history.snapshot and prepared.run.evaluate.models and deployable and prepared.method.has_models:
            save_tensors(
                folder / f"models-{seed}.pt", {"round": history.snapshot["round"], "models": history.snapshot["models"]}
            )
    _write_evaluations(folder / "evaluations.parquet", histories, prepared.federation.sample.tolist())
    for file, name in TABLES.items():
        rows = [[seed, *row] for seed, history in histories.items() for row in getattr(history, name)]
        if rows or file not in PARTS:
            write_table(folder / file, ("seed", *ROWS[name]._fields), rows)
    for name, path in (others or {}).items():
        path.replace(folder / name)
    prediction_record = _write_predictions(folder, prepared, histories, controls) if answers is None else answers
    record = _run_record(prepared, histories) | prediction_record
    write_json(folder / "run.json", record, indent=2, default=str)


def select_scores(prepared: PreparedRun, history: History, split: str = "test") -> np.ndarray:
    """The reported value of every evaluated client [K]; NaN if no round can be chosen.

    The round is chosen by validation values only.
    """
    values, rows = pad_scores(history.scores[f"{prepared.point}/{split}"]), select_rows(history, prepared)
    width = values.shape[1]
    return np.full(width, np.nan) if rows is None else np.asarray(values[rows, np.arange(width)])


def _run_record(prepared: PreparedRun, histories: dict[int, History]) -> dict[str, Any]:
    run, task = prepared.run, prepared.method.task
    spec = run.specification()
    spec["method"] = {"name": run.method, **objects.hyperparameters(prepared.method)}
    return {
        "study": run.study,
        "run": run.key,
        "task": run.name,
        "dataset": run.task.dataset,
        "setting": run.task.setting,
        "method": run.method,
        "label": label(prepared),
        "metric": task.score_metric.name,
        "higher_is_better": task.score_metric.higher_is_better,
        "targets": task.targets_are,
        "point": prepared.point,
        "select": run.evaluate.select,
        "clients": prepared.federation.clients,
        **_identities(prepared),
        **({} if prepared.federation.evaluated is None else {"evaluated": prepared.federation.sample.tolist()}),
        "sharing": find_parts(prepared),
        **({"splits": prepared.run.task.partition["seeds"]} if prepared.split else {}),
        "cohorts": federations.cohorts(run, prepared.federation),
        "leaks": prepared.method.leaks,
        **prepared.method.record,
        "pools": prepared.method.pools,
        "poolable": "pooled_rows" in task.capabilities,
        "parameters": parameter_count(task.template),
        **describe_machine(prepared),
        "threads": torch.get_num_threads(),
        "note": prepared.note,
        "dropped": sum(len(history.dropped) for history in histories.values()),
        **_privacy(prepared, histories),
        "published": run.task.published,
        # A later margin is one that was chosen after the results.
        **({} if run.margins is None else {"margins": _name_metric(run.margins, task.score_metric.name)}),
        "spec": spec,
        "spec_hash": run.fingerprint(),
        "layers": [*task.layers],
        "seeds": [*histories],
    }


def _name_metric(margins: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Margins by metric, with a name for "", the metric of the run."""
    return {name or metric: margin for name, margin in margins.items()}


def _identities(prepared: PreparedRun) -> dict[str, Any]:
    """Names of the clients [N], the group and the unit of each, the names of the groups; null where there are none."""
    group = prepared.federation.group
    return {
        "client_names": [*prepared.names],
        "group": None if group is None else group.tolist(),
        "group_names": [*prepared.group_names] or None,
        "units": [*prepared.units] or None,
    }


def _privacy(prepared: PreparedRun, histories: dict[int, History]) -> dict[str, Any]:
    """The privacy loss of the clients in the worst repetition; empty without `train.privacy`."""
    privacy = prepared.settings.upload_path.privacy
    if privacy is None:
        return {}
    epsilon = max(row.value for history in histories.values() for row in history.diagnostics if row.name == "epsilon")
    return {"epsilon": epsilon, "delta": privacy.delta}


def label(prepared: PreparedRun) -> str:
    """The method's printed name, with marks for a variant and for a leak, so that it differs from the published row."""
    marks = [prepared.run.variant] if prepared.run.variant else []
    marks += ["leaky"] if prepared.method.leaks and "leaky" not in prepared.run.variant else []
    return prepared.method.label + (f" [{', '.join(marks)}]" if marks else "")


def _write_evaluations(path: Path, histories: dict[int, History], clients: list[int]) -> None:
    """A long table seed, round, point, split, client, value; `clients` are those that were evaluated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (seed, r, point, split, client, value)
        for seed, h in histories.items()
        for point, split in SPLITS
        for r, values in zip(h.rounds, h.scores[f"{point}/{split}"], strict=True)
        for client, value in zip(clients, values, strict=False)  # newcomers are the last ones
    ]
    names = ("seed", "round", "point", "split", "client", "value")
    types = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.float64())
    columns = zip(*rows, strict=True)
    table = pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def _write_predictions(
    folder: Path, prepared: PreparedRun, histories: dict[int, History], controls: Path | None
) -> dict[str, Any]:
    """Write the predictions of the reported models; returns entries of run.json: type, pooled metric and controls."""

    def fitted(split: PreparedRun) -> Mapping[str, Sequence[Tensor]]:
        return {} if controls is None else fit_controls(split, controls)

    splits = [prepared.for_seed(seed) for seed in histories]
    record: dict[str, Any] = {"controls": predictions.control_values(splits, fitted)}
    if predictions.has_test_weights(prepared) or not prepared.run.evaluate.predictions:
        reason = predictions.WEIGHTED if predictions.has_test_weights(prepared) else "none: evaluate.predictions is off"
        return {**record, "predictions": reason}
    task, pooled, dtype, width = prepared.method.task, {}, "none: no round has a finite score", 0
    for seed, history in histories.items():
        if (answers := predictions.of_models(prepared.for_seed(seed), history, seed)) is None:
            continue
        table = predictions.build_table(answers, prepared.federation.sample.tolist())
        pooled[seed] = predictions.score_pooled_rows(task.score_metric, task.targets_are, table)
        dtype, width = predictions.choose_precision(table.outputs.size, task.targets_are), table.outputs.shape[-1]
        if not dtype.startswith("none"):
            predictions.write(folder / f"predictions-{seed}.npz", table, dtype)
    if not dtype.startswith("none") and prepared.split is None:
        _write_controls(folder / "controls.npz", prepared, fitted, width, dtype)
    return {**record, "pooled": pooled, "predictions": dtype}


def _write_controls(
    path: Path, prepared: PreparedRun, fitted: predictions.FittedControls, width: int, dtype: str
) -> None:
    rules = predictions.of_controls(prepared, fitted, width if prepared.method.task.targets_are == "classes" else 0)
    clients = prepared.federation.sample.tolist()
    tables = [predictions.build_table({"test": answers}, clients) for answers in rules.values()]
    stacked = tables[0]._replace(outputs=np.stack([table.outputs for table in tables]))
    predictions.write(path, stacked, dtype, names=np.array([*rules]))


def _write_graphs(path: Path, history: History, prepared: PreparedRun) -> None:
    if not history.graphs:
        return
    clients = max(w.shape[-1] for _, w in history.graphs)
    graphs = [(r, w) for r, w in history.graphs if w.shape[-1] == clients]
    with atomic_path(path) as temporary:
        np.savez_compressed(
            temporary,
            rounds=np.array([r for r, _ in graphs]),
            weights=np.stack([w.numpy() for _, w in graphs]),
            layers=np.array([*prepared.method.task.layers]),
            **_ground_truth(prepared),
        )


def _write_portrait(path: Path, history: History, prepared: PreparedRun) -> None:
    if not history.portrait:
        return
    round_, vectors = history.portrait
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, round=np.array(round_), vectors=vectors.numpy(), **_groups(prepared))


def _ground_truth(prepared: PreparedRun) -> dict[str, Any]:
    """What the graph is compared with: groups of clients, and the differences between their targets."""
    divergence = prepared.federation.divergence
    divergences = {} if divergence is None else {"divergence": divergence.cpu().numpy().astype(np.float32)}
    return {**_groups(prepared), **divergences}


def _groups(prepared: PreparedRun) -> dict[str, Any]:
    group = prepared.federation.group
    return {} if group is None else {"group": group.cpu().numpy()}
