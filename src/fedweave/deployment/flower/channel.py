"""Nodes behind Flower's grid, as the channel of the server."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.serverapp import Grid

from fedweave.deployment.flower import records, secure
from fedweave.deployment.wire.messages import Reply, Request

POLL, PRESENCE_POLL = 0.5, 5.0  # seconds between two checks for replies, and for nodes that have gone


@dataclass
class FlowerChannel:
    """Nodes behind Flower's grid.

    Attributes:
        grid, context: of the ServerApp.
        timeout: seconds for the answers of a round; a node that has not answered by then is left out.
    """

    grid: Grid
    context: Context
    timeout: float

    def nodes(self) -> list[int]:
        """Nodes that are connected now."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Reply | str]:
        """Send all requests and wait for the replies of nodes that stay connected. Uploads with a weight are masked."""
        arrays: records.Arrays = {}
        contents = {node: records.to_content(request, arrays) for node, request in requests.items()}
        masked = {node: request for node, request in requests.items() if request.weight}
        plain = [
            Message(
                content=contents[node],
                dst_node_id=node,
                message_type=records.message_type(request),
                ttl=self.timeout,
                group_id=str(request.config["round"]),
            )
            for node, request in requests.items()
            if node not in masked
        ]
        received = self.deliver(plain) if plain else {}
        replies = {
            node: _read_reply(message, records.nbytes(contents[node]), requests[node])
            for node, message in received.items()
        }
        return replies | (secure.aggregate(self, masked, contents) if masked else {})

    def deliver(self, messages: Sequence[Message]) -> dict[int, Message | str]:
        """Node -> the answer to its message, or why there is none."""
        nodes = [message.metadata.dst_node_id for message in messages]
        waiting = dict(zip(self.grid.push_messages(messages), nodes, strict=True))
        answers: dict[int, Message | str] = dict.fromkeys(nodes, "no answer in time")
        now = time.monotonic()
        end, next_check = now + self.timeout, now + PRESENCE_POLL
        while waiting and time.monotonic() < end:
            for message in self.grid.pull_messages([*waiting]):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = f"{message.error.reason}" if message.has_error() else message
            if waiting and time.monotonic() > next_check:
                next_check = time.monotonic() + PRESENCE_POLL
                absent = {*waiting.values()} - {*self.nodes()}
                for key in [key for key, node in waiting.items() if node in absent]:
                    answers[waiting.pop(key)] = "no answer: the node has gone"
            time.sleep(POLL if waiting else 0)
        return answers


def _read_reply(message: Message | str, sent: int, request: Request) -> Reply | str:
    """The reply to `request`, or why it is refused: one bad reply must not end the federation."""
    if isinstance(message, str):
        return message
    try:
        return records.to_reply(message, sent, request)
    except Exception as error:  # what another host sends can raise nearly anything
        return records.describe_error(error)
