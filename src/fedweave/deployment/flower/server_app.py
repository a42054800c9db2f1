"""The ServerApp of an exported federation: the rounds of `Coordinator` over Flower's messages."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedweave.deployment.flower.channel import FlowerChannel
from fedweave.deployment.server.checkpoint import Session, lock_folder
from fedweave.deployment.server.node_registry import NodeRegistry
from fedweave.deployment.server.server import Coordinator
from fedweave.deployment.wire import run_config
from fedweave.deployment.wire import spec as specification
from fedweave.deployment.wire.status import Status
from fedweave.errors import format_count

LOCK_WAIT = 60.0  # seconds for the end of the server before; one whose SuperLink was killed needs some of them


def server_app(path: Path) -> ServerApp:
    """The app whose specification is the file `path`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        spec = specification.read(path)
        folder = run_config.read_folder(context.run_config, spec.short_hash)
        remedy = "wait for its end, or name another one with --run-config 'folder=\"PATH\"'"
        with lock_folder(folder, remedy, LOCK_WAIT):
            status = Status(folder, str(context.run_id))
            status.write("starting", "waiting for clients")
            try:
                session = _run_rounds(spec, grid, context, status)
            except BaseException as error:
                status.write("failed", f"{type(error).__name__}: {error}")
                raise
            status.write("finished", format_count(session.round, "round"))

    return app


def _run_rounds(spec: specification.AppSpec, grid: Grid, context: Context, status: Status) -> Session:
    """All rounds, as the configuration of the app says."""
    config = context.run_config
    status.rounds = spec.timeline.rounds
    wait, timeout = (run_config.read_number(config, key) for key in ("wait", "timeout"))
    least = run_config.read_count(config, "least")
    keys, channel = run_config.read_roster(config), FlowerChannel(grid, context, timeout)
    registry = NodeRegistry(spec, channel, keys.clients, wait, least, say=status.say)
    return Coordinator(spec, registry, status.folder, status.report_round).run()
