"""How clients join a federation: founders, newcomers, and enrolments for a later stage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedweave.deployment import members, tensors
from fedweave.deployment.checkpoint import Session
from fedweave.deployment.message_log import MessageLog
from fedweave.deployment.messages import Reply, Request
from fedweave.deployment.node_registry import NodeRegistry
from fedweave.deployment.spec import AppSpec
from fedweave.errors import BadInput
from fedweave.federation.protocol import Method, Start
from fedweave.federation.schedule import SERVER
from fedweave.federation.start import initial_model
from fedweave.federation.uploads import finite_rows
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


def enrol_founders(roll: NodeRegistry, ledger: MessageLog) -> dict[int, Reply]:
    """Enrolments of the clients that are there from the start, by ascending identity.

    Raises:
        BadInput: too few are connected.
    """
    expected = range(roll.spec.founder_count)
    here = roll.wait_for(expected, roll.least or len(expected), 0, ledger)
    return _enrol(roll, Session(), sorted(i for i in here if i in expected), 0, True, ledger)


def enrol_newcomers(roll: NodeRegistry, session: Session, ledger: MessageLog) -> dict[int, Reply]:
    """Enrolments of clients that join before this round, by ascending identity: late ones when their round has come."""
    spec, here = roll.spec, roll.refresh(session.round, ledger)
    settings, late = spec.timeline.settings, range(spec.founder_count, len(spec.clients))
    if late and session.round == settings.join_round:
        here = roll.wait_for(late, 0, session.round, ledger)
    due = session.round >= settings.join_round
    new = sorted(i for i in here if i not in session.members and (due or i not in late))
    return _enrol(roll, session, new, 0, True, ledger) if new else {}


def enrol_members(roll: NodeRegistry, session: Session, ledger: MessageLog) -> dict[int, Reply]:
    """Enrolments of all members for the stage that opens now.

    Raises:
        BadInput: one of them is away, so that the stage cannot begin.
    """
    timeline = roll.spec.timeline
    stage = timeline.stages.index(timeline.stage(session.round)[0])
    roll.wait_for(session.members, len(session.members), session.round, ledger)
    replies = _enrol(roll, session, session.members, stage, False, ledger)
    if lacking := [i for i in session.members if i not in replies]:
        raise BadInput(
            f"client {lacking[0]} gave no description of itself, with which this stage begins; start it again"
        )
    return replies


def _enrol(
    roll: NodeRegistry, session: Session, identities: Sequence[int], stage: int, joins: bool, ledger: MessageLog
) -> dict[int, Reply]:
    config = {"round": session.round, "stage": stage, "joins": joins}
    replies = roll.exchange(session, {i: Request("enrol", config) for i in identities}, ledger)
    good = {identity: reply for identity, reply in replies.items() if not isinstance(reply, str)}
    stacked = {i: {name: value[None] for name, value in reply.upload.items()} for i, reply in good.items()}
    return {identity: reply for identity, reply in good.items() if finite_rows(stacked[identity]) is None}


def add_members(spec: AppSpec, session: Session, replies: Mapping[int, Reply]) -> Session:
    """`session` with new members: identities, numbers of training rows, scores of rules without a model."""
    sizes = torch.tensor([reply.config["rows/train"] for reply in replies.values()], dtype=torch.get_default_dtype())
    rules = {rule: dict(scores) for rule, scores in session.controls.items()}
    for identity, reply in replies.items():
        for name, value in reply.config.items():
            if name.startswith("control/"):
                rules.setdefault(name.removeprefix("control/"), {})[str(identity)] = float(value)
    together = torch.cat([session.sizes.to(sizes), sizes])
    return replace(session, members=(*session.members, *replies), sizes=together, controls=rules)


def build_start(spec: AppSpec, method: Method, identities: Sequence[int], replies: Mapping[int, Reply]) -> Start:
    """What the server knows when `identities` are the members and `replies` are the enrolments."""
    crowd = members.placeholder_federation(spec, identities)
    model = initial_model(method, crowd, spec.seed)
    return Start(model, stack_enrolments(replies), crowd.clients, spec.seed * 1000 + SERVER, crowd.relation, crowd.ids)


def stack_enrolments(replies: Mapping[int, Reply]) -> Tree:
    """Enrolments [P, ...]."""
    uploads: list[Any] = [tensors.unflatten(reply.upload) for reply in replies.values()]
    return trees.stack(uploads)
