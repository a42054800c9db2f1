"""The file of MLflow's database: whole or not there, and one line where its disk is full or cannot be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow.store.db.utils
import sqlalchemy
from alembic.util import CommandError
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from fedweave.errors import BadInput
from fedweave.files.atomic import USER_ERRORS, write_new

from .. import addresses

# What SQLite says where the disk is full, or the file or its folder cannot be written.
DISK_ERRORS = ("database or disk is full", "disk I/O error", "readonly database", "unable to open database file")


def create(uri: str) -> None:
    """Write the empty database of MLflow at `uri` if that is a file which does not exist; it is there whole or not.

    MLflow would make its tables in the file, step by step. A process that is killed meanwhile, or a full disk, would
    leave a database that MLflow can neither use nor complete.

    Raises:
        BadInput: the disk is full, or the folder cannot be written.
    """
    file = addresses.file_of(uri)
    if not uri.startswith(addresses.SQLITE) or file.exists():
        return
    engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)  # in memory, with one connection
    mlflow.store.db.utils._initialize_tables(engine)
    with engine.connect() as connection:
        content = connection.connection.driver_connection.serialize()  # type: ignore[union-attr]
    engine.dispose()
    write_new(file, content)


@contextmanager
def disk_errors(uri: str, study: str) -> Iterator[None]:
    """Turn errors of a disk that is full or cannot be written, and of a newer database, into a one-line BadInput.

    MLflow brings an older database to its own version.

    Args:
        uri: of the tracking store.
        study: the study that the message tells the user to log later.

    Raises:
        BadInput: naming the database or the file of an artifact.
    """
    try:
        yield
    except CommandError as error:
        line = f"{addresses.file_of(uri)}: of a newer MLflow ({error}); update MLflow, or move the file away"
        raise BadInput(f"{line}, then: fedweave log {study}") from error
    except (MlflowException, SQLAlchemyError) as error:
        reason = next((words for words in DISK_ERRORS if words in str(error)), "")
        if not reason or not uri.startswith(addresses.SQLITE):
            raise
        raise BadInput(_line(addresses.file_of(uri), reason, study)) from error
    except OSError as error:
        if error.errno not in USER_ERRORS:
            raise
        name = error.filename2 or error.filename or "a file of mlruns"  # of two, the second one is the copy
        raise BadInput(_line(Path(os.fsdecode(name)), str(error.strerror), study)) from error


def _line(file: Path, reason: str, study: str) -> str:
    advice = f"free space, or make it and its folder ones that can be written, then: fedweave log {study}"
    return f"{file}: cannot be written ({reason}); {advice}"
