"""MLflow's record on a disk that is full: one line says what to do, and the next synchronisation repairs the rest."""

import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fedweave.errors import BadInput
from fedweave.pipelines.mlflow_records import database, tracking
from tests.mlflow_store import current

# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """The kernel refuses to write files larger than `size` bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def database_limited_to(pages: int) -> Iterator[None]:
    """SQLite refuses, as on a full disk, to make a database larger than `pages` pages."""

    def limit(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)
        for engine in SqlAlchemyStore._engine_map.values():  # whose connections would keep the limit
            engine.dispose()


def schema(file: Path) -> set[tuple[Any, ...]]:
    """The names of all tables and indices, and the columns of the tables."""
    query = (
        "SELECT m.type, m.name, c.name, c.type, c.'notnull', c.pk FROM sqlite_master m LEFT JOIN "
        "pragma_table_info(m.name) c"
    )
    with closing(sqlite3.connect(file)) as connection:
        return {*connection.execute(query)}


def test_a_new_database_is_that_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MlflowClient("sqlite:///own.db").search_experiments()
    database.create("sqlite:///new.db")
    assert len(schema(tmp_path / "new.db")) > 100
    assert schema(tmp_path / "new.db") == schema(tmp_path / "own.db")
    (tmp_path / "other.db").write_bytes(b"of somebody")
    database.create("sqlite:///other.db")
    assert (tmp_path / "other.db").read_bytes() == b"of somebody"


def test_a_new_database_has_nothing_of_a_deleted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not close its database, such as a killed one, leaves pages beside the file."""
    monkeypatch.chdir(tmp_path)
    database.create("sqlite:///old.db")
    with closing(sqlite3.connect("old.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE more AS SELECT * FROM experiments")
        connection.commit()
        for end in ("-wal", "-shm"):
            Path(f"new.db{end}").write_bytes(Path(f"old.db{end}").read_bytes())
    database.create("sqlite:///new.db")
    MlflowClient("sqlite:///new.db").create_experiment("first")
    assert "more" not in {name for _, name, *_ in schema(Path("new.db"))}


@pytest.mark.usefixtures("store")
def test_a_database_is_made_whole_or_not_at_all(toy: Path, tmp_path: Path) -> None:
    """Half a database would be refused later as one of another version of MLflow."""
    with files_limited_to(300_000), pytest.raises(BadInput, match=r"^mlflow.db: cannot be written .*; free space"):
        tracking.log_study(toy, "sqlite:///mlflow.db")
    assert not [*tmp_path.glob("*mlflow.db*"), *tmp_path.glob(".mlflow.db*")]
    tracking.log_study(toy, "sqlite:///mlflow.db")
    assert current("sqlite:///mlflow.db", toy)


def test_a_full_disk_is_one_line(
    store: str, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """MLflow itself prints a traceback. What it had written until then does not count as complete."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    pages = (tmp_path / "one.db").stat().st_size // 4096 + 5
    with database_limited_to(pages):
        tracking.try_log_study(Path("results", "toy"))
    assert capfd.readouterr().err == (
        f"not logged to MLflow: {tmp_path / 'one.db'}: not logged (database or disk is full); free space, or move "
        "it away, then: fedweave log toy\n"
    )
    tracking.log_study(toy, store)
    assert current(store, toy)


def test_the_artifact_that_cannot_be_written_is_named(store: str, toy: Path, tmp_path: Path) -> None:
    (tmp_path / "mlruns").write_text("")
    with pytest.raises(BadInput, match=r"^/.*/mlruns.*: cannot be used .*; make sure that it and those above it are "):
        tracking.log_study(toy, store)
    (tmp_path / "mlruns").unlink()
    tracking.log_study(toy, store)
    assert current(store, toy)
