"""A study on its way through a cluster: what was submitted, in files under .fedweave/cluster, and how it gets there.

Nothing runs between `submit` and `collect` on the login node: the queue is SLURM's, outcomes are files.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedweave.errors import BadInput
from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import search_path
from fedweave.pipelines.scheduling import planning, resources, slurm, stage_tasks
from fedweave.pipelines.scheduling.dvc_graph import stale_stages
from fedweave.study.config import read_yaml
from fedweave.study.spec import PARAMS

if TYPE_CHECKING:
    from fedweave.pipelines.scheduling.stage_jobs import StageTask

FOLDER = paths.STATE / "cluster"


class Job(NamedTuple):
    """A task and the number of its job."""

    task: "StageTask"
    job: str


@dataclass(frozen=True)
class Submission:
    """What was submitted of a study.

    Attributes:
        study: its name.
        executor: "slurm" or "local".
        jobs: every task with its job.
    """

    study: str
    executor: str
    jobs: tuple[Job, ...]

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return submission_folder(self.study)

    def states(self) -> dict[str, slurm.JobState]:
        """Job -> what the queue says of it, where it still knows it."""
        return slurm.states(self.executor, {job.job for job in self.jobs})

    def cancel(self) -> list[str]:
        """End the jobs that wait or run; returns their stages."""
        states = self.states()
        active = [job for job in self.jobs if job.job in states and states[job.job].is_active]
        slurm.cancel(self.executor, [job.job for job in active])
        return [job.task.stage for job in active]

    def save(self) -> None:
        """Write the record; without jobs there is none."""
        if not self.jobs:
            (self.folder / "submission.json").unlink(missing_ok=True)
            return
        jobs = [{"job": job.job, **asdict(job.task)} for job in self.jobs]
        content = {"study": self.study, "executor": self.executor, "jobs": jobs}
        write_atomic(self.folder / "submission.json", json.dumps(content, indent=1) + "\n")


def submission_folder(study: str) -> Path:
    """The folder of a study's submission."""
    return FOLDER / study.replace("/", "__")


def load(study: str) -> Submission | None:
    """The open submission of `study`, or None.

    Raises:
        BadInput: its record is damaged.
    """
    from fedweave.pipelines.scheduling.stage_jobs import StageTask

    file = submission_folder(study) / "submission.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = [(row.pop("job"), StageTask(**{**row, "outputs": tuple(row["outputs"])})) for row in content["jobs"]]
        return Submission(content["study"], content["executor"], tuple(Job(task, job) for job, task in rows))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"{file}: is damaged ({type(error).__name__}); end its jobs (scancel), delete {file.parent}, submit again"
        ) from error


def studies() -> list[str]:
    """The studies with an open submission.

    Raises:
        BadInput: a record is damaged.
    """
    names = [record.parent.name.replace("__", "/") for record in sorted(FOLDER.glob("*/submission.json"))]
    return [one.study for one in map(load, names) if one]


def submit(cluster: resources.Cluster, targets: Sequence[str] = ()) -> Submission | None:
    """Bring what training needs up to date here, then submit every stale stage of the cluster; None if there is none.

    Args:
        cluster: cluster.yaml.
        targets: only these stages and what they depend on; default: all.

    Raises:
        BadInput: the study is on its way already, asks for what the cluster does not have, or a stage that runs here
            failed.
    """
    params = read_yaml(PARAMS)
    study = str(params["study"])
    check_none_open(study)
    before, away = planning.split(stale_stages(targets), params)
    kinds = {stage.name: planning.kind(stage.name, params) for stage in away}
    if cluster.executor == "slurm" and away:
        slurm.check(cluster, kinds.values())
    if before:
        _reproduce([stage.name for stage in before])
        away = planning.split(stale_stages(targets), params)[1]
    if not away:
        return None
    shutil.rmtree(submission_folder(study), ignore_errors=True)
    tasks = stage_tasks.create_tasks(away, submission_folder(study), cluster.retries)
    from fedweave.pipelines.scheduling import batches

    def record(numbers: dict[str, str]) -> None:
        Submission(study, cluster.executor, tuple(Job(tasks[name], job) for name, job in numbers.items())).save()

    needs = {stage.name: stage.needs for stage in away}
    batches.submit(cluster, tasks, needs, kinds, submission_folder(study) / "jobs", record)
    return load(study)


def check_none_open(study: str) -> None:
    """Refuse a second submission beside an open one.

    Raises:
        BadInput: the study has one.
    """
    if open_one := load(study):
        states = open_one.states()
        active = sum(job.job in states and states[job.job].is_active for job in open_one.jobs)
        way = f"{active} wait or run: let them end, or fedweave cluster cancel {study}" if active else "all have ended"
        raise BadInput(
            f"{study}: {len(open_one.jobs)} stages are submitted and not collected, {way}; "
            f"then: fedweave cluster collect {study}"
        )


def _reproduce(names: Sequence[str]) -> None:
    """Run stages here, by DVC, without what they depend on and is current."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", *names]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": search_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stdout.splitlines()
        line = next((line for line in lines if line.lower().startswith("error: ")), done.stdout[-300:])
        raise BadInput(f"{line[7:]}; a stage before training failed, nothing was submitted; run it alone: dvc repro")


def wait(submission: Submission, seconds: float) -> None:
    """Return when no job of it is active any more; looks every `seconds`."""
    while any(state.is_active for state in submission.states().values()):
        time.sleep(seconds)


def close(submission: Submission, open_jobs: Sequence[Job]) -> None:
    """Keep `open_jobs` only; without any, the record goes, and the logs stay."""
    replace(submission, jobs=tuple(open_jobs)).save()
    if not open_jobs:
        shutil.rmtree(submission.folder / "project", ignore_errors=True)
