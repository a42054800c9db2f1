"""Stages of DVC as tasks for a cluster: digests of what they read, and a snapshot of the parameters they run with."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput
from fedweave.pipelines import paths, project
from fedweave.pipelines.scheduling import remote_stages
from fedweave.pipelines.scheduling.dvc_graph import StaleStage
from fedweave.study.spec import PARAMS

if TYPE_CHECKING:
    from fedweave.pipelines.scheduling.stage_jobs import StageTask

OWN = ("params.yaml", ".git", ".dvc", ".venv", ".fedweave")  # of a project, not linked into a snapshot


def create_tasks(stages: Sequence[StaleStage], place: Path, retries: int) -> dict[str, "StageTask"]:
    """The tasks for `stages`, which run in a snapshot of the parameters of now.

    Args:
        place: folder of the submission, for the snapshot and the outcomes.
        retries: how often a failure is tried again.

    Raises:
        BadInput: a stage writes a file at the top of the project, which a snapshot would keep for itself.
    """
    from fedweave.pipelines.scheduling.stage_jobs import StageTask, digest

    folder, code, results = snapshot(place / "project"), remote_stages.code_digest(), place / "outcomes"
    with project.repository(wait=True) as repo:
        graph = {stage.addressing: stage for stage in repo.index.stages}
        outputs = {stage.name: remote_stages.outputs_of(graph[stage.name]) for stage in stages}
        made = [path for paths_of in outputs.values() for path in paths_of]
        for path in made:
            if len(path.parts) == 1:
                raise BadInput(f"dvc.yaml: outs: {str(path)!r} is not inside of a folder; write it below results/")
        return {
            name: StageTask(
                name, str(graph[name].cmd),
                {path: None if _overlaps(path, made) else digest(Path(path)) for path in inputs(graph[name])},
                tuple(map(str, paths_of)), definition_digest(graph[name]), code, str(folder),
                str(results.absolute() / f"{name}.json"), retries,
            )
            for name, paths_of in outputs.items()
        }  # fmt: skip


def inputs(stage: Any) -> list[str]:
    """The files and folders that a stage depends on."""
    return [os.path.normpath(str(dep.def_path)) for dep in stage.deps if not _is_params(dep)]


def definition_digest(stage: Any) -> str:
    """A digest of the command of a stage and its parameters, as params.yaml has them now.

    Raises:
        BadInput: a parameter is missing.
    """
    own = [dependency for dependency in stage.deps if _is_params(dependency)]
    for dependency in own:
        dependency.save()
    content = [str(stage.cmd), *([str(dep.def_path), dep.hash_info.value] for dep in own)]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def _is_params(dependency: Any) -> bool:
    from dvc.dependency import ParamsDependency

    return isinstance(dependency, ParamsDependency)


def _overlaps(path: str, outputs: Iterable[Path]) -> bool:
    """Whether `path` is one of `outputs`, inside of one, or around one."""
    mine = Path(path)
    return any(mine.is_relative_to(output) or output.is_relative_to(mine) for output in outputs)


def snapshot(folder: Path) -> Path:
    """A folder that looks like the project and keeps the params.yaml of now: other entries are links; absolute."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "results"):
        Path(name).mkdir(exist_ok=True)
    for entry in Path().absolute().iterdir():
        if entry.name not in OWN:
            (folder / entry.name).symlink_to(entry)
    (folder / paths.STATE).symlink_to(paths.STATE.absolute())
    shutil.copyfile(PARAMS, folder / PARAMS)
    return folder.absolute()
