"""Flower's programs as child processes: SuperLink, SuperNodes, the fork server; a federation on one machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from fedweave.deployment.flower import keys
from fedweave.deployment.flower.fork_server import SOCKET
from fedweave.deployment.wire import roster
from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.processes.signals import die_with_parent, end_group, signal_group

CONNECTION = "federation"
CONFIG = """[superlink]
default = "{name}"

[superlink.{name}]
address = "{address}"
root-certificates = "{certificate}"
"""
START_TIMEOUT, STOP_TIMEOUT = 120.0, 10.0  # seconds for a program to answer, and to end
WIDTH = "1000"  # columns of a terminal for `flwr`, which breaks longer lines, also inside of a path
NO_TELEMETRY = {"FLWR_TELEMETRY_ENABLED": "0", "DO_NOT_TRACK": "1"}


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def require_flower() -> None:
    """Refuse to continue in an environment without Flower."""
    if not find_spec("flwr"):
        raise BadInput(
            sys.executable,
            "has no Flower, which has an environment of its own; in a checkout: make flower, and "
            "source .flower/bin/activate",
        )


def find_reason(text: str) -> str:
    """Why a program failed, from what it printed: the text in the frame that `flwr` draws, or the last line."""
    lines = text.strip().splitlines()
    framed = [line.strip("│ ") for line in lines if line.startswith("│")]
    return " ".join(framed or lines[-1:]) or "it printed nothing"


@dataclass
class Host:
    """Flower's programs on this machine.

    Attributes:
        folder: of logs, keys and Flower's own files.
        address: of the SuperLink, host:port.
        certificate: of the authority.
        fork_server: folder of a fork server; None: every message imports PyTorch anew.
        python: the interpreter that has Flower.
        database: whether the SuperLink stores registered keys in a file, so that it has them after a restart.
        processes: the running programs by name.
    """

    folder: Path
    address: str
    certificate: Path
    fork_server: Path | None = None
    python: Path = Path(sys.executable)
    database: bool = False
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the programs."""
        paths = [str(self.fork_server / "bin")] if self.fork_server else []
        paths += [str(self.python.parent), os.environ.get("PATH", "")]
        home = {"FLWR_HOME": str(self.folder / "flwr"), "PATH": os.pathsep.join(paths)}
        return (
            {"OMP_NUM_THREADS": "1"} | os.environ | NO_TELEMETRY | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"} | home
        )

    def start(self, name: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a program whose log is NAME.log; it ends with this process, however that ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return self.processes[name]

    def start_superlink(self, secrets: Path) -> None:
        """Start the SuperLink, with TLS and node authentication, and wait until it answers."""
        host, port = self.address.rsplit(":", 1)
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["flower-superlink", "--host", host, "--port", port, "--ssl-ca-certfile", str(self.certificate)]
        command += ["--ssl-certfile", str(secrets / keys.SERVER), "--ssl-keyfile", str(secrets / keys.SERVER_KEY)]
        command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        command += ["--database", str(self.folder / "superlink.db")] if self.database else []
        self.start("superlink", command)
        self.wait_until(lambda: _is_listening(host, int(port)), "superlink")
        config = CONFIG.format(name=CONNECTION, address=self.address, certificate=self.certificate)
        write_atomic(self.folder / "flwr" / "config.toml", config)

    def start_supernode(self, name: str, key: Path, config: dict[str, str]) -> None:
        """Start a SuperNode; it is started again as long as Flower refuses it."""
        command = node_command(self.address, self.certificate, key, config, free_port())
        self.start(name, [str(self.python), "-m", "fedweave.deployment.flower.supervise", *command])

    def wait_until(self, condition: Callable[[], bool], name: str) -> None:
        """Wait for a condition while the program `name` runs.

        Raises:
            BadInput: the program ended, or the time is over.
        """
        end = time.monotonic() + START_TIMEOUT
        while not condition():
            ended = self.processes[name].poll() is not None
            if ended or time.monotonic() > end:
                what = "ended" if ended else f"was not ready after {START_TIMEOUT:.0f} s"
                raise BadInput(f"{name} {what}; see {self.folder / f'{name}.log'}")
            time.sleep(0.1)

    def run_flwr(self, *arguments: str) -> str:
        """What a command of Flower prints.

        Raises:
            BadInput: it failed.
        """
        environment = {**self.environment, "COLUMNS": WIDTH}
        result = subprocess.run(["flwr", *arguments], env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BadInput(f"flwr {arguments[0]}: {find_reason(result.stderr or result.stdout)}")
        return result.stdout

    def register(self, public_keys: Mapping[int, Path], roster_file: Path) -> None:
        """Let nodes with these public keys connect, each as its client."""
        if not public_keys:
            return
        clients = [word for client in public_keys for word in ("--client", str(client))]
        command = [str(self.python), "-m", "fedweave.deployment", "register", *map(str, public_keys.values()), *clients]
        command += ["--roster", str(roster_file), "--connection", CONNECTION]
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise BadInput("register", find_reason(result.stderr))

    def stop(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        """End a program and everything that it started."""
        end_group(self.processes.pop(name), STOP_TIMEOUT, signal_number)

    def close(self) -> None:
        """End all programs, nodes first."""
        for name in sorted(self.processes, key=lambda name: (name == "fork-server", name == "superlink")):
            signal_group(self.processes[name], signal.SIGTERM)
        for name in [*self.processes]:
            self.stop(name)


def node_command(address: str, certificate: Path, key: Path, config: dict[str, str], port: int) -> list[str]:
    """The command that starts a SuperNode with TLS and its own key."""
    node_config = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    command = ["flower-supernode", "--superlink", address, "--root-certificates", str(certificate)]
    command += ["--auth-supernode-private-key", str(key), "--port", str(port), "--node-config", node_config]
    return command


def start_fork_server(host: Host, folder: Path) -> None:
    """Start a fork server for the programs of `host`; they find its commands first on their PATH."""
    host.start("fork-server", [str(host.python), "-m", "fedweave.deployment.flower.fork_server", str(folder)])
    host.wait_until((folder / SOCKET).exists, "fork-server")
    host.fork_server = folder


def _is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def local_federation(
    out: Path, data: Sequence[Path], hashes: Sequence[str], python: Path = Path(sys.executable), database: bool = False
) -> Iterator[Host]:
    """Run a SuperLink on loopback and a SuperNode for each entry of `data`, with TLS and keys of their own.

    Args:
        data: file of each client, or a folder with HASH.pt for every federation that its node agrees to.
        hashes: of the specifications that the nodes agree to, 16 digits or more.
        python, database: as in `Host`.
    """
    secrets = out / "keys"
    if not (secrets / keys.SERVER).is_file():
        keys.make_server(secrets, keys.LOOPBACK)
    address = f"127.0.0.1:{free_port()}"
    host = Host(out / "hosts", address, (secrets / keys.AUTHORITY).resolve(), python=python, database=database)
    with tempfile.TemporaryDirectory(prefix="fedweave-") as socket_folder:  # a socket's path must be short
        try:
            start_fork_server(host, Path(socket_folder))
            host.start_superlink(secrets)
            add_nodes(host, out, data, hashes)
            yield host
        finally:
            host.close()


def add_nodes(
    host: Host, out: Path, data: Sequence[Path], hashes: Sequence[str], clients: Sequence[int] | None = None
) -> None:
    """Register and start a SuperNode for each entry of `data`; missing keys are made.

    Args:
        clients: identities of the clients, one for each entry of `data`; default: the numbers at the end of its names.
    """
    secrets = out / "keys"
    key_files = [secrets / path.stem for path in data]
    for file in key_files:
        if not file.exists():
            keys.make_node(secrets, file.name)
    owners = clients or [int(path.stem.rsplit("-", 1)[1]) for path in data]
    public_keys = {client: path.with_name(f"{path.name}.pub") for client, path in zip(owners, key_files, strict=True)}
    host.register(public_keys, secrets / roster.FILE)
    for path, key in zip(data, key_files, strict=True):
        state = out / "nodes" / path.stem
        config = {"data": str(path.resolve()), "state": str(state.resolve()), "spec": ",".join(hashes)}
        host.start_supernode(path.stem, key, config)
