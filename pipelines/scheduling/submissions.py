"""Submissions of studies to a cluster, and their records under .fedweave/cluster.

Between `submit` and `collect` nothing runs on the login node: SLURM has the queue, and outcomes are files.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import hold_lock, read_json, write_json
from fedweave.study.config import read_yaml
from fedweave.study.spec import PARAMS

from .. import paths
from ..processes import search_path
from . import planning, resources, slurm, stage_tasks
from .dvc_graph import stale_stages

if TYPE_CHECKING:
    from .stage_jobs import StageTask

FOLDER = paths.STATE / "cluster"


class SubmittedJob(NamedTuple):
    """A task and the number of its job."""

    task: "StageTask"
    job: str


@dataclass(frozen=True)
class Submission:
    """The stages of a study that were submitted.

    Attributes:
        study: its name.
        executor: "slurm" or "local".
        jobs: every task with its job.
    """

    study: str
    executor: str
    jobs: tuple[SubmittedJob, ...]

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return submission_folder(self.study)

    def states(self) -> dict[str, slurm.JobState]:
        """Job -> its state, for the jobs that the queue still knows."""
        return slurm.states(self.executor, {job.job for job in self.jobs})

    def active_jobs(self) -> list[SubmittedJob]:
        """The jobs that wait or run."""
        states = self.states()
        return [job for job in self.jobs if job.job in states and states[job.job].is_active]

    def cancel(self) -> list[str]:
        """End the jobs that wait or run; returns their stages."""
        active = self.active_jobs()
        slurm.cancel(self.executor, [job.job for job in active])
        return [job.task.stage for job in active]

    def save(self) -> None:
        """Write the record; remove it if no jobs are left."""
        if not self.jobs:
            (self.folder / "submission.json").unlink(missing_ok=True)
            return
        jobs = [{"job": job.job, **asdict(job.task)} for job in self.jobs]
        content = {"study": self.study, "executor": self.executor, "jobs": jobs}
        write_json(self.folder / "submission.json", content)


def submission_folder(study: str) -> Path:
    return FOLDER / study.replace("/", "__")


def load(study: str) -> Submission | None:
    """The open submission of `study`, or None; a damaged record is refused."""
    from .stage_jobs import StageTask

    def parse(content: Mapping[str, Any]) -> Submission:
        rows = [(row.pop("job"), StageTask(**{**row, "outputs": tuple(row["outputs"])})) for row in content["jobs"]]
        return Submission(content["study"], content["executor"], tuple(SubmittedJob(task, job) for job, task in rows))

    file = submission_folder(study) / "submission.json"
    if not file.is_file():
        return None
    return read_json(file, f"end its jobs (scancel), delete {file.parent}, submit again", parse)


def studies() -> list[str]:
    """The studies with an open submission; a damaged record is refused."""
    names = [record.parent.name.replace("__", "/") for record in sorted(FOLDER.glob("*/submission.json"))]
    return [submission.study for submission in map(load, names) if submission]


def submit(cluster: resources.Cluster, targets: Sequence[str] = ()) -> Submission | None:
    """Run here the stages that training needs, then submit every stale stage of the cluster; None if there is none.

    Args:
        targets: only these stages and what they depend on; default: all.

    Raises:
        BadInput: the study is already submitted or being submitted, requests more than the cluster has, or a stage
            that runs here failed.
    """
    params = read_yaml(PARAMS)
    with _lock(str(params["study"])):
        return _submit(cluster, params, targets)


@contextmanager
def _lock(study: str) -> Iterator[None]:
    """Refuse a second submission of `study` while one is being made: it would remove the files of its jobs."""
    way = f"wait until it has ended, then: fedweave cluster status {study}"
    busy = BadInput(f"{study}: another command is submitting it; {way}")
    with hold_lock(submission_folder(study).with_name(f"{submission_folder(study).name}.lock"), busy):
        yield


def _submit(cluster: resources.Cluster, params: dict[str, Any], targets: Sequence[str]) -> Submission | None:
    study = str(params["study"])
    check_none_open(study)
    before, stages = planning.split(stale_stages(targets), params)
    kinds = {stage.name: planning.kind(stage.name, params) for stage in stages}
    if cluster.executor == "slurm" and stages:
        slurm.check(cluster, kinds.values())
    if before:
        _reproduce([stage.name for stage in before])
        stages = planning.split(stale_stages(targets), params)[1]
    if not stages:
        return None
    shutil.rmtree(submission_folder(study), ignore_errors=True)
    tasks = stage_tasks.create_tasks(stages, submission_folder(study), cluster.retries)
    from . import batches

    def record(numbers: dict[str, str]) -> None:
        Submission(
            study, cluster.executor, tuple(SubmittedJob(tasks[name], job) for name, job in numbers.items())
        ).save()

    needs = {stage.name: stage.needs for stage in stages}
    batches.submit(cluster, tasks, needs, kinds, submission_folder(study) / "jobs", record)
    return load(study)


def check_none_open(study: str) -> None:
    """Refuse a second submission beside an open one."""
    if submission := load(study):
        active = len(submission.active_jobs())
        way = f"{active} wait or run: let them end, or fedweave cluster cancel {study}" if active else "all have ended"
        count = len(submission.jobs)
        stages = f"{format_count(count, 'stage')} {'is' if count == 1 else 'are'}"
        raise BadInput(f"{study}: {stages} submitted and not collected, {way}; then: fedweave cluster collect {study}")


def _reproduce(names: Sequence[str]) -> None:
    """Run the stages `names` here, by DVC."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", *names]
    process = subprocess.run(
        command,
        env={**os.environ, "PATH": search_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode:
        lines = process.stdout.splitlines()
        errors = (line[len("error: ") :] for line in lines if line.lower().startswith("error: "))
        reason = next(errors, lines[-1] if lines else f"exit code {process.returncode}")
        raise BadInput(f"{reason}; a stage before training failed, nothing was submitted; run it alone: dvc repro")


def wait(submission: Submission, seconds: float) -> None:
    """Wait until no job of `submission` is active; queries the queue every `seconds`."""
    while submission.active_jobs():
        time.sleep(seconds)


def close(submission: Submission, open_jobs: Sequence[SubmittedJob]) -> None:
    """Keep only `open_jobs` in the record; without any, remove the record and the snapshot. The logs stay."""
    replace(submission, jobs=tuple(open_jobs)).save()
    if not open_jobs:
        shutil.rmtree(submission.folder / "project", ignore_errors=True)
