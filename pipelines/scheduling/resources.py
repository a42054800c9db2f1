"""The resources that a job of a cluster requests: cluster.yaml, with blocks for all stages, for kinds and for methods.

default: {cpus: 2, memory: 4G, time: "1:00:00"}
stages:
  train: {gpus: 1, partition: gpu, flags: {account: vision}}
methods:
  shn: {memory: 16G, time: "4:00:00"}
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from fedweave.errors import BadInput, choose, format_value
from fedweave.settings import AtLeast, AtMost, Between
from fedweave.study.config import construct, read_yaml

FILE = Path("cluster.yaml")
STAGES = ("tune", "train", "ablate")  # which run on a cluster
SIZE = re.compile(r"(\d+(?:\.\d+)?)([MGT])B?", re.IGNORECASE)
GIB = {"M": 1 / 1024, "G": 1.0, "T": 1024.0}
DURATION = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
# Flags of sbatch that fedweave sets, or that would change where a job writes and how it ends.
RESERVED_FLAGS = (
    "gpus_per_node",
    "cpus_per_task",
    "mem",
    "mem_per_cpu",
    "mem_per_gpu",
    "time",
    "partition",
    "nodes",
    "ntasks",
    "array",
    "dependency",
    "requeue",
    "no_requeue",
    "signal",
    "output",
    "error",
    "input",
    "open_mode",
    "job_name",
    "wrap",
)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one task of an array job; the cluster decides about those that are null."""

    gpus: Annotated[int, Between(0, 64), "GPUs"] = 0
    cpus: Annotated[int, Between(1, 1024), "cores"] = 1
    memory: Annotated[str | None, "such as 500M, 16G or 1T"] = None
    time: Annotated[str | int, "days-hours:minutes:seconds, as sbatch takes it, or a number of minutes"] = 60
    partition: Annotated[str | None, "queue of the cluster"] = None
    flags: Annotated[dict[str, Any], "further flags of sbatch by their long names, such as account"] = field(
        default_factory=dict
    )

    @property
    def gib(self) -> float | None:
        """Memory [GiB], or None."""
        size = SIZE.fullmatch(self.memory or "")
        return float(size[1]) * GIB[size[2].upper()] if size else None

    @property
    def mem(self) -> str | None:
        """Memory as sbatch takes it, or None."""
        return f"{max(1, round(self.gib * 1024))}M" if self.gib else None

    @property
    def sbatch_flags(self) -> dict[str, Any]:
        """`flags` as sbatch spells them, without those that a block has set to null."""
        return {name.replace("_", "-"): value for name, value in self.flags.items() if value is not None}

    @property
    def minutes(self) -> int:
        """The limit of time, in whole minutes."""
        return minutes(self.time) or 0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The content of cluster.yaml."""

    executor: Annotated[Literal["slurm", "local"], "local: one process of this machine, for a trial"] = "slurm"
    parallel: Annotated[int, Between(1, 100_000), "tasks of an array that run at once"] = 256
    requeues: Annotated[int, Between(0, 1000), "how often a task that reaches its time limit is queued again"] = 3
    retries: Annotated[int, AtLeast(0), AtMost(100), "how often a stage that fails is tried again"] = 1
    setup: Annotated[list[str], "lines of shell that a job runs first, such as module load cuda"] = field(
        default_factory=list
    )
    default: Annotated[dict[str, Any], "resources of every stage"] = field(default_factory=dict)
    stages: Annotated[dict[str, Any], "stage -> resources that differ"] = field(default_factory=dict)
    methods: Annotated[dict[str, Any], "method -> resources of its training and ablations that differ"] = field(
        default_factory=dict
    )

    def resources(self, stage: str, method: str = "") -> Resources:
        """The resources that a task of `stage` (such as `train`), of a run with `method`, requests."""
        merged: dict[str, Any] = {}
        for block in (self.default, self.stages.get(stage) or {}, self.methods.get(method) or {}):
            merged = {**merged, **block, "flags": {**merged.get("flags", {}), **block.get("flags", {})}}
        return construct(Resources, merged, str(FILE))


def load(file: Path = FILE) -> Cluster:
    """The cluster.yaml of this folder; the defaults where there is none.

    Raises:
        BadInput: an unknown key, stage or method, or a value that is not valid.
    """
    if not file.is_file():
        return Cluster()
    cluster = construct(Cluster, read_yaml(file, empty={}), str(file))
    for name in cluster.stages:
        choose(name, STAGES, f"{file}: stages")
    if cluster.methods:
        from fedweave.methods import METHODS  # imported here, because it loads torch

        for name in cluster.methods:
            choose(name, METHODS, f"{file}: methods")
    blocks = {"default": cluster.default}
    for group in ("stages", "methods"):
        blocks |= {f"{group}.{name}": block for name, block in getattr(cluster, group).items()}
    for key, block in blocks.items():
        _check(construct(Resources, block, f"{file}: {key}"), f"{file}: {key}")
    return cluster


def minutes(text: str | int) -> int | None:
    """A duration in SLURM's forms as whole minutes, rounded up; None for another text.

    `90`, `90:00` and `1:30:00` are 90 minutes; `1-12`, `1-12:00` and `1-12:00:00` are a day and a half.
    """
    if isinstance(text, int):
        return text
    match = DURATION.fullmatch(text)
    if match is None:
        return None
    numbers = [int(part) for part in match["rest"].split(":")]
    if match["days"]:
        hours, mins, seconds = [*numbers, 0, 0][:3]
        return int(match["days"]) * 1440 + hours * 60 + mins + (seconds > 0)
    hours, mins, seconds = numbers if len(numbers) == 3 else [0, *numbers, 0][:3]
    return hours * 60 + mins + (seconds > 0)


def _check(resources: Resources, key: str) -> None:
    """Refuse a memory that is not a size, a time that is not a duration, and reserved flags."""
    if resources.memory is not None and not resources.gib:
        raise BadInput(f"{key}.memory: {format_value(resources.memory)} is not a size; write for example 500M or 16G")
    if not resources.minutes > 0:
        raise BadInput(
            f'{key}.time: {format_value(resources.time)} is not a duration; write for example "2:30:00" or 150'
        )
    for name in map(str, resources.flags):
        if name.replace("-", "_") in RESERVED_FLAGS or not name[:1].isalpha():
            raise BadInput(
                f"{key}.flags.{name}: is set by fedweave, or begins with no letter; "
                f"flags are long names of sbatch without dashes, other than {', '.join(RESERVED_FLAGS)}"
            )
