"""The ServerApp of an exported federation: the rounds of `Coordinator` over Flower's messages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedweave.deployment import roster as rosters
from fedweave.deployment import spec as specification
from fedweave.deployment.flower.channel import FlowerChannel
from fedweave.deployment.roll import Roll
from fedweave.deployment.server import Coordinator
from fedweave.deployment.status import Status

HOME = Path("~/.fedweave/federations")


def server_app(path: Path) -> ServerApp:
    """The app whose specification is the file `path`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        spec, config = specification.read(path), context.run_config
        folder = Path(str(config["folder"])) if config["folder"] else HOME.expanduser() / spec.hash[:16]
        folder.mkdir(parents=True, exist_ok=True)
        status = Status(folder, spec.timeline.rounds)
        path_of = Path(str(config["roster"])) if config["roster"] else rosters.HOME
        roster = rosters.Roster(path_of.expanduser())
        channel = FlowerChannel(grid, context, _number(config, "timeout"))
        wait, least = _number(config, "wait"), int(_number(config, "least"))
        roll = Roll(spec, channel, roster.clients, wait, least, say=status.say)
        try:
            session = Coordinator(spec, roll, folder, status.round).run()
        except BaseException as error:
            status.write("failed", f"{type(error).__name__}: {error}")
            raise
        status.write("finished", f"{session.round} rounds")

    return app


def _number(config: Mapping[str, Any], key: str) -> float:
    return float(config[key])
