"""Where MLflow is: its store, its UI, and the pages in it."""

import ipaddress
import os
import re
import sqlite3
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fedweave.errors import BadInput, format_value

LOOPBACK = "127.0.0.1"
SQLITE = "sqlite:///"
VERSION = "alembic_version"  # the table that names the version of all others
HEALTH = 5.0  # seconds for a server of MLflow to answer
ABSENT = (502, 503, 504)  # what a gateway says in place of a server


def start_command(name: str, **variables: object) -> str:
    """What a user types for `make NAME`, with variables; a project outside of a checkout has no Makefile."""
    words = [f"{variable}={value}" for variable, value in variables.items()]
    in_checkout = Path("Makefile").is_file() and Path("src", "fedweave").is_dir()
    return " ".join(["make", name, *words] if in_checkout else [*words, "fedweave", name])


def bound_host() -> str:
    """The address that the servers of `make ui` bind to: UI_HOST, or loopback."""
    return os.environ.get("UI_HOST") or LOOPBACK


def reachable_host() -> str:
    """The address at which this machine reaches them: of a server on all addresses, loopback."""
    host = bound_host()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return host
    if not address.is_unspecified:
        return host
    return LOOPBACK if address.version == 4 else "::1"


def url(port: int) -> str:
    """Where a browser finds a server of `make ui`."""
    host = reachable_host()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def mlflow_port() -> int:
    """The port of MLflow's UI."""
    return _port("MLFLOW_PORT", 5000)


def prefect_port() -> int:
    """The port of Prefect's server."""
    return _port("PREFECT_PORT", 4200)


def _port(variable: str, default: int) -> int:
    """The port that an environment variable names.

    Raises:
        BadInput: it names none.
    """
    text = os.environ.get(variable) or str(default)
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise BadInput(f"{variable}: {format_value(text)} is no port; give 1 to 65535")
    return int(text)


def prefect_api() -> str:
    """The API of the Prefect server of `make ui`."""
    return f"http://{LOOPBACK}:{prefect_port()}/api"


def connection_error(api: str) -> str:
    """Why the Prefect server at `api` does not answer; empty where it does."""
    from urllib.request import urlopen

    try:
        with urlopen(f"{api}/health", timeout=5):
            return ""
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__


def check_prefect(api: str, way: str = "") -> str:
    """`api` without a slash at its end, where a Prefect server answers.

    Args:
        way: another way out than to start one.

    Raises:
        BadInput: nobody answers there.
    """
    address = api.rstrip("/")
    if reason := connection_error(address):
        raise BadInput(
            f"PREFECT_API_URL: no Prefect server answers at {address} ({reason}); start one: {start_command('ui')}{way}"
        )
    return address


def mlflow_address() -> str:
    """Where a browser finds MLflow: MLFLOW_UI_URL, else the tracking server, else the one of `make ui`."""
    return (os.environ.get("MLFLOW_UI_URL") or external_store() or url(mlflow_port())).rstrip("/")


def external_store() -> str:
    """The address of the tracking server that has the records; empty where they are in a store of this machine."""
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    return store.rstrip("/") if store.startswith(("http://", "https://")) else ""


def page(experiment: str, run: str = "") -> str:
    """The runs of an experiment, or one of them, below MLflow's address; its default page is about language models."""
    return f"#/experiments/{experiment}/runs{run and '/' + run}?workflowType=machine_learning"


def is_own(store: str) -> bool:
    """Whether the tracking store is a file in this folder; any other may hold runs of other projects too."""
    is_file = store.startswith((SQLITE, "file://", "/", "."))
    return is_file and file_of(store).resolve().is_relative_to(Path.cwd().resolve())


def check_store(uri: str, study: str = "") -> None:
    """Refuse a server that does not answer, and a database that SQLite cannot read or that another version of MLflow
    wrote: MLflow would try for minutes, and then print a traceback.

    Args:
        study: for the way out; default: all of them.

    Raises:
        BadInput: naming the server or the file, the reason and the way out.
    """
    again = f"fedweave log {study}".strip()
    if not is_reachable(uri):
        raise BadInput(f"MLFLOW_TRACKING_URI: no server answers at {uri}; start it, or log later: {again}")
    if uri.startswith(SQLITE) and file_of(uri).exists():
        _check_file(file_of(uri), again)


def file_of(uri: str) -> Path:
    """The file or folder that a tracking store is."""
    return Path(uri.removeprefix(SQLITE).removeprefix("file://").partition("?")[0])


def is_reachable(uri: str) -> bool:
    """Whether the server at `uri` says anything within `HEALTH` seconds; true for a store that is no server."""
    if not uri.startswith("http"):
        return True
    from http.client import HTTPException
    from ssl import SSLError
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        urlopen(f"{uri.rstrip('/')}/health", timeout=HEALTH).close()
    except HTTPError as error:
        return error.code not in ABSENT
    except URLError as error:
        return isinstance(error.reason, SSLError)  # MLflow may be told to trust it
    except (OSError, ValueError, HTTPException):
        return False
    return True


def _check_file(file: Path, again: str) -> None:
    try:
        with closing(sqlite3.connect(file)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()}
            versions = database.execute(f"SELECT version_num FROM {VERSION}") if VERSION in tables else ()
            written = {version for (version,) in versions}
    except sqlite3.DatabaseError as error:
        if "locked" not in str(error):  # by another writer, for whom MLflow waits
            raise BadInput(
                f"{file}: no database for MLflow ({error}); move it away, then make a new one: {again}"
            ) from error
        return
    if written and written != (_expected_versions() or written):
        raise BadInput(f"{file}: written by another version of MLflow; move it away, then: {again}")


@cache
def _expected_versions() -> set[str]:
    """The version of the tables that the MLflow of this environment writes, from the files of its migrations; MLflow
    would take two seconds to tell. Empty where they do not say it.
    """
    mlflow = find_spec("mlflow")
    places = mlflow.submodule_search_locations or () if mlflow else ()
    files = [file for place in places for file in Path(place, "store/db_migrations/versions").glob("*.py")]
    steps = "\n".join(file.read_text(encoding="utf-8") for file in files)
    last = {*re.findall(r'^revision = "(\w+)"', steps, re.M)} - {*re.findall(r'^down_revision = "(\w+)"', steps, re.M)}
    return last if len(last) == 1 else set()
