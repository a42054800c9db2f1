"""Which stages of a study go to a cluster, what each asks for, and which of them form an array."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fedweave.pipelines.scheduling.dvc_graph import StaleStage

LARGEST = 1000  # tasks of an array: SLURM's limit is 1001 unless a cluster sets another


def runs_on_cluster(name: str, gpu: bool, params: Mapping[str, Any]) -> bool:
    """Whether a stage runs on the cluster: training, and a search that has something to do."""
    return gpu or (name.startswith("tune@") and bool(params.get("tune", {}).get("trials")))


def split(stages: Sequence[StaleStage], params: Mapping[str, Any]) -> tuple[list[StaleStage], list[StaleStage]]:
    """The stale stages that come before those of the cluster, and those of the cluster; the rest comes later."""
    before: dict[str, StaleStage] = {}
    away: dict[str, StaleStage] = {}
    for stage in stages:
        if runs_on_cluster(stage.name, stage.gpu, params) and before.keys() | away.keys() >= set(stage.needs):
            away[stage.name] = stage
        elif before.keys() >= set(stage.needs) and not runs_on_cluster(stage.name, stage.gpu, params):
            before[stage.name] = stage
    return list(before.values()), list(away.values())


def kind(name: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """(`train`, `ditto`) for a stage of params.yaml's study; the method is empty where a stage has several or none."""
    stage, _, key = name.partition("@")
    block = (params.get("ablate") or {}).get(key, {}) if stage == "ablate" else {}
    run = (params.get("runs") or {}).get(block.get("run", key), {})
    return stage, str(run.get("method", "")) if stage != "tune" else ""


def group_by_resources(
    tasks: Mapping[str, Any], needs: Mapping[str, Sequence[str]], asked: Mapping[str, str]
) -> list[list[str]]:
    """Stages in arrays: those of one array ask for the same and wait for the same; arrays come after what they need."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name in needs:
        if name in tasks:
            groups[asked[name], tuple(sorted(needs[name]))].append(name)
    return [group[i : i + LARGEST] for group in groups.values() for i in range(0, len(group), LARGEST)]
