"""Empty stores of MLflow, and small results, for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from fedweave.pipelines.mlflow_records import database
from tests.mlflow_store import fresh, small


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store with its tables."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    database.create(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty store. The current folder is a new one."""
    monkeypatch.chdir(tmp_path)
    yield fresh(template, "one")
    mlflow.set_tracking_uri(None)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of generated results of the study "toy"."""
    return small(tmp_path / "results" / "toy")
