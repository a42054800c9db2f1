"""The part of a flow that runs on a cluster: submit it as `fedweave cluster submit` does, follow it, and collect it."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from fedweave.errors import BadInput, format_count

from . import host, resources, submissions
from .artifacts import FlowProgress
from .submissions import Submission

if TYPE_CHECKING:
    from .collection import StageProgress

POLL = 10.0  # seconds between two queries of the queue


@task(task_run_name="{study} on the cluster", cache_policy=NO_CACHE, persist_result=False)
def run_on_cluster(study: str, targets: Sequence[str] = ()) -> int:
    """Submit the stale stages, or continue the submission of an earlier flow; wait for them and commit them.

    A flow that is cancelled cancels its jobs. While the queue gives no answer, the jobs continue. Returns the number of
    stages that were committed.

    Raises:
        RuntimeError: a stage did not succeed.
    """
    from . import collection

    submission = submissions.load(study) or submissions.submit(resources.load(), targets)
    if submission is None:
        return 0
    try:
        _follow(submission)
    except BaseException:
        submission.cancel()
        raise
    result = collection.collect(submission)
    if result.failed:
        raise RuntimeError(
            f"{format_count(len(result.failed), 'stage')} did not succeed on the cluster: {' | '.join(result.failed)}"
        )
    return len(result.committed)


def _follow(submission: Submission) -> None:
    """Log every change and move the bar until no job is active."""
    logger = get_run_logger()
    bar = FlowProgress("cluster", f"stages of {submission.study} on the cluster")
    last_counts = Counter[str]()
    last_states: dict[str, str] = {}
    while True:
        rows = _query_progress(submission)
        for row in rows:
            if last_states.get(row.job.task.stage) != row.state:
                last_states[row.job.task.stage] = row.state
                logger.info("%s (job %s): %s %s", row.job.task.stage, row.job.job, row.state, row.detail)
        counts = Counter(row.state for row in rows)
        if counts != last_counts:
            bar.update(counts["finished"] / len(rows))
            last_counts = counts
        if not counts["running"] + counts["waiting"]:
            return
        host.current_resources().children.pause(POLL)


def _query_progress(submission: Submission) -> "list[StageProgress]":
    """The progress of every job, as soon as the queue answers: its controller may be down for some time."""
    from . import collection

    while True:
        try:
            return collection.progress(submission)
        except BadInput as error:
            get_run_logger().warning("%s; the jobs continue, and the next query is in %g s", error, POLL)
            host.current_resources().children.pause(POLL)
