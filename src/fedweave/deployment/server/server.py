"""The server of a federation: the rounds of the simulation, with clients behind a channel.

Each node gets one message a round. It carries the new download, with which the node first evaluates the last round
and then trains the next one.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.deployment.server import checkpoint, enrolment
from fedweave.deployment.server.checkpoint import Session
from fedweave.deployment.server.message_log import MessageLog
from fedweave.deployment.server.node_registry import NodeRegistry
from fedweave.deployment.server.recording import RunRecorder
from fedweave.deployment.wire import tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine import server_hooks
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method
from fedweave.engine.schedule import participants
from fedweave.engine.start import initial_model
from fedweave.engine.uploads import accept, reference
from fedweave.errors import BadInput
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree


@dataclass(frozen=True, eq=False)
class Coordinator:
    """Runs a federation to its end.

    Attributes:
        spec: of the federation.
        registry: who is connected, and how to reach them.
        folder: for checkpoints and results.
        report: called after every round with the number of rounds that are over, and one line.
    """

    spec: AppSpec
    registry: NodeRegistry
    folder: Path
    report: Callable[[int, str], object] = print

    def run(self, until: int | None = None) -> Session:
        """Run all rounds, or the first `until`, from the last checkpoint of the same federation on.

        Raises:
            BadInput: clients do not fit the specification.
        """
        log, recorder = MessageLog(self.folder), RunRecorder(self.spec, self.folder)
        rounds = self.spec.timeline.rounds if until is None else until
        session = checkpoint.restore(self.folder, self.spec.hash) or self._begin(log)
        while session.round < rounds:
            session = self._admit(self._hand_over(session, log), log, recorder)
            session = self._run_round(session, log, recorder)
            checkpoint.save(self.folder, self.spec.hash, session)
            self.report(session.round, recorder.progress_line(session))
        if until is None:
            session = self._close(session, log, recorder)
        return session

    def _begin(self, log: MessageLog) -> Session:
        """The session before the first round, with the founders that are connected."""
        replies = enrolment.enrol_founders(self.registry, log)
        if not replies:
            raise BadInput("no client has joined; messages.jsonl says why")
        session = enrolment.add_members(Session(), replies)
        method = self.spec.timeline.stages[0].method
        start = enrolment.build_start(self.spec, method, session.members, replies)
        return replace(session, server=server_hooks.init(method, start))

    def _hand_over(self, session: Session, log: MessageLog) -> Session:
        """`session` with the server's state of the stage that opens now, if one does."""
        stage, opens = self.spec.timeline.stage(session.round)
        if not opens or stage.handover is None:
            return session
        replies = enrolment.enrol_members(self.registry, session, log)
        start = enrolment.build_start(self.spec, stage.method, session.members, replies)
        return replace(session, server=server_hooks.hand_over(stage, session.server, start))

    def _admit(self, session: Session, log: MessageLog, recorder: RunRecorder) -> Session:
        """`session` with the clients that join now. The last round is evaluated first, without them."""
        replies = enrolment.enrol_newcomers(self.registry, session, log)
        if not replies:
            return session
        session = self._evaluate_last_round(session, log, recorder)
        method = self.spec.timeline.stage(session.round)[0].method
        extended = enrolment.add_members(session, replies)
        start = enrolment.build_start(self.spec, method, extended.members, replies)
        uploads = enrolment.stack_enrolments(replies)
        server = server_hooks.admit(method, session.server, uploads, len(replies), start)
        return replace(extended, server=server)

    def _run_round(self, session: Session, log: MessageLog, recorder: RunRecorder) -> Session:
        start, settings = time.perf_counter(), self.spec.settings
        method = self.spec.timeline.stage(session.round)[0].method
        placeholder = self.spec.placeholder(session.members)
        chosen = participants(settings.seed, session.round, placeholder.ids, settings.participation)
        due = self.spec.timeline.evaluates(session.round)
        downloads = server_hooks.download(method, session.server, chosen)
        requests = self._requests(session, method, chosen, downloads, due, recorder)
        replies = self.registry.exchange(session, requests, log)
        session = recorder.record_round(session, replies)
        server, report = self._aggregate(method, session, placeholder, chosen, downloads, replies)
        report |= {"seconds": time.perf_counter() - start, "due": due}
        return replace(session, round=session.round + 1, server=server, last=report)

    def _requests(
        self,
        session: Session,
        method: Method,
        chosen: Tensor,
        downloads: tuple[Tree, Tree],
        due: bool,
        recorder: RunRecorder,
    ) -> dict[int, Request]:
        """Identity -> its request; `downloads` (for all, of each) are of the participants `chosen` [P].

        A client that does not take part also trains if scores after training are `due`.
        """
        everybody = torch.arange(len(session.members))
        sample = torch.tensor(self.spec.evaluated_positions(session.members), dtype=torch.int64)
        others = sample[~torch.isin(sample, chosen)]
        to_train = {int(position): (downloads, row) for row, position in enumerate(chosen.tolist())}
        if due and len(others):
            copies = server_hooks.download(method, session.server, others)
            to_train |= {int(position): (copies, row) for row, position in enumerate(others.tolist())}
        to_evaluate, evaluated = None, set[int]()
        if session.last.get("due"):
            same = torch.equal(chosen, everybody)
            to_evaluate = downloads if same else self._evaluation_downloads(session, everybody)
            evaluated = {*sample.tolist()}
        requests: dict[int, Request] = {}
        for position, identity in enumerate(session.members):
            if position not in to_train and position not in evaluated:
                continue
            (shared, own), row = to_train.get(position) or (to_evaluate, position)  # type: ignore[misc]
            train_own = evaluation_own = tensors.flatten(trees.at(own, row))
            if to_evaluate and position in evaluated:
                evaluation_own = tensors.flatten(trees.at(to_evaluate[1], position))
            config = self._config(session, recorder, position) | {
                "train": position in to_train,
                "takes_part": position in chosen.tolist(),
                "evaluate": position in evaluated,
                "apart": not _are_equal(evaluation_own, train_own),
            }
            weight = self._weights(method, session)[position] if self.spec.secure and config["takes_part"] else 0.0
            parts = tensors.flatten(shared), train_own, evaluation_own if config["apart"] else {}
            requests[identity] = Request("train", config, *parts, weight=float(weight))
        return requests

    def _config(self, session: Session, recorder: RunRecorder, position: int) -> dict[str, Any]:
        """The part of `Request.config` that every message of a round has."""
        return {
            "round": session.round,
            "train": False,
            "takes_part": False,
            "evaluate": True,
            "apart": False,
            "checkpoint": max(0, session.round - 1),  # the oldest round to which the server can go back
            "chosen": recorder.selected_round(session, position),
        }

    def _evaluation_downloads(self, session: Session, everybody: Tensor) -> tuple[Tree, Tree]:
        """The downloads with which all clients evaluate the last round."""
        stage, _ = self.spec.timeline.stage(session.round - 1)
        return server_hooks.download(stage.method, session.server, everybody)

    def _evaluate_last_round(self, session: Session, log: MessageLog, recorder: RunRecorder) -> Session:
        """`session` with the last round recorded, by messages that only evaluate."""
        if not session.last:
            return session
        replies: dict[int, Reply | str] = {}
        if session.last["due"]:
            shared, own = self._evaluation_downloads(session, torch.arange(len(session.members)))
            evaluated = {*self.spec.evaluated_positions(session.members)}
            requests = {
                identity: Request(
                    "train",
                    self._config(session, recorder, position),
                    tensors.flatten(shared),
                    tensors.flatten(trees.at(own, position)),
                )
                for position, identity in enumerate(session.members)
                if position in evaluated
            }
            replies = self.registry.exchange(session, requests, log)
        return recorder.record_round(session, replies)

    def _aggregate(
        self,
        method: Method,
        session: Session,
        placeholder: Clients,
        chosen: Tensor,
        downloads: tuple[Tree, Tree],
        replies: Mapping[int, Reply | str],
    ) -> tuple[Tree, dict[str, Any]]:
        """(server's state after the accepted uploads, numbers of the round)."""
        answered, uploads, losses = [], [], []  # rows of `chosen`, and what came from them
        for row, position in enumerate(chosen.tolist()):
            reply = replies.get(session.members[position], "offline")
            if not isinstance(reply, str) and reply.config.get("sound"):
                answered.append(row)
                uploads.append(tensors.unflatten(reply.upload))
                losses.append(torch.tensor(reply.config["loss"], dtype=self.spec.task.dtype))
        shared, own = downloads
        rows = torch.tensor(answered, dtype=torch.int64)
        server, loss, accepted = session.server, float("nan"), []
        down, up = len(chosen) * trees.nbytes(shared) + trees.nbytes(own), 0
        if uploads:
            stacked = trees.stack(uploads)
            delivered = accept(stacked, stacked, torch.stack(losses), len(answered))
            accepted = rows[delivered.rows].tolist()
            sent = trees.take(own, rows[delivered.rows])
            content = self._apply_robust_rule(method, delivered.uploads, shared, sent, placeholder)
            server = self._update_server(method, session, chosen[rows[delivered.rows]], content, own)
            loss = float(torch.stack(losses)[delivered.rows].mean()) if accepted else loss
            down, up = method.traffic(shared, own, stacked, len(chosen))
        dropped = sorted(session.members[int(chosen[row])] for row in {*range(len(chosen))} - {*accepted})
        return server, {"loss": loss, "bytes_down": down, "bytes_up": up, "dropped": dropped}

    def _apply_robust_rule(self, method: Method, uploads: Tree, shared: Tree, own: Tree, placeholder: Clients) -> Tree:
        """`uploads` [K, ...] after the server's robust rule, if there is one."""
        robust = self.spec.settings.upload_path.robust
        if robust is None or not trees.tree_leaves(uploads):
            return uploads
        base = reference(method, uploads, shared, own, lambda: initial_model(method, placeholder, self.spec.seed))
        return robust.apply(uploads, base, method.robust_part)

    def _update_server(self, method: Method, session: Session, senders: Tensor, uploads: Tree, own: Tree) -> Tree:
        settings = self.spec.timeline.settings
        frozen = settings.freeze and session.round >= settings.join_round
        if not len(senders):
            return session.server
        weights = self._weights(method, session)[senders]
        return server_hooks.aggregate(method, session.server, senders, uploads, weights, own, frozen)

    def _weights(self, method: Method, session: Session) -> Tensor:
        """Weight of each member's upload in a mean, [N]."""
        return torch.ones_like(session.sizes) if method.training.uniform_mean else session.sizes

    def _close(self, session: Session, log: MessageLog, recorder: RunRecorder) -> Session:
        """Record the scores of the last round, write the results, and tell nodes which models to keep."""
        session = self._evaluate_last_round(session, log, recorder)
        checkpoint.save(self.folder, self.spec.hash, session)
        recorder.write(session)
        finish = {
            identity: Request("finish", {"round": recorder.selected_round(session, position), "point": recorder.point})
            for position, identity in enumerate(session.members)
        }
        self.registry.exchange(session, finish, log)
        log.write_traffic()
        return session


def _are_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two downloads have the same bits."""
    return [*a] == [*b] and all(torch.equal(a[name], b[name]) for name in a)
