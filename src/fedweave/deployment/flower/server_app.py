"""The ServerApp of an exported federation: the rounds of `Coordinator` over Flower's messages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedweave.deployment import roster as rosters
from fedweave.deployment import spec as specification
from fedweave.deployment.checkpoint import Session
from fedweave.deployment.flower.channel import FlowerChannel
from fedweave.deployment.folders import lock_folder
from fedweave.deployment.node_registry import NodeRegistry
from fedweave.deployment.server import Coordinator
from fedweave.deployment.status import Status
from fedweave.errors import BadInput, format_value

LOCK_WAIT = 60.0  # seconds for the end of the server before; one whose SuperLink was killed needs some of them
HOME = Path("~/.fedweave/federations")


def server_app(path: Path) -> ServerApp:
    """The app whose specification is the file `path`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        spec, config = specification.read(path), context.run_config
        folder = Path(str(config["folder"])) if config["folder"] else HOME.expanduser() / spec.hash[:16]
        remedy = "wait for its end, or name another one with --run-config 'folder=\"PATH\"'"
        with lock_folder(folder, remedy, LOCK_WAIT):
            status = Status(folder, str(context.run_id))
            status.write("starting", "waiting for clients")
            try:
                session = _run_rounds(spec, grid, context, status)
            except BaseException as error:
                status.write("failed", f"{type(error).__name__}: {error}")
                raise
            status.write("finished", f"{session.round} rounds")

    return app


def _run_rounds(spec: specification.AppSpec, grid: Grid, context: Context, status: Status) -> Session:
    """All rounds, as the configuration of the app says."""
    config = context.run_config
    status.rounds = spec.timeline.rounds
    roster = rosters.Roster((Path(str(config["roster"])) if config["roster"] else rosters.DEFAULT_PATH).expanduser())
    channel = FlowerChannel(grid, context, _read_number(config, "timeout"))
    wait, least = _read_number(config, "wait"), int(_read_number(config, "least"))
    registry = NodeRegistry(spec, channel, roster.clients, wait, least, say=status.say)
    return Coordinator(spec, registry, status.folder, status.report_round).run()


def _read_number(config: Mapping[str, Any], key: str) -> float:
    try:
        return float(config[key])
    except ValueError as error:
        raise BadInput(
            f"run-config: {key}: {format_value(config[key])} is no number; give such as {key}=600.0"
        ) from error
