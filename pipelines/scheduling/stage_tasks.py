"""Stages of DVC as tasks for a cluster: digests of their inputs, and a snapshot of their parameters."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput
from fedweave.study.spec import PARAMS

from .. import paths, project
from . import remote_stages
from .dvc_graph import StaleStage

if TYPE_CHECKING:
    from .stage_jobs import StageTask

NOT_LINKED = (PARAMS.name, ".git", ".dvc", ".venv", paths.STATE.name)  # entries that a snapshot does not link


def create_tasks(stages: Sequence[StaleStage], folder: Path, retries: int) -> dict[str, "StageTask"]:
    """Stage -> its task, for `stages`, which run in a snapshot of the current parameters.

    Args:
        folder: of the submission, for the snapshot and the outcomes.
        retries: how often a failure is tried again.

    Raises:
        BadInput: a stage writes a file at the top of the project: in a snapshot, it would not reach the project.
    """
    from .stage_jobs import StageTask, digest

    project_folder, code, outcomes = snapshot(folder / "project"), remote_stages.code_digest(), folder / "outcomes"
    with project.repository(wait=True) as repo:
        graph = {stage.addressing: stage for stage in repo.index.stages}
        outputs = {stage.name: remote_stages.outputs_of(graph[stage.name]) for stage in stages}
        written = [path for paths_of in outputs.values() for path in paths_of]
        for path in written:
            if len(path.parts) == 1:
                raise BadInput(f"dvc.yaml: outs: {str(path)!r} is not inside of a folder; write it below results/")
        return {
            name: StageTask(
                name,
                str(graph[name].cmd),
                {path: None if _overlaps(path, written) else digest(Path(path)) for path in inputs(graph[name])},
                tuple(map(str, paths_of)),
                definition_digest(graph[name]),
                code,
                str(project_folder),
                str(outcomes.absolute() / f"{name}.json"),
                retries,
            )
            for name, paths_of in outputs.items()
        }


def inputs(stage: Any) -> list[str]:
    """The files and folders that a stage depends on."""
    return [os.path.normpath(str(dep.def_path)) for dep in stage.deps if not _is_params(dep)]


def definition_digest(stage: Any) -> str:
    """A digest of the command of a stage and its current parameters in params.yaml."""
    return remote_stages.definition_digest(stage, [dep for dep in stage.deps if _is_params(dep)])


def _is_params(dependency: Any) -> bool:
    from dvc.dependency import ParamsDependency

    return isinstance(dependency, ParamsDependency)


def _overlaps(path: str, outputs: Iterable[Path]) -> bool:
    """Whether `path` is one of `outputs`, is inside of one, or contains one."""
    own = Path(path)
    return any(own.is_relative_to(output) or output.is_relative_to(own) for output in outputs)


def snapshot(folder: Path) -> Path:
    """Make `folder` a copy of the project with its own params.yaml and links to other entries; its absolute path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "results"):
        Path(name).mkdir(exist_ok=True)
    for entry in Path().absolute().iterdir():
        if entry.name not in NOT_LINKED:
            (folder / entry.name).symlink_to(entry)
    (folder / paths.STATE).symlink_to(paths.STATE.absolute())
    shutil.copyfile(PARAMS, folder / PARAMS)
    return folder.absolute()
