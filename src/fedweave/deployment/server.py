"""The server of a federation: the rounds of the simulation, with clients behind a channel.

One message a round goes to each node. It brings the new download, with which the node first evaluates the last round
and then trains the next one.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedweave.deployment import checkpoint, members, registration, tensors
from fedweave.deployment.checkpoint import Session
from fedweave.deployment.message_log import MessageLog
from fedweave.deployment.messages import Reply, Request
from fedweave.deployment.node_registry import NodeRegistry
from fedweave.deployment.recording import RunRecorder
from fedweave.deployment.spec import AppSpec
from fedweave.errors import BadInput
from fedweave.federation.federation import Federation
from fedweave.federation.protocol import Method
from fedweave.federation.schedule import participants
from fedweave.federation.start import initial_model
from fedweave.federation.uploads import accept, reference
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


class RoundDownloads(NamedTuple):
    """The downloads (for all, of each) of the participants `chosen` [P], and whether scores of this round are due."""

    chosen: Tensor
    downloads: tuple[Tree, Tree]
    due: bool


@dataclass(frozen=True, eq=False)
class Coordinator:
    """Runs a federation to its end.

    Attributes:
        spec: of the federation.
        roll: who is connected, and how to reach them.
        folder: of checkpoints and results.
        say: called with one line after every round.
    """

    spec: AppSpec
    roll: NodeRegistry
    folder: Path
    say: Callable[[str], None] = print

    def run(self, until: int | None = None) -> Session:
        """All rounds (or the first `until`); goes on from the last checkpoint of the same federation.

        Raises:
            BadInput: clients do not fit the specification.
        """
        ledger, board = MessageLog(self.folder), RunRecorder(self.spec, self.folder)
        total = self.spec.timeline.rounds if until is None else until
        session = checkpoint.restore(self.folder, self.spec.hash) or self._begin(ledger)
        while session.round < total:
            session = self._admit(self._hand_over(session, ledger), ledger, board)
            session = self._run_round(session, ledger, board)
            checkpoint.save(self.folder, self.spec.hash, session)
            self.say(board.progress_line(session))
        if until is None:
            session = self._close(session, ledger, board)
        return session

    def _begin(self, ledger: MessageLog) -> Session:
        """The state before round 0, of the founders that are there."""
        replies = registration.enrol_founders(self.roll, ledger)
        if not replies:
            raise BadInput("no client has joined; messages.jsonl says why")
        session = registration.add_members(self.spec, Session(), replies)
        method = self.spec.timeline.stages[0].method
        start = registration.build_start(self.spec, method, session.members, replies)
        return replace(session, server=method.init(start))

    def _hand_over(self, session: Session, ledger: MessageLog) -> Session:
        """The server's state at the opening of a stage."""
        stage, opens = self.spec.timeline.stage(session.round)
        if not opens or stage.handover is None:
            return session
        replies = registration.enrol_members(self.roll, session, ledger)
        start = registration.build_start(self.spec, stage.method, session.members, replies)
        return replace(session, server=stage.handover(session.server, start))

    def _admit(self, session: Session, ledger: MessageLog, board: RunRecorder) -> Session:
        """Clients that were not there before join; the last round is evaluated first, without them."""
        replies = registration.enrol_newcomers(self.roll, session, ledger)
        if not replies:
            return session
        session = self._evaluate_last_round(session, ledger, board)
        method = self.spec.timeline.stage(session.round)[0].method
        grown = registration.add_members(self.spec, session, replies)
        start = registration.build_start(self.spec, method, grown.members, replies)
        uploads = registration.stack_enrolments(replies)
        return replace(grown, server=method.admit(session.server, uploads, len(replies), start))

    def _run_round(self, session: Session, ledger: MessageLog, board: RunRecorder) -> Session:
        begun, settings = time.perf_counter(), self.spec.settings
        method = self.spec.timeline.stage(session.round)[0].method
        crowd = members.placeholder_federation(self.spec, session.members)
        chosen = participants(settings.seed, session.round, crowd.ids, settings.participation)
        due = self.spec.timeline.evaluates(session.round)
        downloads = method.download(session.server, chosen)
        requests = self._requests(session, method, RoundDownloads(chosen, downloads, due), board)
        replies = self.roll.exchange(session, requests, ledger)
        session = board.record_round(session, replies)
        server, report = self._aggregate(method, session, crowd, chosen, downloads, replies)
        report |= {"seconds": time.perf_counter() - begun, "due": due}
        return replace(session, round=session.round + 1, server=server, last=report)

    def _requests(
        self, session: Session, method: Method, sending: RoundDownloads, board: RunRecorder
    ) -> dict[int, Request]:
        """Identity -> what is sent to it. Who does not take part trains a copy where scores after training are due."""
        everybody, chosen = torch.arange(len(session.members)), sending.chosen
        sample = torch.tensor(members.evaluated_positions(self.spec, session.members), dtype=torch.int64)
        absent = sample[~torch.isin(sample, chosen)]
        places = {int(place): (sending.downloads, row) for row, place in enumerate(chosen.tolist())}
        if sending.due and len(absent):
            copies = method.download(session.server, absent)
            places |= {int(place): (copies, row) for row, place in enumerate(absent.tolist())}
        views = None
        if session.last.get("due"):
            views = (
                sending.downloads if torch.equal(chosen, everybody) else self._evaluation_downloads(session, everybody)
            )
        requests: dict[int, Request] = {}
        judged = set() if views is None else {*sample.tolist()}
        for place, identity in enumerate(session.members):
            if place not in places and place not in judged:
                continue
            (shared, own), row = places.get(place) or (views, place)  # type: ignore[misc]
            mine = tensors.flatten(trees.at(own, row))
            view = tensors.flatten(trees.at(views[1], place)) if views and place in judged else mine
            config = self._config(session, board, place) | {
                "train": place in places, "takes_part": place in chosen.tolist(), "evaluate": place in judged,
                "apart": not _are_equal(view, mine),
            }  # fmt: skip
            apart = view if config["apart"] else {}
            weight = self._weights(method, session)[place] if self.spec.secure and config["takes_part"] else 0.0
            parts = tensors.flatten(shared), mine, apart
            requests[identity] = Request("train", config, *parts, weight=float(weight))
        return requests

    def _config(self, session: Session, board: RunRecorder, place: int) -> dict[str, Any]:
        """What every message of a round says."""
        return {
            "round": session.round, "train": False, "takes_part": False, "evaluate": True, "apart": False,
            "checkpoint": board.oldest_round(session), "chosen": board.selected_round(session, place),
        }  # fmt: skip

    def _evaluation_downloads(self, session: Session, everybody: Tensor) -> tuple[Tree, Tree]:
        """What all clients are sent to evaluate the last round."""
        stage, _ = self.spec.timeline.stage(session.round - 1)
        return stage.method.download(session.server, everybody)

    def _evaluate_last_round(self, session: Session, ledger: MessageLog, board: RunRecorder) -> Session:
        """`session` with the last round recorded, by messages that only evaluate."""
        if not session.last:
            return session
        replies: dict[int, Reply | str] = {}
        if session.last["due"]:
            shared, own = self._evaluation_downloads(session, torch.arange(len(session.members)))
            judged = {*members.evaluated_positions(self.spec, session.members)}
            requests = {
                identity: Request("train", self._config(session, board, place), tensors.flatten(shared),
                                  tensors.flatten(trees.at(own, place)))
                for place, identity in enumerate(session.members) if place in judged
            }  # fmt: skip
            replies = self.roll.exchange(session, requests, ledger)
        return board.record_round(session, replies)

    def _aggregate(
        self, method: Method, session: Session, crowd: Federation, chosen: Tensor, downloads: tuple[Tree, Tree],
        replies: Mapping[int, Reply | str],
    ) -> tuple[Tree, dict[str, Any]]:  # fmt: skip
        """The server's step on what has arrived and is accepted, and the numbers of the round."""
        here, uploads, losses = [], [], []
        for row, place in enumerate(chosen.tolist()):
            reply = replies.get(session.members[place], "offline")
            if not isinstance(reply, str) and reply.config.get("sound"):
                here.append(row)
                uploads.append(tensors.unflatten(reply.upload))
                losses.append(torch.tensor(reply.config["loss"], dtype=self.spec.task.dtype))
        shared, own = downloads
        rows = torch.tensor(here, dtype=torch.int64)
        server, loss, accepted = session.server, float("nan"), []
        down, up = len(chosen) * trees.nbytes(shared) + trees.nbytes(own), 0
        if uploads:
            stacked = trees.stack(uploads)
            delivered = accept(stacked, stacked, torch.stack(losses), len(here))
            accepted = rows[delivered.rows].tolist()
            content = self._apply_robust_rule(
                method, delivered.uploads, shared, trees.take(own, rows[delivered.rows]), crowd
            )
            server = self._update_server(method, session, chosen[rows[delivered.rows]], content)
            loss = float(torch.stack(losses)[delivered.rows].mean()) if accepted else loss
            down, up = method.traffic(shared, own, stacked, len(chosen))
        lost = sorted(session.members[int(chosen[row])] for row in {*range(len(chosen))} - {*accepted})
        return server, {"loss": loss, "bytes_down": down, "bytes_up": up, "dropped": lost}

    def _apply_robust_rule(self, method: Method, uploads: Tree, shared: Tree, own: Tree, crowd: Federation) -> Tree:
        """`uploads` [K, ...] after the server's robust rule, if there is one."""
        robust = self.spec.settings.upload_path.robust
        if robust is None or not trees.tree_leaves(uploads):
            return uploads
        base = reference(method, uploads, shared, own, lambda: initial_model(method, crowd, self.spec.seed))
        return robust.apply(uploads, base, method.robust_part)

    def _update_server(self, method: Method, session: Session, senders: Tensor, uploads: Tree) -> Tree:
        settings = self.spec.timeline.settings
        frozen = settings.freeze and session.round >= settings.join_round
        if not len(senders) or frozen:
            return session.server
        return method.aggregate(session.server, senders, uploads, self._weights(method, session)[senders])

    def _weights(self, method: Method, session: Session) -> Tensor:
        """Of each member's upload in a mean, [N]."""
        return torch.ones_like(session.sizes) if method.training.uniform_mean else session.sizes

    def _close(self, session: Session, ledger: MessageLog, board: RunRecorder) -> Session:
        """The scores of the last round, the files of results, and the models that nodes keep."""
        session = self._evaluate_last_round(session, ledger, board)
        checkpoint.save(self.folder, self.spec.hash, session)
        board.write(session)
        finish = {
            identity: Request("finish", {"round": board.selected_round(session, place), "point": board.point})
            for place, identity in enumerate(session.members)
        }
        self.roll.exchange(session, finish, ledger)
        ledger.write_traffic()
        return session


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two downloads have the same bits."""
    return [*a] == [*b] and all(torch.equal(a[name], b[name]) for name in a)
