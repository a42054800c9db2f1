"""Queries to SLURM: partitions and nodes before a submission, states of jobs after it."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from fedweave.errors import BadInput, choose, format_value

from .resources import FILE, Cluster, Resources, minutes

PROGRAMS = ("sbatch", "squeue", "sinfo", "scancel")
HOST_HINT = f"go to a login node of the cluster, or set executor: local in {FILE} for a trial on this machine"
CHECKED_SETTINGS = ("partition", "cpus", "memory", "gpus", "time")  # compared with what the nodes have
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


class NodeGroup(NamedTuple):
    """Equal nodes of a partition: cores, memory [MiB] and GPUs of one, and the partition's limit of time [minutes]."""

    partition: str
    default: bool
    cpus: int
    mib: int
    gpus: int
    minutes: int | None

    @property
    def gib(self) -> float:
        """Memory of a node [GiB]."""
        return self.mib / 1024


def run_program(*command: str) -> str:
    """Run one of SLURM's programs; returns what it prints.

    Raises:
        BadInput: it is not installed, or the controller does not answer.
    """
    if shutil.which(command[0]) is None:
        raise BadInput(f"{command[0]}: not found, so this is not a host of a SLURM cluster; {HOST_HINT}")
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise BadInput(
            f"{command[0]}: no answer within {ANSWER_TIMEOUT} s; try again, or see: scontrol ping"
        ) from error
    if process.returncode:
        raise BadInput(f"{command[0]}: {process.stderr.strip()}; see: scontrol ping")
    return process.stdout


def nodes() -> list[NodeGroup]:
    """The nodes of the cluster, by `sinfo`."""
    lines = run_program("sinfo", "--noheader", "--exact", "--format=%P|%c|%m|%G|%l").splitlines()
    return [_parse_nodes(*line.split("|")) for line in lines if line.count("|") == 4]


def _parse_nodes(partition: str, cpus: str, mib: str, gres: str, limit: str) -> NodeGroup:
    return NodeGroup(
        partition.rstrip("*"),
        partition.endswith("*"),
        _parse_number(cpus),
        _parse_number(mib),
        _count_gpus(gres),
        minutes(limit),
    )


def _parse_number(text: str) -> int:
    return int(text.rstrip("+") or 0)


def _count_gpus(gres: str) -> int:
    """The number of GPUs of a node: 6 for `gpu:a100:4(S:0-1),gpu:2`."""
    parts = [part.partition("(")[0].split(":") for part in gres.split(",") if part.startswith("gpu")]
    return sum(int(part[-1]) if part[-1].isdecimal() else 1 for part in parts)


def check(cluster: Cluster, kinds: Iterable[tuple[str, str]]) -> None:
    """Refuse requests that no node can meet, before anything is submitted.

    Args:
        cluster: cluster.yaml.
        kinds: (stage, method) of the tasks, for example ("train", "ditto").

    Raises:
        BadInput: an unknown partition, or a request beyond every node of its partition.
    """
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise BadInput(f"{program}: not found, so this is not a host of a SLURM cluster; {HOST_HINT}")
    groups = nodes()
    for stage, method in sorted(set(kinds)):
        _check(cluster.resources(stage, method), groups, {n: cluster.key(n, stage, method) for n in CHECKED_SETTINGS})


def _check(resources: Resources, groups: Sequence[NodeGroup], keys: Mapping[str, str]) -> None:
    candidates = _candidates(resources, groups, keys["partition"])
    names = ", ".join(dict.fromkeys(group.partition for group in candidates))
    message = "{}: {}, but no node of partition {} has more than {}; lower it or name another partition"
    most = {"cpus": max(group.cpus for group in candidates), "gpus": max(group.gpus for group in candidates)}
    for name, limit in most.items():
        if (value := getattr(resources, name)) > limit:
            raise BadInput(message.format(keys[name], value, names, limit))
    if (resources.gib or 0) > (largest := max(group.gib for group in candidates)):
        raise BadInput(message.format(keys["memory"], format_value(resources.memory), names, f"{largest * 1024:.0f}M"))
    if not any(_fits(resources, group) for group in candidates):
        raise BadInput(
            f"{keys['partition']}: no node of {names} has these cpus, memory and gpus together; lower one of them"
        )
    longest = max(float("inf") if group.minutes is None else group.minutes for group in candidates)
    if resources.minutes > longest:
        raise BadInput(
            f"{keys['time']}: {format_value(resources.time)}, but the limit of partition {names} is {longest:.0f} "
            "minutes; lower it (a stage that reaches it is queued again, up to `requeues` times), or name another "
            "partition"
        )


def _candidates(resources: Resources, groups: Sequence[NodeGroup], key: str) -> list[NodeGroup]:
    """The nodes of the partitions that `resources` names, or of the default one."""
    partitions = list(dict.fromkeys(group.partition for group in groups))
    names = resources.partition.split(",") if resources.partition else []
    for name in names:
        choose(name, partitions, key)
    candidates = [group for group in groups if (group.partition in names if names else group.default)]
    if not candidates:
        raise BadInput(f"{key}: missing, and the cluster has no default; name one of: {', '.join(partitions)}")
    return candidates


def _fits(resources: Resources, node: NodeGroup) -> bool:
    enough = resources.cpus <= node.cpus and resources.gpus <= node.gpus
    return enough and (resources.gib or 0) <= node.gib


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
