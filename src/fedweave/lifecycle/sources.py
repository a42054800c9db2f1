"""Sources that grow: files, an SQL query, or a command; what they hold is read as it was written.

A name is a text: no column of names passes a number on its way.
"""

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedweave.errors import BadInput, first_line
from fedweave.files.atomic import digest_file, write_atomic
from fedweave.own_data import user_files

if TYPE_CHECKING:
    import pandas as pd

ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+]*://")
PARQUET = b"PAR1"  # the first bytes of such a file
ERRORS_SHOWN = 300  # characters of what a command printed on its standard error


@dataclass(frozen=True)
class Reading:
    """What a source held at one moment: the bytes of a file or of a command's output, or the rows of a query.

    Attributes:
        name: of the file, or "query" or "command".
        content: a path, bytes, or a table.
        digest: of the content.
    """

    name: str
    content: "Path | bytes | pd.DataFrame"
    digest: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file, to which others may come, so that what another file held stays."""
        return isinstance(self.content, Path)

    @property
    def file_name(self) -> str:
        """A name for the content in a file, whose ending says what it is."""
        if isinstance(self.content, Path):
            return self.content.name
        if isinstance(self.content, bytes):
            return "command.parquet" if self.content.startswith(PARQUET) else "command.csv"
        return "query.csv"

    def load(
        self, names: Collection[str], labels: Collection[str] = (), encoding: str = "", has_commas: bool = False
    ) -> "pd.DataFrame":
        """The rows; texts in columns of `names` stay as they are written, see `read_table`.

        Raises:
            BadInput: they are damaged, or cut off.
        """
        if not isinstance(self.content, Path | bytes):
            return self.content
        if isinstance(self.content, Path):
            _check_end(self.content)
            return user_files.read_table(self.content, names, encoding, labels, typed=False, has_commas=has_commas)
        with TemporaryDirectory() as folder:  # readers choose by the ending
            file = Path(folder) / self.file_name
            file.write_bytes(self.content)
            return user_files.read_table(file, names, encoding, labels, typed=False, has_commas=has_commas)

    def copy_to(self, folder: Path) -> Path:
        """A copy of the content in `folder`, under its digest and its name."""
        if isinstance(self.content, Path):
            content = self.content.read_bytes()
        else:
            content = self.content if isinstance(self.content, bytes) else self.content.to_csv(index=False).encode()
        file = folder / f"{self.digest[:12]}-{self.file_name}"
        write_atomic(file, content)
        return file


def _check_end(file: Path) -> None:
    """Refuse a text whose last line does not end: it was cut off, or is being written."""
    if file.suffix.lower() in user_files.TEXTS:
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - 1))
            if content.read(1) not in (b"\n", b"\r", b""):
                raise BadInput(
                    file, "ends within a line: it was cut off, or is being written; end it with a line break"
                )


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    Attributes:
        address: a file, a pattern of files such as "flights/*.csv", or the address of a database for SQLAlchemy.
            Variables of the environment such as $FLIGHTS are filled in at every reading.
        query: SQL, for a database.
        command: prints a CSV table, or a Parquet file; it runs without a shell.
        encoding: of CSV and TSV; default: UTF-8.
    """

    address: str = ""
    query: str = ""
    command: str = ""
    encoding: str = ""

    def __post_init__(self) -> None:
        is_database = bool(ADDRESS.match(os.path.expandvars(self.address)))
        if bool(self.address) == bool(self.command):
            raise BadInput(
                "source", "give either files or a database (source), or a command that prints rows (command)"
            )
        if is_database != bool(self.query):
            way = "give query='select ...'" if is_database else "a query needs the address of a database as the source"
            raise BadInput("query", f"{self.query!r} with the source {self.address!r}; {way}")
        if re.match(r"[a-zA-Z0-9+]+://[^/@:]*:[^/@]+@", self.address) and "$" not in self.address:
            raise BadInput(
                "source",
                "has a password, which would be stored; put the address into a variable of the "
                "environment, and give source='$NAME'",
            )

    def readings(self) -> Iterator[Reading]:
        """What the source holds now: files in the order of the numbers in their names, a query, or an output.

        Raises:
            BadInput: there is no such file, the database does not answer, or the command fails.
        """
        if self.command:
            yield _run(self.command)
        elif self.query:
            yield _ask(os.path.expandvars(self.address), self.query)
        else:
            yield from _find(os.path.expandvars(self.address))


def _find(pattern: str) -> Iterator[Reading]:
    """The files of a pattern, so that part-10 comes after part-9."""
    files = [Path(pattern)] if Path(pattern).is_file() else [Path(name) for name in glob(pattern, recursive=True)]  # noqa: PTH207
    if not (files := [file for file in files if file.is_file()]):
        raise BadInput("source", f"no file is {pattern!r}, seen from {Path.cwd()}; put the pattern into quotes")
    for file in sorted(files, key=lambda file: [int(word) if word.isdigit() else word for word in _words(file)]):
        yield Reading(str(file), file, digest_file(file))


def _words(file: Path) -> list[str]:
    """The path in texts and numbers by turns, the first of which is a text."""
    return re.split(r"(\d+)", str(file))


def _ask(address: str, query: str) -> Reading:
    """The rows of a query; values stay as the database gives them, so that a missing one changes no other."""
    import pandas as pd

    try:
        import sqlalchemy
    except ImportError as error:
        raise BadInput("source", "a database needs SQLAlchemy: pip install 'fedweave[pipeline]'") from error
    try:
        engine = sqlalchemy.create_engine(address)
        with engine.connect() as connection:
            result = connection.execute(sqlalchemy.text(query))
            rows = pd.DataFrame([tuple(row) for row in result], columns=[*result.keys()], dtype=object)
        engine.dispose()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        reason = first_line(getattr(error, "orig", None) or error)
        raise BadInput("query", f"the database refuses it ({reason}); check source and query") from error
    content = repr([[*rows.columns], rows.to_numpy(dtype=object).tolist()])
    return Reading("query", rows, hashlib.sha256(content.encode()).hexdigest())


def _run(command: str) -> Reading:
    """What a command prints."""
    try:
        process = subprocess.run(shlex.split(command), capture_output=True, check=False)
    except (OSError, ValueError) as error:
        raise BadInput("command", f"{command!r} cannot be started ({error})") from error
    if process.returncode:
        said = " ".join(process.stderr.decode(errors="replace").split())[-ERRORS_SHOWN:]
        raise BadInput("command", f"{command!r} ended with {process.returncode}; it said: {said or 'nothing'}")
    return Reading("command", process.stdout, hashlib.sha256(process.stdout).hexdigest())
