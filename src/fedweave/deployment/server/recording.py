"""What the server writes: the history of the run, and the result files that the board and the report read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedweave import results
from fedweave.deployment.server.checkpoint import Session
from fedweave.deployment.wire.messages import Reply
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine.accounting import Accountant
from fedweave.engine.evaluation import diagnose, portray
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, State
from fedweave.runs import archive
from fedweave.runs.build import PreparedRun
from fedweave.runs.history import SPLITS, record, select_rows
from fedweave.study import objects

NO_PREDICTIONS = "none: models and predictions stay on the nodes"


@dataclass(frozen=True, eq=False)
class RunRecorder:
    """Records a federation.

    Attributes:
        spec: of the federation.
        folder: of the server; results go to results/<study> in it.
    """

    spec: AppSpec
    folder: Path

    @cached_property
    def point(self) -> str:
        """The evaluation point that is reported."""
        return objects.evaluation_point(self.spec.run)

    def prepared_run(self, session: Session) -> PreparedRun:
        """The run as files of results describe it, without data."""
        placeholder, spec = self.spec.placeholder(session.members), self.spec
        names = spec.member_names(session.members)
        description = (spec.data["note"], names, spec.group_names, spec.member_units(session.members))
        return PreparedRun(spec.run, spec.method, placeholder, Loop(), spec.settings, "cpu", self.point, *description)

    def _run_without_models(self, session: Session) -> PreparedRun:
        """As `prepared_run`, but without models, which are on the nodes."""
        prepared = self.prepared_run(session)
        evaluate = replace(prepared.run.evaluate, models=False, predictions=False)
        return replace(prepared, run=replace(prepared.run, evaluate=evaluate))

    def record_round(self, session: Session, replies: Mapping[int, Reply | str]) -> Session:
        """`session` with its last round recorded; scores are in the replies where they were due."""
        last = session.last
        if not last:
            return session
        stage, _ = self.spec.timeline.stage(session.round - 1)
        numbers, scores, vectors = {}, {}, None
        if last["due"]:
            placeholder = self.spec.placeholder(session.members)
            scores = _scores(session, replies, placeholder.sample.tolist())
            numbers = diagnose(stage.method, session.server, placeholder)
            vectors = portray(stage.method, session.server, placeholder)
            numbers |= Accountant(self.spec.timeline).privacy_loss(session.round)
        state = State(session.round, session.server, {})
        report = Report(
            session.round,
            last["bytes_down"],
            last["bytes_up"],
            last["seconds"],
            last["loss"],
            tuple(last["dropped"]),
            scores,
            {},
            numbers,
            state,
            stage.method,
            portrait=vectors,
        )
        return replace(session, history=record(session.history, report, self._run_without_models(session)), last={})

    def selected_round(self, session: Session, position: int) -> int:
        """The round that is reported for a member, by the evaluations so far; 0 before the first one."""
        rounds = session.history.rounds
        if not rounds:
            return 0
        rows = select_rows(session.history, self._run_without_models(session))
        if rows is None:  # no round has a score of every client
            return rounds[-1]
        sample = self.spec.evaluated_positions(session.members)
        row = sample.index(position) if position in sample else len(rows)
        return rounds[int(rows[row])] if row < len(rows) else rounds[-1]

    def progress_line(self, session: Session) -> str:
        """One line about the last round."""
        last, total = session.last, self.spec.timeline.rounds
        dropped = f", without clients {', '.join(map(str, last['dropped']))}" if last["dropped"] else ""
        return f"{self.spec.run.key}: round {session.round}/{total}, loss {last['loss']:.4g}{dropped}"

    def write(self, session: Session) -> Path:
        """Write results/<study>/runs/<run> and the tables of the study; returns its folder."""
        study = self.folder / "results" / self.spec.run.study
        evaluated = [session.members[position] for position in self.spec.evaluated_positions(session.members)]
        rules = {
            name: [values.get(str(identity), float("nan")) for identity in evaluated]
            for name, values in session.controls.items()
        }
        facts: dict[str, Any] = {"controls": rules, "predictions": NO_PREDICTIONS, "federation": self.spec.hash}
        histories = {self.spec.seed: session.history}
        archive.write(study / "runs" / self.spec.run.key, self.prepared_run(session), histories, facts)
        results.write(study, None)
        return study


def _scores(
    session: Session, replies: Mapping[int, Reply | str], evaluated: list[int]
) -> dict[str, dict[str, torch.Tensor]]:
    """{"pre" | "post": {"val" | "test": value of each evaluated member [K]}}; NaN for those that did not answer."""
    scores: dict[str, dict[str, torch.Tensor]] = {}
    answered = [replies.get(session.members[position], "offline") for position in evaluated]
    for point, part in SPLITS:
        name, missing = f"{point}/{part}", float("nan")
        values = [missing if isinstance(reply, str) else reply.config.get(name, missing) for reply in answered]
        scores.setdefault(point, {})[part] = torch.tensor(values, dtype=torch.float64)
    return scores
