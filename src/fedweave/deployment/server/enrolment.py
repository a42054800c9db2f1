"""How clients join a federation: founders, newcomers, and enrolments for a later stage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedweave.deployment.server.checkpoint import Session
from fedweave.deployment.server.message_log import MessageLog
from fedweave.deployment.server.node_registry import NodeRegistry
from fedweave.deployment.wire import tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine.protocol import Method, Start
from fedweave.engine.schedule import SERVER
from fedweave.engine.start import initial_model
from fedweave.engine.uploads import finite_rows
from fedweave.errors import BadInput
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


def enrol_founders(registry: NodeRegistry, log: MessageLog) -> dict[int, Reply]:
    """Enrolments of the clients that take part from the start, by ascending identity.

    Raises:
        BadInput: too few are connected.
    """
    expected = range(registry.spec.founder_count)
    connected = registry.wait_for(expected, registry.least or len(expected), 0, log)
    return _enrol(registry, Session(), sorted(i for i in connected if i in expected), 0, True, log)


def enrol_newcomers(registry: NodeRegistry, session: Session, log: MessageLog) -> dict[int, Reply]:
    """Enrolments of clients that join before this round, by ascending identity; newcomers join from `join_round` on."""
    spec, connected = registry.spec, registry.refresh(session.round, log)
    settings, newcomers = spec.timeline.settings, range(spec.founder_count, len(spec.clients))
    if newcomers and session.round == settings.join_round:
        connected = registry.wait_for(newcomers, 0, session.round, log)
    due = session.round >= settings.join_round
    new = sorted(i for i in connected if i not in session.members and (due or i not in newcomers))
    return _enrol(registry, session, new, 0, True, log) if new else {}


def enrol_members(registry: NodeRegistry, session: Session, log: MessageLog) -> dict[int, Reply]:
    """Enrolments of all members for the stage that opens now.

    Raises:
        BadInput: one of them is missing, so that the stage cannot begin.
    """
    timeline = registry.spec.timeline
    stage = timeline.stages.index(timeline.stage(session.round)[0])
    registry.wait_for(session.members, len(session.members), session.round, log)
    replies = _enrol(registry, session, session.members, stage, False, log)
    if missing := [i for i in session.members if i not in replies]:
        raise BadInput(
            f"client {missing[0]} gave no description of itself, with which this stage begins; start it again"
        )
    return replies


def _enrol(
    registry: NodeRegistry, session: Session, identities: Sequence[int], stage: int, joins: bool, log: MessageLog
) -> dict[int, Reply]:
    config = {"round": session.round, "stage": stage, "joins": joins}
    replies = registry.exchange(session, {i: Request("enrol", config) for i in identities}, log)
    accepted = {identity: reply for identity, reply in replies.items() if not isinstance(reply, str)}
    stacked = {i: {name: value[None] for name, value in reply.upload.items()} for i, reply in accepted.items()}
    return {identity: reply for identity, reply in accepted.items() if finite_rows(stacked[identity]) is None}


def add_members(session: Session, replies: Mapping[int, Reply]) -> Session:
    """`session` with new members: identities, numbers of training rows, scores of rules without a model."""
    sizes = torch.tensor([reply.config["rows/train"] for reply in replies.values()], dtype=torch.get_default_dtype())
    rules = {rule: dict(scores) for rule, scores in session.controls.items()}
    for identity, reply in replies.items():
        for name, value in reply.config.items():
            if name.startswith("control/"):
                rules.setdefault(name.removeprefix("control/"), {})[str(identity)] = float(value)
    all_sizes = torch.cat([session.sizes.to(sizes), sizes])
    return replace(session, members=(*session.members, *replies), sizes=all_sizes, controls=rules)


def build_start(spec: AppSpec, method: Method, identities: Sequence[int], replies: Mapping[int, Reply]) -> Start:
    """What the server knows when `identities` are the members and `replies` are the enrolments."""
    placeholder = spec.placeholder(identities)
    model = initial_model(method, placeholder, spec.seed)
    return Start(
        model,
        stack_enrolments(replies),
        placeholder.clients,
        spec.seed * 1000 + SERVER,
        placeholder.relation,
        placeholder.ids,
    )


def stack_enrolments(replies: Mapping[int, Reply]) -> Tree:
    """The enrolments as one stacked tree [P, ...]."""
    uploads: list[Any] = [tensors.unflatten(reply.upload) for reply in replies.values()]
    return trees.stack(uploads)
