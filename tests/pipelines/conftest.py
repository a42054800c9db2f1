"""Empty stores of MLflow for the tests of this folder."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tests.mlflow_store import fresh


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store with its tables. The tests copy it, because making the tables takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    with closing(sqlite3.connect(path)) as base:  # after `writer.connect`, part of the content is in another file
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty store. The current folder is a new one."""
    monkeypatch.chdir(tmp_path)
    yield fresh(template, "one")
    mlflow.set_tracking_uri(None)
