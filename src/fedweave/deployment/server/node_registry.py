"""Who is connected, and which client each node has."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fedweave.deployment.server.checkpoint import Session
from fedweave.deployment.server.message_log import MessageLog
from fedweave.deployment.server.replies import inspect, max_bytes, reply_form
from fedweave.deployment.wire import roster
from fedweave.deployment.wire.messages import Channel, Reply, Request
from fedweave.deployment.wire.spec import AppSpec
from fedweave.errors import BadInput, format_count

POLL = 1.0  # seconds between two checks of who is connected
Owners = Mapping[int, int] | None
Replies = dict[int, Reply | str]


@dataclass
class NodeRegistry:
    """Connected nodes and their clients.

    Attributes:
        spec: of the federation.
        channel: reaches nodes.
        owners: gives node -> the client of its key, read anew every time; None if the channel has no keys.
        wait: seconds to wait for expected clients.
        least: how many founders must be connected to begin; 0 for all.
        clients: node -> identity of its client.
        refused: (node, client of its key) -> why it is left out. A node is asked again in the next round, when it
            connects again, and when its key is given to another client.
        round: the one in which they were refused.
        reported: (node, reason) of refusals that `say` has got; each is reported once.
        say: is called with one line for each event.
    """

    spec: AppSpec
    channel: Channel
    owners: Callable[[], Owners] = lambda: None
    wait: float = 600.0
    least: int = 0
    clients: dict[int, int] = field(default_factory=dict)
    refused: dict[tuple[int, int | None], str] = field(default_factory=dict)
    round: int = 0
    reported: set[tuple[int, str]] = field(default_factory=set)
    say: Callable[[str], None] = print

    def refresh(self, round: int, log: MessageLog) -> dict[int, int]:
        """Identity -> node, of the nodes that are connected now; new nodes are asked who they are.

        A node whose key is not in the roster is not asked. One that names another client than its key's is left out.
        """
        present, owners = self.channel.nodes(), self.owners()
        self.clients = {
            node: client
            for node, client in self.clients.items()
            if node in present and not roster.refusal_reason(owners, node, client)
        }
        self.refused = {
            key: reason for key, reason in self.refused.items() if key[0] in present and round == self.round
        }
        self.round = round
        new = [node for node in present if node not in self.clients and not self._is_refused(node, owners)]
        if new:
            requests = {node: Request("who", {"round": round}) for node in new}
            replies = self._exchange(requests)
            answers = {node: self._register(node, reply, owners) for node, reply in replies.items()}
            log.append(round, requests, answers, self.clients)
        return {identity: node for node, identity in self.clients.items()}

    def _is_refused(self, node: int, owners: Owners) -> bool:
        """Whether a node is left out without being asked."""
        key = (node, None if owners is None else owners.get(node))
        if owners is not None and key[1] is None and key not in self.refused:
            self._refuse(key, roster.refusal_reason(owners, node, -1))
        return key in self.refused

    def _refuse(self, key: tuple[int, int | None], reason: str) -> str:
        self.refused[key] = reason
        if (key[0], reason) not in self.reported:
            self.reported.add((key[0], reason))
            self.say(f"node {key[0]} is left out: {reason}")
        return reason

    def _register(self, node: int, reply: Reply | str, owners: Owners) -> Reply | str:
        """Register the client of a new node; returns the node's reply, or why it is left out."""
        key = (node, None if owners is None else owners.get(node))
        if isinstance(reply, str):
            if reply.startswith("no answer"):  # a node that was only slow is asked again
                self.say(f"node {node} is left out: {reply}")
                return reply
            return self._refuse(key, reply)
        identity = int(reply.config["client"])
        taken = f"client {identity} is another node's" if identity in self.clients.values() else ""
        if reason := roster.refusal_reason(owners, node, identity) or taken:
            return self._refuse(key, reason)
        self.clients[node] = identity
        return reply

    def exchange(self, session: Session, requests: Mapping[int, Request], log: MessageLog) -> Replies:
        """Identity -> its reply, or why there is none; requests go by identity."""
        nodes = self.refresh(session.round, log)
        sent_requests = {nodes[identity]: request for identity, request in requests.items() if identity in nodes}
        received = self._exchange(sent_requests) if sent_requests else {}
        log.append(session.round, sent_requests, received, self.clients)
        replies = {identity: received[nodes[identity]] if identity in nodes else "offline" for identity in requests}
        for identity, reply in replies.items():
            if isinstance(reply, str):
                self.say(f"client {identity} is left out of round {session.round + 1}: {reply}")
            elif reply.refused:
                self.say(f"the upload of client {identity} is left out of round {session.round + 1}: {reply.refused}")
        return replies

    def _exchange(self, requests: Mapping[int, Request]) -> Replies:
        """Node -> its checked reply. A reply that is longer than the specification allows is not read at all."""
        forms = {node: reply_form(self.spec, request) for node, request in requests.items()}
        limited = {
            node: replace(request, form=forms[node], max_bytes=max_bytes(forms[node]))
            for node, request in requests.items()
        }
        return {
            node: reply if isinstance(reply, str) else inspect(self.spec, requests[node], reply, self.clients.get(node))
            for node, reply in self.channel.exchange(limited).items()
        }

    def wait_for(self, expected: Collection[int], least: int, round: int, log: MessageLog) -> dict[int, int]:
        """Wait for the identities `expected`; after `wait` seconds `least` of them are enough."""
        end = time.monotonic() + self.wait
        while True:
            connected = self.refresh(round, log)
            present = [identity for identity in expected if identity in connected]
            if len(present) == len(expected) or (time.monotonic() > end and len(present) >= least):
                return connected
            if time.monotonic() > end:
                raise BadInput(
                    f"only {len(present)} of {format_count(len(expected), 'client')} are connected; start their nodes"
                )
            time.sleep(POLL)
