"""Submission of tasks as jobs, by submitit: array jobs of SLURM, or one process of this machine."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError

from fedweave.errors import BadInput

from . import slurm
from .planning import group_by_resources
from .resources import FILE, Cluster, Resources
from .stage_jobs import StageJob, StageTask

SBATCH_ERROR = re.compile(r"error: (.*)")
NAME = "fedweave"  # of the jobs in the queue
SIGNAL = 60  # seconds before its time limit at which a job gets a signal to stop


def submit(
    cluster: Cluster,
    tasks: Mapping[str, StageTask],
    needs: Mapping[str, Sequence[str]],
    kinds: Mapping[str, tuple[str, str]],
    folder: Path,
    record: Callable[[dict[str, str]], None],
) -> None:
    """Submit `tasks`; a task waits for those that it `needs`.

    Args:
        needs: stage -> stages among `tasks`, in an order in which they can run.
        kinds: stage -> (kind of stage, method), such as ("train", "ditto").
        folder: for the files of submitit, logs included.
        record: stores the job of every stage that was submitted; called after every array.

    Raises:
        BadInput: SLURM refuses an array; what was submitted before it is cancelled.
    """
    resources = {name: cluster.resources(*kinds[name]) for name in tasks}
    if cluster.executor == "local":
        record(_submit_local([tasks[name] for name in needs], list(resources.values()), folder))
        return
    resource_keys = {name: json.dumps(asdict(requested), sort_keys=True) for name, requested in resources.items()}
    jobs: dict[str, str] = {}
    for names in group_by_resources(tasks, needs, resource_keys):
        executor = submitit.SlurmExecutor(folder, max_num_timeout=cluster.requeues)
        executor.update_parameters(
            **_parameters(cluster, resources[names[0]], [jobs[need] for need in needs[names[0]]])
        )
        try:
            with redirect_stderr(io.StringIO()):  # submitit also prints what it raises
                numbers = [job.job_id for job in executor.submit_array([StageJob([tasks[name]]) for name in names])]
        except FailedJobError as error:
            with suppress(BadInput):
                slurm.cancel("slurm", list(jobs.values()))
                record({})
            errors = SBATCH_ERROR.findall(str(error))
            raise BadInput(
                f"{FILE}: sbatch refuses {names[0]}: {' '.join(errors) or error}; correct it there"
            ) from error
        jobs = {**jobs, **dict(zip(names, numbers, strict=True))}
        record(jobs)


def _submit_local(tasks: Sequence[StageTask], resources: Sequence[Resources], folder: Path) -> dict[str, str]:
    """Run all tasks in one process of this machine, one after another; returns stage -> its number."""
    executor = submitit.LocalExecutor(folder)
    gpus = max(requested.gpus for requested in resources)
    executor.update_parameters(
        timeout_min=sum(requested.minutes for requested in resources), gpus_per_node=gpus, signal_delay_s=SIGNAL
    )
    number = executor.submit(StageJob(tasks)).job_id
    return {task.stage: number for task in tasks}


def _parameters(cluster: Cluster, resources: Resources, dependencies: Sequence[str]) -> dict[str, Any]:
    """The settings of an array job under submitit's names."""
    flags: dict[str, Any] = {"requeue": True, "kill-on-invalid-dep": "yes", **resources.sbatch_flags}
    if resources.mem:
        flags["mem"] = resources.mem
    settings: dict[str, Any] = {
        "job_name": NAME,
        "time": resources.minutes,
        "cpus_per_task": resources.cpus,
        "array_parallelism": cluster.parallel,
        "stderr_to_stdout": True,
        "signal_delay_s": SIGNAL,
        "additional_parameters": flags,
    }
    optional = {
        "partition": resources.partition,
        "gpus_per_node": resources.gpus or None,
        "setup": list(cluster.setup) or None,
        "dependency": f"afterok:{':'.join(sorted(set(dependencies)))}" if dependencies else None,
    }
    return settings | {name: value for name, value in optional.items() if value is not None}
