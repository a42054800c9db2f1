"""Progress of the stages of a submission, and the commit of their results to DVC."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedweave.errors import BadInput
from fedweave.study.spec import PARAMS

from .. import paths, project
from . import remote_stages, stage_tasks, submissions
from .slurm import NEVER, JobState
from .stage_jobs import Outcome, StageTask, digest, read_outcome
from .submissions import Submission, SubmittedJob

ROUND = re.compile(r"seed (\d+): round (\d+)/(\d+)")
TAIL_BYTES = 65536  # bytes at the end of a log that are searched for rounds
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"}


class StageProgress(NamedTuple):
    """A stage of a submission.

    Attributes:
        job: the task and its job.
        state: finished, failed, ended, running or waiting; "ended" is without an outcome.
        detail: node, rounds, reason or error.
        outcome: the result, or None where there is none.
    """

    job: SubmittedJob
    state: str
    detail: str
    outcome: Outcome | None


def progress(submission: Submission) -> list[StageProgress]:
    states = submission.states()  # before the outcomes are read: a job that ends in between has an outcome
    return [_progress(submission, job, states.get(job.job)) for job in submission.jobs]


def _progress(submission: Submission, job: SubmittedJob, state: JobState | None) -> StageProgress:
    outcome, active = read_outcome(job.task), state is not None and state.is_active
    if outcome and not outcome.code:
        restarts = f", restarts: {outcome.restarts}" if outcome.restarts else ""
        detail = f"{outcome.node}, {outcome.seconds:.0f} s, {outcome.mib:.0f} MiB{restarts}"
        return StageProgress(job, "finished", detail, outcome)
    if outcome and not active:
        return StageProgress(job, "failed", outcome.message, outcome)
    if state is not None and active:
        waiting = state.name in WAITING
        detail = state.reason if waiting else f"{state.node} {_rounds(submission, job)}".strip()
        return StageProgress(job, "waiting" if waiting else "running", detail, None)
    if state is None:
        reason = "not in the queue"
    else:
        reason = "a stage that it needs failed" if state.reason == NEVER else state.name
    return StageProgress(job, "ended", f"without an outcome ({reason}); log: {log_file(submission, job)}", None)


def log_file(submission: Submission, job: SubmittedJob) -> Path:
    return submission.folder / "jobs" / f"{job.job}_0_log.out"


def _rounds(submission: Submission, job: SubmittedJob) -> str:
    """The last round of every repetition in the log of a job, as text."""
    try:
        with log_file(submission, job).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    rounds = {seed: f"{done}/{total}" for seed, done, total in ROUND.findall(text)}
    return ", ".join(f"seed {seed}: round {done}" for seed, done in sorted(rounds.items()))


class CollectionResult(NamedTuple):
    """What `collect` did: committed stages, lines about failed ones, and stages that still wait or run."""

    committed: list[str]
    failed: list[str]
    active: list[str]


def collect(submission: Submission) -> CollectionResult:
    """Commit every stage that has succeeded, under one lock of DVC; stages that failed can be submitted again.

    Raises:
        BadInput: params.yaml holds another study.
    """
    study = paths.current_study()
    if study != submission.study:
        raise BadInput(
            f"{PARAMS}: study: {study!r}, but {submission.study!r} is to be collected; "
            f"switch first: fedweave study use {submission.study}"
        )
    rows = progress(submission)
    finished = {row.job.task.stage: row for row in rows if row.state == "finished"}
    committed, refused = commit([row.job.task for row in finished.values()])
    failed = [f"{row.job.task.stage}: {row.detail}" for row in rows if row.state in ("failed", "ended")]
    active = [row.job for row in rows if row.state in ("running", "waiting")]
    submissions.close(submission, active)
    return CollectionResult(committed, [*failed, *refused], [job.task.stage for job in active])


def commit(tasks: Sequence[StageTask]) -> tuple[list[str], list[str]]:
    """Commit the outputs of `tasks` to DVC under one lock; returns (stages, lines about outputs that are refused)."""
    from dvc.repo import lock_repo

    refused, committed = [], []
    logging.getLogger("dvc").setLevel(logging.WARNING)  # it has a line for every stage
    with remote_stages.WRITER, project.repository(wait=True) as repo, lock_repo(repo):
        graph = {stage.addressing: stage for stage in repo.index.stages}
        for task in tasks:
            stage = graph.get(task.stage)
            reason = "it is no longer in dvc.yaml" if stage is None else _refusal_reason(stage, task)
            if reason:
                refused.append(f"{task.stage}: {reason}; its outputs are not accepted, submit it again")
            else:
                committed.append(task.stage)
        for name in committed:
            repo.commit(name, force=True)
    return committed, refused


def _refusal_reason(stage: object, task: StageTask) -> str:
    """Why the outputs of `task` do not belong to the stage as it is now; empty if they do."""
    outcome = read_outcome(task)
    if outcome is None or outcome.code:
        return "it has not succeeded"
    if stage_tasks.definition_digest(stage) != task.definition:
        return "its command or its parameters in params.yaml changed while it ran"
    for path, expected in (*outcome.inputs.items(), *outcome.outputs.items()):
        if not Path(path).exists() or digest(Path(path)) != expected:
            return f"{path} changed while it ran or after it"
    return ""
