"""Who is connected, who they are, and how clients join."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedweave.deployment import members, tensors
from fedweave.deployment.checkpoint import Session
from fedweave.deployment.ledger import Ledger
from fedweave.deployment.messages import Channel, Reply, Request
from fedweave.deployment.spec import AppSpec
from fedweave.errors import BadInput
from fedweave.federation.protocol import Method, Start
from fedweave.federation.schedule import SERVER
from fedweave.federation.start import initial_model
from fedweave.federation.uploads import finite_rows
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

POLL = 1.0  # seconds between two looks at who is connected


@dataclass
class Roll:
    """Connected nodes and the clients that they have.

    Attributes:
        channel: reaches nodes.
        wait: seconds to wait for clients that are expected.
        least: how many founders must be there to begin; 0 for all.
        clients: node -> identity of its client.
        refused: nodes that gave no identity, or one that another node has.
        say: gets a line for each event.
    """

    channel: Channel
    wait: float = 600.0
    least: int = 0
    clients: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    say: Callable[[str], None] = print

    def refresh(self, round: int, ledger: Ledger) -> dict[int, int]:
        """Identity -> node, of those connected now; nodes that are new are asked who they are."""
        present = self.channel.nodes()
        self.clients = {node: identity for node, identity in self.clients.items() if node in present}
        new = [node for node in present if node not in self.clients and node not in self.refused]
        if new:
            requests = {node: Request("who", {"round": round}) for node in new}
            replies = self.channel.exchange(requests)
            for node, reply in replies.items():
                self._enter(node, reply)
            ledger.note(round, requests, replies, self.clients)
        return {identity: node for node, identity in self.clients.items()}

    def _enter(self, node: int, reply: Reply | str) -> None:
        if isinstance(reply, str):
            if not reply.startswith("no answer"):  # a node that was only slow is asked again
                self.refused[node] = reply
            self.say(f"node {node} is left out: {reply}")
            return
        identity = int(reply.config["client"])
        if identity < 0 or identity in self.clients.values():
            self.refused[node] = f"client {identity} is another node's"
            self.say(f"node {node} is left out: {self.refused[node]}")
        else:
            self.clients[node] = identity

    def exchange(self, session: Session, requests: Mapping[int, Request], ledger: Ledger) -> dict[int, Reply | str]:
        """Identity -> its reply, or why there is none; requests go by identity."""
        where = self.refresh(session.round, ledger)
        sent = {where[identity]: request for identity, request in requests.items() if identity in where}
        received = self.channel.exchange(sent) if sent else {}
        ledger.note(session.round, sent, received, self.clients)
        replies = {identity: received[where[identity]] if identity in where else "offline" for identity in requests}
        for identity, reply in replies.items():
            if isinstance(reply, str):
                self.say(f"client {identity} is left out of round {session.round + 1}: {reply}")
        return replies

    def until(self, expected: Collection[int], least: int, round: int, ledger: Ledger) -> dict[int, int]:
        """Wait for the identities `expected`; after `wait` seconds `least` of them are enough."""
        end = time.monotonic() + self.wait
        while True:
            here = self.refresh(round, ledger)
            there = [identity for identity in expected if identity in here]
            if len(there) == len(expected) or (time.monotonic() > end and len(there) >= least):
                return here
            if time.monotonic() > end:
                raise BadInput(f"only {len(there)} of {len(expected)} clients are connected; start their nodes")
            time.sleep(POLL)


def founders(roll: Roll, spec: AppSpec, ledger: Ledger) -> dict[int, Reply]:
    """Enrolments of the clients that are there from the start, by ascending identity.

    Raises:
        BadInput: too few are connected.
    """
    expected = range(spec.founders)
    here = roll.until(expected, roll.least or len(expected), 0, ledger)
    return _enrol(roll, spec, Session(), sorted(i for i in here if i in expected), 0, True, ledger)


def newcomers(roll: Roll, spec: AppSpec, session: Session, ledger: Ledger) -> dict[int, Reply]:
    """Enrolments of clients that join before this round, by ascending identity: late ones when their round has come."""
    here, settings = roll.refresh(session.round, ledger), spec.timeline.settings
    late = range(spec.founders, len(spec.clients))
    if late and session.round == settings.join_round:
        here = roll.until(late, 0, session.round, ledger)
    due = session.round >= settings.join_round
    new = sorted(i for i in here if i not in session.members and (due or i not in late))
    return _enrol(roll, spec, session, new, 0, True, ledger) if new else {}


def describe(roll: Roll, spec: AppSpec, session: Session, ledger: Ledger) -> dict[int, Reply]:
    """Enrolments of all members for the stage that opens now.

    Raises:
        BadInput: one of them is away, so that the stage cannot begin.
    """
    stage = spec.timeline.stages.index(spec.timeline.stage(session.round)[0])
    roll.until(session.members, len(session.members), session.round, ledger)
    replies = _enrol(roll, spec, session, session.members, stage, False, ledger)
    if lacking := [i for i in session.members if i not in replies]:
        raise BadInput(
            f"client {lacking[0]} gave no description of itself, with which this stage begins; start it again"
        )
    return replies


def _enrol(
    roll: Roll, spec: AppSpec, session: Session, identities: Sequence[int], stage: int, joins: bool, ledger: Ledger
) -> dict[int, Reply]:
    config = {"round": session.round, "stage": stage, "joins": joins}
    replies = roll.exchange(session, {i: Request("enrol", config) for i in identities}, ledger)
    declared, good = spec.form("enrol", stage, 0), {}
    for identity, reply in replies.items():
        if isinstance(reply, str):
            continue
        upload = {name: value[None] for name, value in reply.upload.items()}
        try:
            tensors.check(tensors.form_of(reply.upload), declared, f"client {identity}: enrolment")
        except tensors.Undeclared as error:
            roll.say(str(error))
            continue
        if finite_rows(upload) is None:
            good[identity] = reply
    return good


def enrolled(spec: AppSpec, session: Session, replies: Mapping[int, Reply]) -> Session:
    """`session` with new members: identities, numbers of training rows, scores of rules without a model."""
    sizes = torch.tensor([reply.config["rows/train"] for reply in replies.values()], dtype=torch.get_default_dtype())
    rules = {rule: dict(scores) for rule, scores in session.controls.items()}
    for identity, reply in replies.items():
        for name, value in reply.config.items():
            if name.startswith("control/"):
                rules.setdefault(name.removeprefix("control/"), {})[str(identity)] = float(value)
    together = torch.cat([session.sizes.to(sizes), sizes])
    return replace(session, members=(*session.members, *replies), sizes=together, controls=rules)


def start(spec: AppSpec, method: Method, identities: Sequence[int], replies: Mapping[int, Reply]) -> Start:
    """What the server knows when `identities` are the members and `replies` are the enrolments."""
    crowd = members.stand_in(spec, identities)
    model = initial_model(method, crowd, spec.seed)
    return Start(model, stacked(replies), crowd.clients, spec.seed * 1000 + SERVER, crowd.relation, crowd.ids)


def stacked(replies: Mapping[int, Reply]) -> Tree:
    """Enrolments [P, ...]."""
    uploads: list[Any] = [tensors.unflatten(reply.upload) for reply in replies.values()]
    return trees.stack(uploads)
