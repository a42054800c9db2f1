"""Planning of a submission: which stages run on the cluster, and which of them form an array job."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .dvc_graph import StaleStage

MAX_ARRAY_SIZE = 1000  # tasks of an array: SLURM's limit is 1001 unless a cluster sets another


def runs_on_cluster(name: str, gpu: bool, params: Mapping[str, Any]) -> bool:
    """Whether a stage runs on the cluster: training, and searches of a study with trials."""
    return gpu or (name.startswith("tune@") and bool(params.get("tune", {}).get("trials")))


def split(stages: Sequence[StaleStage], params: Mapping[str, Any]) -> tuple[list[StaleStage], list[StaleStage]]:
    """(stale stages to run before those of the cluster, stages of the cluster); all other stages run afterwards."""
    before: dict[str, StaleStage] = {}
    on_cluster: dict[str, StaleStage] = {}
    for stage in stages:
        if runs_on_cluster(stage.name, stage.gpu, params) and before.keys() | on_cluster.keys() >= set(stage.needs):
            on_cluster[stage.name] = stage
        elif before.keys() >= set(stage.needs) and not runs_on_cluster(stage.name, stage.gpu, params):
            before[stage.name] = stage
    return list(before.values()), list(on_cluster.values())


def kind(name: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, method) of a stage, such as ("train", "ditto"); the method is empty if the stage has several or none."""
    stage, _, key = name.partition("@")
    block = (params.get("ablate") or {}).get(key, {}) if stage == "ablate" else {}
    run = (params.get("runs") or {}).get(block.get("run", key), {})
    return stage, str(run.get("method", "")) if stage != "tune" else ""


def group_by_resources(
    tasks: Mapping[str, Any], needs: Mapping[str, Sequence[str]], resources: Mapping[str, str]
) -> list[list[str]]:
    """Groups of stages that form array jobs, each after the groups that it needs.

    The stages of a group request the same `resources` and wait for the same stages.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name in needs:
        if name in tasks:
            groups[resources[name], tuple(sorted(needs[name]))].append(name)
    return [group[i : i + MAX_ARRAY_SIZE] for group in groups.values() for i in range(0, len(group), MAX_ARRAY_SIZE)]
