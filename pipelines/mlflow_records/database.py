"""The file of MLflow's database: whole or not there, and one line where it or a server refuses."""

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
from fedweave.files.atomic import user_errors, write_new

from .. import addresses


def create(uri: str) -> None:
    """Write the empty database of MLflow at `uri` if that is a file which does not exist; it is there whole or not.

    MLflow would make its tables in the file, step by step. A process that is killed meanwhile, or a full disk, would
    leave a database that MLflow can neither use nor complete.

    Raises:
        BadInput: the disk is full, or the folder cannot be written.
    """
    file = addresses.file_of(uri)
    if uri.startswith(addresses.SQLITE) and not file.exists():
        for end in ("-wal", "-shm"):  # of a database that was deleted: SQLite would write its pages into the new one
            Path(f"{file}{end}").unlink(missing_ok=True)
        write_new(file, _empty_database())


def _empty_database() -> bytes:
    """MLflow's tables without rows."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool)  # in memory, with one connection
    mlflow.store.db.utils._initialize_tables(engine)
    with engine.connect() as connection:
        content = connection.connection.driver_connection.serialize()  # type: ignore[union-attr]
    engine.dispose()
    return bytes(content)


@contextmanager
def store_errors(uri: str, study: str) -> Iterator[None]:
    """Turn what MLflow and its database say of a failure into a one-line BadInput, and files that cannot be written.

    Args:
        uri: of the tracking store.
        study: that the message tells the user to log later.

    Raises:
        BadInput: naming the store, or the file of an artifact.
    """
    try:
        with user_errors():
            yield
    except CommandError as error:
        problem = f"of a newer MLflow; update MLflow, or move it away, then: fedweave log {study}"
        raise BadInput(addresses.file_of(uri), problem) from error
    except (MlflowException, SQLAlchemyError) as error:
        own = getattr(error, "orig", None) or getattr(error.__context__, "orig", None)  # of the database
        reason = str(own or error).partition("\n")[0]
        is_server = uri.startswith("http")
        way = "see what the server says" if is_server else "free space, or move it away"
        place = uri if is_server else addresses.file_of(uri)
        raise BadInput(place, f"not logged ({reason}); {way}, then: fedweave log {study}") from error
