"""Where MLflow is: its store, its UI, and the pages in it."""

import ipaddress
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from fedweave.errors import BadInput, format_value

LOOPBACK = "127.0.0.1"
SQLITE = "sqlite:///"
ANSWER_TIMEOUT = 5.0  # seconds for a server of MLflow to answer
PASSWORD_ERRORS = (401, 403)  # HTTP codes of a server that asks for a password
GATEWAY_ERRORS = (502, 503, 504)  # HTTP codes by which a gateway reports that its server is absent


def start_command(name: str, **variables: object) -> str:
    """The command line for `make NAME` with variables; outside of a checkout, without its Makefile, `fedweave NAME`."""
    assignments = [f"{variable}={value}" for variable, value in variables.items()]
    in_checkout = Path("Makefile").is_file() and Path("src", "fedweave").is_dir()
    return " ".join(["make", name, *assignments] if in_checkout else [*assignments, "fedweave", name])


def bound_host() -> str:
    """The address that the servers of `make ui` bind to: UI_HOST, or loopback."""
    return os.environ.get("UI_HOST") or LOOPBACK


def reachable_host() -> str:
    """The address at which this machine reaches the servers of `make ui`; loopback if they listen on all addresses."""
    host = bound_host()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a host's name
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
    """The port that an environment variable names. Another value than a port is refused."""
    text = os.environ.get(variable) or str(default)
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise BadInput(f"{variable}: {format_value(text)} is not a port; give 1 to 65535")
    return int(text)


def prefect_api() -> str:
    """The API of the Prefect server of `make ui`."""
    return f"http://{LOOPBACK}:{prefect_port()}/api"


def connection_error(api: str, timeout: float = 5.0) -> str:
    """Why the Prefect server at `api` does not answer within `timeout` seconds; empty where it does."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(f"{api}/health", timeout=timeout):
            return ""
    except (OSError, ValueError) as error:
        if isinstance(error, HTTPError) and error.code in PASSWORD_ERRORS:
            return ""
        cause = getattr(error, "reason", None)  # urllib puts the system's error into one of its own
        return getattr(cause, "strerror", None) or str(error) or type(error).__name__


def check_prefect(api: str, alternative: str = "") -> str:
    """The address `api` without a slash at its end, after a Prefect server has answered there.

    Args:
        api: address of the server's API.
        alternative: end of the error message, with what the user can do instead of starting a server.

    Raises:
        BadInput: it is not an address of the web, or nobody answers there.
    """
    address = api.rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise BadInput(f"PREFECT_API_URL: {format_value(api)} must begin with http:// or https://, as {prefect_api()}")
    if reason := connection_error(address):
        hint = "" if address.endswith("/api") else "the address of a server ends in /api; "
        raise BadInput(
            f"PREFECT_API_URL: no Prefect server answers at {address} ({reason}); "
            f"{hint}start one: {start_command('ui')}{alternative}"
        )
    return address


def mlflow_address() -> str:
    """Where a browser finds MLflow: MLFLOW_UI_URL, else the tracking server, else the one of `make ui`."""
    return (os.environ.get("MLFLOW_UI_URL") or external_store() or url(mlflow_port())).rstrip("/")


def external_store() -> str:
    """The address of MLflow's tracking server; empty where the store is a file or database of this machine."""
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    return store.rstrip("/") if store.startswith(("http://", "https://")) else ""


def page(experiment: str, run: str = "") -> str:
    """The page of an experiment or of one of its runs, relative to MLflow's address.

    The query selects MLflow's page for machine learning: its default page is about language models.
    """
    return f"#/experiments/{experiment}/runs{run and '/' + run}?workflowType=machine_learning"


def is_own(store: str) -> bool:
    """Whether the tracking store is a file in this folder; any other may hold runs of other projects too."""
    is_file = store.startswith((SQLITE, "file://", "/", "."))
    return is_file and file_of(store).resolve().is_relative_to(Path.cwd().resolve())


def check_store(uri: str, study: str = "") -> None:
    """Refuse a server that does not answer, and a database that is damaged.

    MLflow itself would try for minutes, and then print a traceback.

    Args:
        uri: of the tracking store.
        study: the study that the error message tells the user to log later; default: all.
    """
    log_command = f"fedweave log {study}".strip()
    if ":" not in uri and not uri.startswith("databricks"):
        raise BadInput(
            f"MLFLOW_TRACKING_URI: {format_value(uri)} is a folder, where MLflow stores no records any more; name a "
            "database (sqlite:///mlflow.db) or the address of a server"
        )
    if not is_reachable(uri):
        raise BadInput(f"MLFLOW_TRACKING_URI: no server answers at {uri}; start it, or log later: {log_command}")
    if uri.startswith(SQLITE) and file_of(uri).exists():
        _check_file(file_of(uri), log_command)


def file_of(uri: str) -> Path:
    """The file or folder of a tracking store that is not a server."""
    return Path(uri.removeprefix(SQLITE).removeprefix("file://").partition("?")[0])


def is_reachable(uri: str) -> bool:
    """Whether the server at `uri` answers within `ANSWER_TIMEOUT` seconds; true for a store that is not a server."""
    if not uri.startswith("http"):
        return True
    from http.client import HTTPException
    from ssl import SSLError
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_TIMEOUT).close()
    except HTTPError as error:
        return error.code not in GATEWAY_ERRORS
    except URLError as error:
        return isinstance(error.reason, SSLError)  # MLflow may have a setting to trust its certificate
    except (OSError, ValueError, HTTPException):
        return False
    return True


def _check_file(file: Path, log_command: str) -> None:
    try:
        with closing(sqlite3.connect(file)) as database:
            database.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):  # MLflow waits for a writer that has locked the database
            raise BadInput(file, f"{error}; make it and its folder writable for you, then: {log_command}") from error
    except sqlite3.DatabaseError as error:
        raise BadInput(
            file, f"no database for MLflow ({error}); move it away, then make a new one: {log_command}"
        ) from error
