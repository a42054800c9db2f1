"""A study on its way through a cluster: what was submitted, in files under .fedweave/cluster, and how it gets there.

Nothing runs between `submit` and `collect` on the login node: the queue is SLURM's, outcomes are files.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedweave.errors import BadInput
from fedweave.files import write_atomic
from fedweave.pipelines import paths, project
from fedweave.pipelines.scheduling import remote_stages, resources, slurm
from fedweave.pipelines.scheduling.dvc_graph import StaleStage, stale_stages
from fedweave.study.config import read_yaml
from fedweave.study.spec import PARAMS

if TYPE_CHECKING:
    from fedweave.pipelines.scheduling.stage_jobs import StageTask

FOLDER = paths.STATE / "cluster"
OWN = ("params.yaml", ".git", ".dvc", ".venv", ".fedweave")  # of a project, not linked into a snapshot
LARGEST = 1000  # tasks of an array: SLURM's limit is 1001 unless a cluster sets another
SIGNAL = 60  # seconds before the limit of time at which a job is asked to stop


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
        return place(self.study)

    def states(self) -> dict[str, slurm.State]:
        """Job -> what the queue says of it, where it still knows it."""
        return slurm.states(self.executor, {job.job for job in self.jobs})

    def cancel(self) -> list[str]:
        """End the jobs that wait or run; returns their stages."""
        states = self.states()
        active = [job for job in self.jobs if job.job in states and states[job.job].active]
        slurm.cancel(self.executor, [job.job for job in active])
        return [job.task.stage for job in active]

    def save(self) -> None:
        """Write the record."""
        jobs = [{"job": job.job, **asdict(job.task)} for job in self.jobs]
        content = {"study": self.study, "executor": self.executor, "jobs": jobs}
        write_atomic(self.folder / "submission.json", json.dumps(content, indent=1) + "\n")


def place(study: str) -> Path:
    """The folder of a study's submission."""
    return FOLDER / study.replace("/", "__")


def load(study: str) -> Submission | None:
    """The open submission of `study`, or None.

    Raises:
        BadInput: its record is damaged.
    """
    from fedweave.pipelines.scheduling.stage_jobs import StageTask

    file = place(study) / "submission.json"
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
    """The studies with an open submission."""
    records = sorted(FOLDER.glob("*/submission.json"))
    return [str(json.loads(record.read_text(encoding="utf-8"))["study"]) for record in records]


def sent(name: str, gpu: bool, params: Mapping[str, Any]) -> bool:
    """Whether a stage runs on the cluster: training, and a search that has something to do."""
    return gpu or (name.startswith("tune@") and bool(params.get("tune", {}).get("trials")))


def split(stages: Sequence[StaleStage], params: Mapping[str, Any]) -> tuple[list[StaleStage], list[StaleStage]]:
    """The stale stages that come before those of the cluster, and those of the cluster; the rest comes later."""
    before: dict[str, StaleStage] = {}
    away: dict[str, StaleStage] = {}
    for stage in stages:
        if sent(stage.name, stage.gpu, params) and before.keys() | away.keys() >= set(stage.needs):
            away[stage.name] = stage
        elif before.keys() >= set(stage.needs) and not sent(stage.name, stage.gpu, params):
            before[stage.name] = stage
    return list(before.values()), list(away.values())


def submit(cluster: resources.Cluster, targets: Sequence[str] = ()) -> Submission | None:
    """Bring what training needs up to date here, then submit every stale stage of the cluster; None if there is none.

    Args:
        cluster: cluster.yaml.
        targets: only these stages and what they depend on; default: all.

    Raises:
        BadInput: the study is on its way already, or asks for what the cluster does not have.
        RuntimeError: a stage that runs here failed.
    """
    params = read_yaml(PARAMS)
    study = str(params["study"])
    check_open(study)
    before, away = split(stale_stages(targets), params)
    kinds = {stage.name: kind(stage.name, params) for stage in away}
    if cluster.executor == "slurm" and away:
        slurm.check(cluster, kinds.values())
    if before:
        _reproduce([stage.name for stage in before])
        away = split(stale_stages(targets), params)[1]
    if not away:
        return None
    shutil.rmtree(place(study), ignore_errors=True)
    tasks = describe(away, study, cluster.retries)
    from fedweave.pipelines.scheduling import batches

    needs = {stage.name: stage.needs for stage in away}
    numbers = batches.send(cluster, tasks, needs, kinds, place(study) / "jobs")
    submission = Submission(study, cluster.executor, tuple(Job(tasks[name], job) for name, job in numbers.items()))
    submission.save()
    return submission


def check_open(study: str) -> None:
    """Refuse a second submission beside an open one.

    Raises:
        BadInput: the study has one.
    """
    if open_one := load(study):
        states = open_one.states()
        active = sum(job.job in states and states[job.job].active for job in open_one.jobs)
        way = f"{active} wait or run: let them end, or fedweave cluster cancel {study}" if active else "all have ended"
        raise BadInput(
            f"{study}: {len(open_one.jobs)} stages are submitted and not collected, {way}; "
            f"then: fedweave cluster collect {study}"
        )


def kind(name: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """(`train`, `ditto`) for a stage of params.yaml's study; the method is empty where a stage has several or none."""
    stage, _, key = name.partition("@")
    block = (params.get("ablate") or {}).get(key, {}) if stage == "ablate" else {}
    run = (params.get("runs") or {}).get(block.get("run", key), {})
    return stage, str(run.get("method", "")) if stage != "tune" else ""


def _reproduce(names: Sequence[str]) -> None:
    """Run stages here, by DVC, without what they depend on and is current."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", *names]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stdout.splitlines()
        line = next((line for line in lines if line.lower().startswith("error: ")), done.stdout[-300:])
        raise BadInput(f"{line[7:]}; a stage before training failed, nothing was submitted; run it alone: dvc repro")


def describe(stages: Sequence[StaleStage], study: str, retries: int) -> dict[str, "StageTask"]:
    """The tasks for `stages`, which run in a snapshot of the parameters of now.

    Raises:
        BadInput: a stage writes a file at the top of the project, which a snapshot would keep for itself.
    """
    from fedweave.pipelines.scheduling.stage_jobs import StageTask, digest

    folder, code, results = snapshot(place(study) / "project"), remote_stages.code_digest(), place(study) / "outcomes"
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
                {path: None if _below(path, made) else digest(Path(path)) for path in inputs(graph[name])},
                tuple(map(str, paths_of)), definition(graph[name]), code, str(folder),
                str(results.absolute() / f"{name}.json"), retries,
            )
            for name, paths_of in outputs.items()
        }  # fmt: skip


def inputs(stage: Any) -> list[str]:
    """The files and folders that a stage depends on."""
    return [os.path.normpath(str(dep.def_path)) for dep in stage.deps if not _is_params(dep)]


def definition(stage: Any) -> str:
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


def _below(path: str, outputs: Iterable[Path]) -> bool:
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


def wait(submission: Submission, seconds: float) -> None:
    """Return when no job of it is active any more; looks every `seconds`."""
    while any(state.active for state in submission.states().values()):
        time.sleep(seconds)


def close(submission: Submission, open_jobs: Sequence[Job]) -> None:
    """Keep `open_jobs` only; without any, the record goes, and the logs stay."""
    if open_jobs:
        replace(submission, jobs=tuple(open_jobs)).save()
        return
    (submission.folder / "submission.json").unlink(missing_ok=True)
    shutil.rmtree(submission.folder / "project", ignore_errors=True)


def by_resources(
    tasks: Mapping[str, "StageTask"], needs: Mapping[str, Sequence[str]], asked: Mapping[str, str]
) -> list[list[str]]:
    """Stages in arrays: those of one array ask for the same and wait for the same; arrays come after what they need."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name in needs:
        if name in tasks:
            groups[asked[name], tuple(sorted(needs[name]))].append(name)
    return [group[i : i + LARGEST] for group in groups.values() for i in range(0, len(group), LARGEST)]
