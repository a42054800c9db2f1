"""MLflow's UI and Prefect's server on loopback, until Ctrl-C or SIGTERM."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable

from . import paths
from .addresses import (
    LOOPBACK,
    bound_host,
    check_store,
    external_store,
    mlflow_address,
    mlflow_port,
    page,
    prefect_port,
    reachable_host,
    start_command,
    url,
)
from .mlflow_records import stamp
from .mlflow_records.synchronise import watch_results
from .processes import ChildProcesses, run_main

START_TIMEOUT = 600.0  # seconds for a server to answer: on a busy machine its imports alone take minutes
READ_TIMEOUT = 2.0  # seconds to read the last lines of a server that has ended; what it started may hold the pipe open
MESSAGE_INTERVAL = 20.0  # seconds between two lines about a server that does not answer yet


class UIServer(NamedTuple):
    """A server: its name, its port, and the command and environment that start it."""

    name: str
    port: int
    command: tuple[str, ...]
    env: Mapping[str, str] = {}


def _prefect(host: str, port: int, *options: str) -> UIServer:
    # By a relative address the page calls the server that it came from, at any port. The timeout is for a busy disk.
    environment = {"PREFECT_UI_API_URL": "/api", "PREFECT_API_DATABASE_TIMEOUT": "60"}
    command = f"-m prefect server start --host {host} --port {port}".split()
    return UIServer("Prefect", port, (sys.executable, *command, *options), environment)


@contextmanager
def temporary_prefect() -> Iterator[str]:
    """A Prefect server for the block, on a free port of loopback, with the records of this folder; yields its API."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    server = _prefect(LOOPBACK, port, "--no-scheduler", "--no-late-runs")
    with ChildProcesses().start(server.command, server.env) as process:
        _wait_for(server, process, _Output(process), LOOPBACK)
        yield f"http://{LOOPBACK}:{port}/api"


def servers() -> tuple[UIServer, ...]:
    """MLflow's server, unless the store is another server, and Prefect's server.

    MLFLOW_PORT and PREFECT_PORT set their ports. They listen on loopback, or on the address UI_HOST.

    Raises:
        BadInput: a port is not valid, or both ports are the same.
    """
    host = bound_host()
    mlflow, prefect = mlflow_port(), prefect_port()
    flows = _prefect(host, prefect)
    if external_store():
        return (flows,)
    if mlflow == prefect:
        raise BadInput(f"PREFECT_PORT: {prefect} is the port of MLflow too (MLFLOW_PORT); choose another")
    store = ("--backend-store-uri", os.environ["MLFLOW_TRACKING_URI"])
    command = (sys.executable, *f"-m mlflow server --host {host} --port {mlflow} --workers 1".split(), *store)
    return UIServer("MLflow", mlflow, command), flows


def main() -> None:
    """Start the servers, print their addresses when they answer, and end them on a signal.

    SIGTERM, which `run_main` turns into an exit, ends them in every case; a shell that starts this in the background
    lets SIGINT be ignored.

    Raises:
        BadInput: a port is in use, MLflow's store is damaged or does not answer, Prefect's folder cannot be written, or
            a server does not start or ends by itself; the line has its last output.
    """
    own_servers = servers()
    check_store(os.environ["MLFLOW_TRACKING_URI"])
    check_writable(os.environ["PREFECT_HOME"])
    for server in own_servers:
        if _is_reachable(server.port):
            other = start_command("ui", **{f"{server.name.upper()}_PORT": server.port + 1})
            raise BadInput(f"port {server.port} is taken; choose another: {other}")
    with ExitStack() as stack:
        running = [stack.enter_context(ChildProcesses().start(server.command, server.env)) for server in own_servers]
        outputs = [_Output(process) for process in running]
        if store := external_store():
            print(f"{'MLflow':8} {store}", flush=True)
        for server, process, output in zip(own_servers, running, outputs, strict=True):
            _wait_for(server, process, output)
            print(f"{server.name:8} {url(server.port)}", flush=True)
        _print_summary("both" if len(own_servers) > 1 else "it")
        watch_results(Path("results"), threading.Event())
        while not (ended := [number for number, process in enumerate(running) if process.poll() is not None]):
            time.sleep(0.5)
    reasons = (f"{own_servers[number].name} ended by itself: {outputs[number].reason()}" for number in ended)
    raise BadInput(f"{'; '.join(reasons)}; start it again: {start_command('ui')}")


def _print_summary(servers: str) -> None:
    """Print where the runs are, who can reach the `servers`, and how to end them."""
    for what, runs in _run_links():
        print(f"{what}: {runs}", flush=True)
    if bound_host() != LOOPBACK:
        print(
            f"UI_HOST={bound_host()}: everyone who reaches this machine reaches {servers}, without a password",
            flush=True,
        )
    print(f"Ctrl-C ends {servers}", flush=True)


def _run_links() -> Iterator[tuple[str, str]]:
    """(title, link) for each task of the current study and each other study in MLflow.

    The links lead to MLflow's pages for machine learning: its first page is about language models.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    current = ""
    with suppress(BadInput):  # of params.yaml, which these servers do not need
        current = paths.current_study()
    try:
        experiments = MlflowClient().search_experiments(order_by=["name"])
    except MlflowException as error:
        store = os.environ["MLFLOW_TRACKING_URI"]
        raise BadInput(f"MLFLOW_TRACKING_URI: {store} does not show its records ({error}); correct it") from error
    for experiment in experiments:
        name, links = experiment.name, stamp.links(experiment.name) if experiment.name == current else {}
        yield from ((f"{task}, {name}, in MLflow", f"{mlflow_address()}/{link}") for task, link in links.items())
        if name != "Default" and not links:
            yield f"{name} in MLflow", f"{mlflow_address()}/{page(experiment.experiment_id)}"


def _is_reachable(port: int, host: str = "") -> bool:
    try:
        with socket.create_connection((host or reachable_host(), port), timeout=1):
            return True
    except OSError:
        return False


class _Output:
    """The last lines of a process with text, which a thread reads on: a full pipe would block the process."""

    def __init__(self, process: Popen[str]) -> None:
        self._process, self._lines = process, list[str]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in filter(None, map(str.strip, self._process.stdout)):
            self._lines[:-20] = []
            self._lines.append(line)

    def reason(self) -> str:
        """The last line with an error, else the last one; a server may say goodbye after its error."""
        if self._process.poll() is not None:  # its last lines may still be in the pipe
            self._reader.join(READ_TIMEOUT)
        errors = [line for line in self._lines if "error" in line.lower()]
        return (errors or self._lines or ["no word"])[-1]


def _wait_for(server: UIServer, process: Popen[str], output: _Output, host: str = "") -> None:
    """Wait until `server` answers on its port; every `MESSAGE_INTERVAL` seconds a line says that it is starting.

    Args:
        output: its output, for error messages.
        host: where it listens; empty: where browsers find the servers of `make ui`.

    Raises:
        BadInput: it ended, or did not answer within `START_TIMEOUT` seconds.
    """
    start, next_message = time.monotonic(), MESSAGE_INTERVAL
    while not _is_reachable(server.port, host):
        waited = time.monotonic() - start
        if process.poll() is not None:
            raise BadInput(f"{server.name} did not start: {output.reason()}")
        if waited > START_TIMEOUT:
            raise BadInput(
                f"{server.name} does not answer on port {server.port} after {waited:.0f} s: {output.reason()}"
            )
        if waited > next_message:
            print(f"{server.name:8} is starting ({waited:.0f} s)", flush=True)
            next_message += MESSAGE_INTERVAL
        time.sleep(0.2)


if __name__ == "__main__":
    run_main(main, is_service=True)
