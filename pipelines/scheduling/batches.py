"""Tasks into jobs, by submitit: arrays of SLURM, or one process of this machine."""

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
from fedweave.pipelines.scheduling import slurm
from fedweave.pipelines.scheduling.planning import group_by_resources
from fedweave.pipelines.scheduling.resources import FILE, Cluster, Resources
from fedweave.pipelines.scheduling.stage_jobs import StageJob, StageTask

SAID = re.compile(r"error: (.*)")
NAME = "fedweave"  # of the jobs in the queue
SIGNAL = 60  # seconds before the limit of time at which a job is asked to stop


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
        cluster: cluster.yaml.
        tasks: by stage.
        needs: stage -> stages among `tasks`, in an order in which they can run.
        kinds: stage -> (`train`, method).
        folder: for the files of submitit, logs included.
        record: keeps the number of the job of every stage that was submitted; called after every array.

    Raises:
        BadInput: SLURM refuses an array; what was submitted before it is cancelled.
    """
    asked = {name: cluster.resources(*kinds[name]) for name in tasks}
    if cluster.executor == "local":
        record(_submit_local([tasks[name] for name in needs], list(asked.values()), folder))
        return
    keys = {name: json.dumps(asdict(one), sort_keys=True) for name, one in asked.items()}
    jobs: dict[str, str] = {}
    for names in group_by_resources(tasks, needs, keys):
        executor = submitit.SlurmExecutor(folder, max_num_timeout=cluster.requeues)
        executor.update_parameters(**_parameters(cluster, asked[names[0]], [jobs[need] for need in needs[names[0]]]))
        try:
            with redirect_stderr(io.StringIO()):  # submitit repeats there what it raises
                numbers = [job.job_id for job in executor.submit_array([StageJob([tasks[name]]) for name in names])]
        except FailedJobError as error:
            with suppress(BadInput):
                slurm.cancel("slurm", list(jobs.values()))
                record({})
            said = SAID.findall(str(error))
            raise BadInput(f"{FILE}: sbatch refuses {names[0]}: {' '.join(said) or error}; correct it there") from error
        jobs = {**jobs, **dict(zip(names, numbers, strict=True))}
        record(jobs)


def _submit_local(tasks: Sequence[StageTask], asked: Sequence[Resources], folder: Path) -> dict[str, str]:
    """One process of this machine runs all tasks, one after another."""
    executor = submitit.LocalExecutor(folder)
    gpus = max(one.gpus for one in asked)
    executor.update_parameters(timeout_min=sum(one.minutes for one in asked), gpus_per_node=gpus, signal_delay_s=SIGNAL)
    number = executor.submit(StageJob(tasks)).job_id
    return {task.stage: number for task in tasks}


def _parameters(cluster: Cluster, asked: Resources, after: Sequence[str]) -> dict[str, Any]:
    """The settings of an array in submitit's words."""
    further: dict[str, Any] = {"requeue": True, "kill-on-invalid-dep": "yes", **asked.flags}
    if asked.gib:
        further["mem"] = f"{max(1, round(asked.gib * 1024))}M"
    settings: dict[str, Any] = {
        "job_name": NAME,
        "time": asked.minutes,
        "cpus_per_task": asked.cpus,
        "array_parallelism": cluster.parallel,
        "stderr_to_stdout": True,
        "signal_delay_s": SIGNAL,
        "additional_parameters": further,
    }
    optional = {
        "partition": asked.partition,
        "gpus_per_node": asked.gpus or None,
        "setup": list(cluster.setup) or None,
        "dependency": f"afterok:{':'.join(sorted(set(after)))}" if after else None,
    }
    return settings | {name: value for name, value in optional.items() if value is not None}
