"""The part of a flow that runs on a cluster: submitted as `fedweave cluster submit` does, followed, and collected."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import host, resources, submissions
from fedweave.pipelines.scheduling.artifacts import ProgressBar
from fedweave.pipelines.scheduling.submissions import Submission

if TYPE_CHECKING:
    from fedweave.pipelines.scheduling.collection import StageProgress

POLL = 10.0  # seconds between two looks at the queue


@task(task_run_name="{study} on the cluster", cache_policy=NO_CACHE, persist_result=False)
def run_on_cluster(study: str, targets: Sequence[str] = ()) -> int:
    """Submit what is stale, or go on with what an earlier flow submitted; wait for it and commit it.

    A flow that is cancelled cancels its jobs. While the queue gives no answer, they go on. Returns the number of stages
    that were committed.

    Raises:
        RuntimeError: a stage did not succeed.
    """
    from fedweave.pipelines.scheduling import collection

    submission = submissions.load(study) or submissions.submit(resources.load(), targets)
    if submission is None:
        return 0
    try:
        _follow(submission)
    except BaseException:
        submission.cancel()
        raise
    done = collection.collect(submission)
    if done.failed:
        raise RuntimeError(f"{len(done.failed)} stages did not succeed on the cluster: {' | '.join(done.failed)}")
    return len(done.committed)


def _follow(submission: Submission) -> None:
    """Log every change and move the bar until no job is active."""
    logger, bar, seen = (
        get_run_logger(),
        ProgressBar("cluster", f"stages of {submission.study} on the cluster"),
        Counter[str](),
    )
    known: dict[str, str] = {}
    while True:
        rows = _query_progress(submission)
        for row in rows:
            if known.get(row.job.task.stage) != row.state:
                known[row.job.task.stage] = row.state
                logger.info("%s (job %s): %s %s", row.job.task.stage, row.job.job, row.state, row.detail)
        counts = Counter(row.state for row in rows)
        if counts != seen:
            bar.update(counts["finished"] / len(rows))
            seen = counts
        if not counts["running"] + counts["waiting"]:
            return
        host.current_resources().children.pause(POLL)


def _query_progress(submission: Submission) -> "list[StageProgress]":
    """The state of every job, as soon as the queue says it: its controller may be away for some time."""
    from fedweave.pipelines.scheduling import collection

    while True:
        try:
            return collection.progress(submission)
        except BadInput as error:
            get_run_logger().warning("%s; the jobs go on, and the next look is in %g s", error, POLL)
            host.current_resources().children.pause(POLL)
