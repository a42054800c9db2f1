"""Stores of MLflow, copied from an empty one, and the check that a store agrees with results/."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_results
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from fedweave import results

SKILL = {"Local": -6.0, "FedAGHN": 0.0}


def fresh(template: Path, name: str) -> str:
    """The address of another empty store in the current folder, a copy of `template`.

    MLflow keeps one connection per address, so no two tests may share one.
    """
    path = shutil.copy(template, Path.cwd() / f"{name}.db")
    return f"sqlite:///{path}"


def small(folder: Path, **options: Any) -> Path:
    """Generated results of two methods, two seeds and four clients."""
    return fake_results.write_study(folder, methods=SKILL, seeds=(0, 1), clients=4, rounds=3, extras=False, **options)


def logged(uri: str, study: str) -> list[Run]:
    """Every run of a study, with its children."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(study)
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def children(runs: list[Run], parent: str) -> list[Run]:
    """Those of `runs` that belong to the run `parent`."""
    return [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]


Shown = dict[str, tuple[str, dict[str, dict[str, float]]]]


def current(uri: str, folder: Path) -> Shown:
    """Run -> the id of its one current run in MLflow, and all metrics of it (at "") and of its seeds. First they must
    agree with results/<study> at `folder` to the last bit.
    """
    study = results.load_study(folder)
    tables = results.compute_tables(study)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(study.name).experiment_id
    runs = client.search_runs([experiment], "tags.record = 'current'", max_results=5000)
    methods = {run.info.run_name: run for run in runs if run.data.tags["kind"] == "method"}
    assert sum(run.data.tags["kind"] == "method" for run in runs) == len(methods)
    assert {*methods} == {*tables.board["run"]}
    shown: Shown = {}
    for row in tables.board.to_dict("records"):
        mine = methods[row["run"]]
        numbers = {**_board(row), **_curves(row, tables.curves), "rank": _rank(row, tables.board)}
        assert {name: mine.data.metrics.get(name, np.nan) for name in numbers} == pytest.approx(
            numbers, rel=0, abs=0, nan_ok=True
        )
        assert mine.data.tags["verdict"] == row["mark"]
        seeds = {
            run.data.tags["seed"]: run.data.metrics
            for run in runs
            if run.data.tags.get("mlflow.parentRunId") == mine.info.run_id
        }
        scores = tables.clients[tables.clients["run"] == row["run"]].groupby("seed")["value"].mean()
        assert {int(seed): metrics[row["metric"]] for seed, metrics in seeds.items()} == pytest.approx(scores.to_dict())
        metrics = {"": mine.data.metrics, **seeds}
        shown[row["run"]] = (mine.info.run_id, {key: _numbers(values) for key, values in metrics.items()})
    return shown


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics with a value. MLflow cannot delete a metric, so a removed one is NaN."""
    return {name: value for name, value in metrics.items() if not np.isnan(value)}


def _board(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a row of the leaderboard by their names in MLflow."""
    same = ("std", "worst10", "client_std", "pre", "post", "bytes_up", "bytes_down", "seconds", *results.MEANING)
    return {row["metric"]: row["mean"], "bytes": row["bytes_up"] + row["bytes_down"]} | {key: row[key] for key in same}


def _rank(row: Mapping[str, Any], board: pd.DataFrame) -> int:
    return 1 + board[board["task"] == row["task"]]["run"].tolist().index(row["run"])


def _curves(row: Mapping[str, Any], curves: pd.DataFrame) -> dict[str, float]:
    """The last value of every curve of a run."""
    last = curves[curves["run"] == row["run"]].sort_values("round").groupby(["split", "point"]).last()["mean"]
    return {f"{row['metric']}/{split}_{point}": value for (split, point), value in last.items()}
