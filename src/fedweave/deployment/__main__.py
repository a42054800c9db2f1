"""Commands for the hosts of a federation, which need `fedweave[flower]` only: `python -m fedweave.deployment`."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedweave.data.partitions.splits import parse_shares
from fedweave.deployment.export import PACKAGE
from fedweave.deployment.node import client_data, own_rows
from fedweave.deployment.server.checkpoint import lock_folder
from fedweave.deployment.wire import roster
from fedweave.deployment.wire import spec as specification
from fedweave.errors import BadInput, format_count, relocate
from fedweave.files.atomic import check_writable, user_errors, write_atomic


def main(arguments: list[str] | None = None) -> int:
    """Run one command; bad input is one line on stderr and exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        with user_errors():
            options.command(options)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedweave.deployment", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add(name: str, command: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=(command.__doc__ or "").strip())
        sub.set_defaults(command=command)
        return sub

    _add_keys(add("keys", make_keys))
    for name, command in (("register", register), ("unregister", unregister)):
        _add_roster(add(name, command), name)
    add("roster", show_roster).add_argument("--roster", type=Path, default=roster.DEFAULT_PATH, help="its file")
    _add_rows(add("rows", write_rows))
    _add_prediction(add("predict", predict))
    _add_node(add("node", run_node))
    simulation = add("simulate", simulate)
    simulation.add_argument("app", type=Path, help="folder of `fedweave federate export`")
    _add_paths(simulation, data="folder of the clients' files", out="folder of keys, logs, states and results")
    add("show", describe).add_argument("app", type=Path)
    return parser


def _add_paths(parser: argparse.ArgumentParser, **meanings: str) -> None:
    for name, meaning in meanings.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=meaning)


def _add_keys(keys: argparse.ArgumentParser) -> None:
    keys.add_argument("folder", type=Path)
    keys.add_argument("--host", action="append", default=[], help="name or address of the server; again for others")
    keys.add_argument("--node", action="append", default=[], help="name of a node; again for others")


def _add_roster(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "register":
        parser.add_argument("key", type=Path, nargs="+", help="public key of a node, NAME.pub; several are possible")
    parser.add_argument("--client", type=int, action="append", required=True, help="identity of its client; one a key")
    parser.add_argument("--connection", default="federation", help="name of the SuperLink in flwr's config.toml")
    parser.add_argument("--roster", type=Path, default=roster.DEFAULT_PATH, help="its file")


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="CSV, TSV or Parquet with the columns of the run's table")
    parser.add_argument(
        "--encoding", default="", help="of a CSV or TSV file, such as cp1252 or latin1, as Excel writes; default: UTF-8"
    )
    _add_paths(parser, app="folder of the exported app")


def _add_rows(rows: argparse.ArgumentParser) -> None:
    _add_table(rows)
    rows.add_argument("--label", required=True, help="column to predict")
    rows.add_argument("--client", type=int, required=True, help="identity of the client, as `show` lists them")
    rows.add_argument("--time", default="", help="column of times: the first rows train, the last ones test")
    rows.add_argument("--shares", default="0.6,0.2,0.2", help="of train, val and test")
    _add_paths(rows, out="file of the client's data")


def _add_prediction(prediction: argparse.ArgumentParser) -> None:
    _add_table(prediction)
    _add_paths(prediction, data="file of the client's data", state="folder of the client's state")
    prediction.add_argument("--out", type=Path, help="CSV to write; default: the terminal")


def _add_node(node: argparse.ArgumentParser) -> None:
    node.add_argument("--superlink", required=True, help="host:port of the server")
    _add_paths(node, certificate="ca.crt of the server", key="secret key of this node")
    _add_paths(node, data="file of the client's data", state="folder of the client's state")
    node.add_argument("--spec", required=True, help="hash of the specification that this node agrees to")
    node.add_argument("--device", default="cpu", help="of the training: cpu, cuda, or auto, a GPU where there is one")
    node.add_argument("--port", type=int, default=9094, help="of loopback, for Flower's own programs")


def make_keys(options: argparse.Namespace) -> None:
    """Make the server's certificate (--host) or the key pairs of nodes (--node)."""
    from fedweave.deployment.flower import keys

    if not options.host and not options.node:
        raise BadInput("keys", "name a --host of the server, or a --node")
    keys.check_hosts(options.host)
    keys.check_names(options.folder, options.node)
    if options.host:
        keys.make_server(options.folder, options.host)
        print(f"{options.folder / keys.AUTHORITY} goes to every node; the other files stay on the server")
    for name in options.node:
        path = keys.make_node(options.folder, name)
        public = path.with_name(f"{name}.pub")
        print(f"{path} stays on its node; {public.name} goes to the server: {roster.fingerprint(public)}")


def register(options: argparse.Namespace) -> None:
    """Let nodes connect, each as one client: note their public keys in the roster and in the SuperLink."""
    from fedweave.deployment.flower import node_keys

    if len(options.key) != len(options.client) or len({*options.client}) < len(options.client):
        raise BadInput(
            "register",
            f"{format_count(len(options.key), 'key')} for --client {options.client}; name one client for each key",
        )
    own_rows.check_client(min(options.client))
    node_keys.check_connection(options.connection)
    node_roster = roster.Roster(options.roster.expanduser())
    keys = dict(zip(options.client, options.key, strict=True))
    print("\n".join(node_keys.register(keys, node_roster, options.connection)))


def unregister(options: argparse.Namespace) -> None:
    """Refuse the keys of clients from now on."""
    from fedweave.deployment.flower import node_keys

    node_keys.check_connection(options.connection)
    node_roster = roster.Roster(options.roster.expanduser())
    for client in options.client:
        print("\n".join(node_keys.unregister(client, node_roster, options.connection)))


def show_roster(options: argparse.Namespace) -> None:
    """Show the roster: which key is which client's."""
    node_roster = roster.Roster(options.roster.expanduser())
    node_roster.clients()  # refuses a roster that is not there
    for entry in node_roster.entries():
        print(f"client {entry.client}: {entry.key}, node {entry.node}")


def write_rows(options: argparse.Namespace) -> None:
    """Write the file of a client from a table of its own."""
    from fedweave.own_data import user_files
    from fedweave.prediction import input_description

    encoding = user_files.check_encoding(options.file, options.encoding)
    shares, spec = parse_shares(options.shares), app_spec(options.app)
    own_rows.check_client(options.client)
    names = [options.label] if spec.data["targets"] is None else []
    table = input_description.read_file(spec.scaling, options.file, encoding, names, [options.label])
    with relocate({"time": f"{options.file}: time"}):
        file = own_rows.of_table(spec, table, options.label, options.client, options.time, shares)
    file.save(options.out)
    counts = ", ".join(f"{len(rows)} {part}" for part, rows in file.parts.items())
    print(f"{options.out}: client {options.client}, rows: {counts}; it stays on this host")


def predict(options: argparse.Namespace) -> None:
    """Predict new rows with the model that a node keeps of an ended federation."""
    from fedweave.deployment.node import predictions
    from fedweave.own_data import user_files
    from fedweave.prediction import input_description

    encoding, spec = user_files.check_encoding(options.file, options.encoding), app_spec(options.app)
    table = input_description.read_file(spec.scaling, options.file, encoding)
    answer = predictions.of_table(spec, table, options.data, options.state)
    text = answer.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    if options.out:
        write_atomic(options.out, text)
    else:
        print(text, end="")


def run_node(options: argparse.Namespace) -> None:
    """Run a node until it is stopped."""
    from fedweave.deployment.flower.keys import check_files_of_node
    from fedweave.deployment.flower.processes import Host, node_command, require_flower, start_fork_server
    from fedweave.deployment.flower.supervise import exit_on_signals, supervise
    from fedweave.deployment.node import node_options
    from fedweave.deployment.node.node import device_of

    node_options.check_address(options.superlink, options.port)
    hashes = node_options.parse_hashes(options.spec)
    for path in (options.certificate, options.key):
        if not path.is_file():
            raise BadInput(path, "not found; the keys are made by: python -m fedweave.deployment keys")
    node_options.check_data(options.data, hashes)
    check_files_of_node(options.key, options.certificate)
    require_flower()
    config = {
        "data": str(options.data.resolve()),
        "state": str(options.state.resolve()),
        "spec": ",".join(hashes),
        "device": device_of(options.device),
    }
    check_writable(options.state)
    command = node_command(options.superlink, options.certificate, options.key, config, options.port)
    host = Host(options.state / "host", options.superlink, options.certificate)
    with exit_on_signals(), tempfile.TemporaryDirectory(prefix="fedweave-") as socket_folder:
        try:
            start_fork_server(host, Path(socket_folder))
            supervise(command, host.environment)
        finally:
            host.close()


def simulate(options: argparse.Namespace) -> None:
    """Run an exported app on this machine: a SuperLink, and a SuperNode for each file of data."""
    from fedweave.deployment.flower import processes, run_monitor
    from fedweave.deployment.flower.supervise import exit_on_signals

    spec = app_spec(options.app)
    rounds = spec.timeline.rounds  # this refuses what cannot run, before anything starts
    files = client_data.find_files(options.data, len(spec.clients))
    processes.require_flower()
    print(
        f"a SuperLink and {len(files)} SuperNodes are starting, each in processes of its own; this may take minutes; "
        f"logs: {options.out / 'hosts'}",
        flush=True,
    )
    server = options.out / "server"
    federation = partial(processes.local_federation, options.out, files, [spec.hash])
    with exit_on_signals(), lock_folder(options.out, "wait for its end, or give another --out"), federation() as host:
        run_id = run_monitor.launch(host, options.app, server)
        run_monitor.follow(server, host, run_id, rounds=rounds)
    study = server / "results" / spec.run.study
    print(f"results in {study}; bytes on the connection in {server / 'connection.csv'}")


def describe(options: argparse.Namespace) -> None:
    """Show the hash of an exported app, and what leaves a node."""
    spec = app_spec(options.app)
    print(
        f"{spec.hash}\n{spec.run.method} on {spec.run.name}, "
        f"{format_count(len(spec.clients), 'client')}, seed {spec.seed}"
    )
    for identity, name in enumerate(spec.clients):
        print(f"client {identity}: {name}")
    for stage, form in spec.forms["enrol"].items():
        for name, (shape, dtype) in form.items():
            print(f"on joining (stage {stage}): {name} {shape} {dtype}")
    for part in spec.forms["train"]:
        for name, (shape, dtype) in part["tensors"].items():
            print(f"from round {part['from'] + 1}: {name} {shape} {dtype}")


def app_spec(app: Path) -> specification.AppSpec:
    """The specification of an exported app."""
    return specification.read(app / PACKAGE / specification.FILE)


if __name__ == "__main__":
    sys.exit(main())
