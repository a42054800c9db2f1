"""The ServerApp of an exported federation: the rounds of `Coordinator` over Flower's messages."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedweave.deployment import roster as rosters
from fedweave.deployment import spec as specification
from fedweave.deployment.flower import records
from fedweave.deployment.messages import Reply, Request
from fedweave.deployment.roll import Roll
from fedweave.deployment.server import Coordinator
from fedweave.deployment.status import Status

POLL, PRESENCE = 0.5, 5.0  # seconds between two looks for replies, and for nodes that have gone
HOME = Path("~/.fedweave/federations")


@dataclass
class FlowerChannel:
    """Nodes behind Flower's grid.

    Attributes:
        grid: of the ServerApp.
        timeout: seconds for the answers of a round; who has not answered by then is left out.
    """

    grid: Grid
    timeout: float

    def nodes(self) -> list[int]:
        """Nodes that are connected now."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Reply | str]:
        """Send all requests, and wait for the replies of nodes that stay connected."""
        known: records.Arrays = {}
        nodes, contents = [*requests], [records.to_content(request, known) for request in requests.values()]
        sizes = {node: records.nbytes(content) for node, content in zip(nodes, contents, strict=True)}
        messages = [
            Message(content=content, dst_node_id=node, message_type=records.message_type(requests[node]),
                    ttl=self.timeout, group_id=str(requests[node].config["round"]))
            for node, content in zip(nodes, contents, strict=True)
        ]  # fmt: skip
        waiting = dict(zip(self.grid.push_messages(messages), nodes, strict=True))
        replies: dict[int, Reply | str] = dict.fromkeys(nodes, "no answer in time")
        now = time.monotonic()
        end, look = now + self.timeout, now + PRESENCE
        while waiting and time.monotonic() < end:
            for message in self.grid.pull_messages([*waiting]):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = _read(message, sizes[node], requests[node].most_bytes)
            if waiting and time.monotonic() > look:
                look = time.monotonic() + PRESENCE
                gone = {*waiting.values()} - {*self.nodes()}
                for key in [key for key, node in waiting.items() if node in gone]:
                    replies[waiting.pop(key)] = "no answer: the node has gone"
            time.sleep(POLL if waiting else 0)
        return replies


def _read(message: Message, sent: int, most: int) -> Reply | str:
    if message.has_error():
        return f"{message.error.reason}"
    try:
        return records.to_reply(message, sent, most)
    except (KeyError, ValueError, TypeError) as error:
        return f"a reply that cannot be read ({type(error).__name__}: {error})"


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
        roll = Roll(spec, FlowerChannel(grid, _number(config, "timeout")), roster.clients, _number(config, "wait"),
                    int(_number(config, "least")), say=status.say)  # fmt: skip
        try:
            session = Coordinator(spec, roll, folder, status.round).run()
        except BaseException as error:
            status.write("failed", f"{type(error).__name__}: {error}")
            raise
        status.write("finished", f"{session.round} rounds")

    return app


def _number(config: Mapping[str, Any], key: str) -> float:
    return float(config[key])
