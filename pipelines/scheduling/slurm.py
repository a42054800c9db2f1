"""Queries to SLURM: whether it takes a request, before a submission, and states of jobs after it."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from fedweave.errors import BadInput

from .resources import FILE, Cluster, Resources, minutes

HOST_HINT = f"go to a login node of the cluster, or set executor: local in {FILE} for a trial on this machine"
ANSWER_TIMEOUT = 120  # seconds for an answer of the controller
# States of a job that will run, or run again; every other one is an end.
ACTIVE = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "PREEMPTED",
    "SPECIAL_EXIT",
}
NEVER = "DependencyNeverSatisfied"


class JobState(NamedTuple):
    """A job in the queue: SLURM's name of its state, its host, and why it waits."""

    name: str
    node: str = ""
    reason: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it runs or will run."""
        return self.name in ACTIVE and self.reason != NEVER


def run_program(*command: str) -> str:
    """Run one of SLURM's programs; returns what it prints.

    Raises:
        BadInput: it is not installed, or the controller does not answer.
    """
    process = _run(*command)
    if process.returncode:
        raise BadInput(f"{command[0]}: {process.stderr.strip()}; see: scontrol ping")
    return process.stdout


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which(command[0]) is None:
        raise BadInput(f"{command[0]}: not found, so this is not a host of a SLURM cluster; {HOST_HINT}")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise BadInput(
            f"{command[0]}: no answer within {ANSWER_TIMEOUT} s; try again, or see: scontrol ping"
        ) from error


def check(cluster: Cluster, kinds: Iterable[tuple[str, str]]) -> None:
    """Refuse resources that no node has, before anything runs: `sbatch` tries each request without a submission.

    Args:
        kinds: (stage, method) of the tasks, for example ("train", "ditto").

    Raises:
        BadInput: this is no host of a SLURM cluster, or a request is refused.
    """
    tried: list[Resources] = []
    for stage, method in sorted(set(kinds)):
        resources = cluster.resources(stage, method)
        if resources in tried:
            continue
        tried.append(resources)
        options = {"cpus-per-task": resources.cpus, "time": resources.minutes, "mem": resources.mem}
        options |= {"partition": resources.partition, "gpus-per-node": resources.gpus or None, **resources.sbatch_flags}
        given = {name: value for name, value in options.items() if value is not None}
        words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]
        process = _run("sbatch", "--test-only", *words, "--wrap=true")
        reason = "; ".join(line.removeprefix("sbatch: error: ") for line in process.stderr.splitlines())
        if reason := reason if process.returncode else _time_error(resources):
            task = " of ".join(filter(None, (stage, method)))
            raise BadInput(f"{FILE}: sbatch refuses {task} with {' '.join(words)}", f"{reason}; correct it there")


def _time_error(resources: Resources) -> str:
    """Why the job would wait for ever: sbatch takes a time beyond the limit of every partition; else empty."""
    rows = [line.split("|") for line in run_program("sinfo", "--noheader", "--format=%P|%l").splitlines()]
    named = resources.partition.split(",") if resources.partition else [name for name, _ in rows if name[-1] == "*"]
    limits = [minutes(limit) for name, limit in rows if name in named or name.rstrip("*") in named]
    longest = max((float("inf") if limit is None else limit for limit in limits), default=float("inf"))
    return f"the limit of the partition is {longest:.0f} minutes" if resources.minutes > longest else ""


def states(executor: str, jobs: Iterable[str]) -> dict[str, JobState]:
    """Job -> its state, without jobs that the cluster does not know any more."""
    known = set(jobs)
    if executor == "local":
        return {job: JobState("RUNNING") for job in known if _is_running(job)}
    options = ("--array", "--states=all", "--noheader", "--format=%i|%T|%N|%r")
    lines = run_program("squeue", f"--user={os.getuid()}", *options).splitlines() if known else ()
    rows = (line.split("|", 3) for line in lines)
    return {job: JobState(name, node, reason) for job, name, node, reason in rows if job in known}


def cancel(executor: str, jobs: Sequence[str]) -> None:
    """End jobs, whether they wait or run."""
    if executor == "local":
        for job in set(jobs):
            _end(job)
    elif jobs:
        run_program("scancel", "--quiet", *sorted(set(jobs)))  # quiet: a job that has just ended is not an error


def _is_running(process: str) -> bool:
    """Whether the process with this number is a controller of submitit's local executor: numbers are used again."""
    try:
        controller = psutil.Process(int(process))
        return controller.status() != psutil.STATUS_ZOMBIE and "submitit.local._local" in controller.cmdline()
    except psutil.Error:
        return False


def _end(process: str) -> None:
    """End a controller and what it has started."""
    if not _is_running(process):
        return
    with suppress(psutil.NoSuchProcess):  # it has just ended
        controller = psutil.Process(int(process))
        tree = [controller, *controller.children(recursive=True)]
        for member in tree:
            with suppress(psutil.NoSuchProcess):  # stages end with the process that started them
                member.kill()
        psutil.wait_procs(tree, 10)
