"""The Prefect flows: DVC's graph, one task per stale stage; training here, on workers, by Ray or by SLURM.

DVC records what is up to date. A task runs `dvc repro -s STAGE`, so that a flow and a plain `dvc repro` write the same
lock file, and each can continue where the other stopped. A worker on another host gets a stage as a work order.
"""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from prefect import State, Task, flow, get_run_logger, runtime, tags, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from fedweave.study import catalogue
from fedweave.study.config import read_yaml
from fedweave.study.spec import PARAMS

from .. import addresses
from ..mlflow_records import synchronise
from ..paths import RESULTS, current_study
from . import dvc_graph, error_lines, host, planning, pool_names, ray_cluster, remote_stages, server_watch, slurm_flow
from .artifacts import FlowProgress, RoundProgress, publish
from .dvc_graph import StaleStage
from .gpus import visible_devices
from .host import FailedStages, PermanentFailure, StageError, fail_in_one_line
from .pool import WorkerLostError, cancel_remote_runs, check_project, run_remotely, server_settings
from .pool_names import Place

# Words of DVC about a stage that did not run -> name of its state in the UI
NOT_RUN = {"didn't change, skipping": "Unchanged", "is cached - skipping run": "Restored"}
HINTS = ("To track the changes", "To enable auto staging", "Use `dvc push`", "git add", "dvc config core.auto")
MAX_REMOTE = 64  # stages on other hosts that a flow waits for at once
CANCEL_TIMEOUT = 120.0  # seconds for stages of an earlier flow to end
RETRY_DELAY = 5  # seconds before a failed stage is tried again


def _round_progress(stage: str) -> RoundProgress:
    return RoundProgress(stage, len(read_yaml(PARAMS).get("seeds") or [0]))


def run_command(command: Sequence[str], env: Mapping[str, str], rounds: RoundProgress | None = None) -> list[str]:
    """Run `command` and log its lines as they come, which also move the bar of `rounds`; returns the last ones."""
    logger, last_lines = get_run_logger(), deque[str](maxlen=20)
    children = host.current_resources().children
    with children.start(command, env) as process:
        assert process.stdout is not None
        for line in map(str.strip, process.stdout):
            # What a child prints while it is ended is no news, such as the traceback of an interrupted exit.
            if line and not line.startswith(HINTS) and not children.has_ended:
                logger.info("%s", line)
                last_lines.append(line)
                if rounds:
                    rounds.update(line)
        code = process.wait()
    if code and children.has_ended:
        raise InterruptedError("ended with its flow")
    if code:
        error = StageError(*error_lines.find_reason(last_lines, code))
        raise PermanentFailure(str(error)) if host.is_permanent(error) else error
    return list(last_lines)


def _should_retry(_task: Task[..., Any], _run: Any, state: State[Any]) -> bool:
    return not host.is_permanent(state.result(raise_on_failure=False))


def _was_lost(_task: Task[..., Any], _run: Any, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), WorkerLostError)


@task(
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_delay_seconds=RETRY_DELAY,
    retry_condition_fn=_should_retry,
)
@fail_in_one_line
def run_stage(stage: str, gpu: bool = False, command: Sequence[str] = ()) -> State[None]:
    """Bring one DVC stage up to date. DVC's locks make this safe with other stages on the same host."""
    with host.current_resources().assign_gpu(gpu) as env:
        if env:
            get_run_logger().info("on GPU %s", *env.values())
        dvc = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", stage]
        last_lines = run_command(command or dvc, env, _round_progress(stage))
    outcomes = (name for words, name in NOT_RUN.items() if any(words in line for line in last_lines))
    return Completed(name=next(outcomes, "Completed"))


@task(task_run_name="{stage} elsewhere", cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_was_lost)
def run_on_worker(stage: str, retries: int = 0) -> None:
    """Let a worker run one stage, and commit its outputs. A stage whose worker was lost is sent again."""
    run_remotely(stage, retries, host.current_resources().children.pause)


@task(
    task_run_name="{stage} by Ray",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_delay_seconds=RETRY_DELAY,
    retry_condition_fn=_should_retry,
)
@fail_in_one_line
def run_on_ray(stage: str, share: float = 0.0, retries: int = 0) -> None:
    """Let Ray run one stage on a part of a GPU, and commit its outputs. Ray sends it again if its host was lost."""
    logger, rounds = get_run_logger(), _round_progress(stage)

    def show(line: str) -> None:
        logger.info("%s", line)
        rounds.update(line)

    ray_cluster.run_remotely(stage, share, retries, host.current_resources().children.pause, show)


@task(task_run_name="study use {study}", cache_policy=NO_CACHE, persist_result=False)
@fail_in_one_line
def use_study(study: str) -> None:
    """Write a study of the catalogue into params.yaml."""
    run_command([sys.executable, "-m", "fedweave.pipelines.commands.main", "study", "use", study], {})


def _stage_task(stage: StaleStage, retries: int, where: Place, share: float) -> tuple[Task[..., Any], dict[str, Any]]:
    """The task that runs `stage`, and its parameters."""
    if where == "workers" and stage.gpu:
        return run_on_worker, {"retries": retries}
    if where == "ray" and planning.runs_on_cluster(stage.name, stage.gpu, read_yaml(PARAMS)):
        return run_on_ray, {"share": share * stage.gpu, "retries": retries}
    return run_stage, {"gpu": stage.gpu}


def _submit(
    runner: Any, stages: Sequence[StaleStage], retries: int, where: Place, share: float
) -> dict[str, PrefectFuture[Any]]:
    """Stage -> its task, in order, each waiting for the stages it needs."""
    futures: dict[str, PrefectFuture[Any]] = {}
    for stage in stages:
        job, parameters = _stage_task(stage, retries, where, share)
        job = job.with_options(name=stage.name, tags=["gpu"] * stage.gpu, retries=retries)
        needed = [futures[name] for name in stage.needs]
        futures[stage.name] = runner.submit(job, parameters={"stage": stage.name, **parameters}, wait_for=needed)
    return futures


def _follow(futures: Mapping[str, PrefectFuture[Any]]) -> tuple[list[str], int]:
    """Move the progress bar until all are done; return which failed and why, and how many did not run."""
    progress = FlowProgress("stages", "stages that are up to date")
    progress.update(0.0 if futures else 1.0)
    failed, not_run = [], 0
    names = {future: name for name, future in futures.items()}
    for count, future in enumerate(as_completed(list(names)), 1):
        future.wait()  # until the state is known here; the server gets it a moment later
        if future.state.is_failed() or future.state.is_crashed():
            error = future.state.result(raise_on_failure=False)  # its text is without the words that Prefect adds
            failed.append(f"{names[future]}: {str(error) or future.state.message}")
        elif not future.state.is_completed():
            not_run += 1
        progress.update(count / len(futures))
    return failed, not_run


def _run_stages(
    stages: Sequence[StaleStage], retries: int, where: Place, share: float, runner: Any
) -> tuple[list[str], int]:
    """Run `stages`; an exception, such as a cancelled flow, ends them here and on other hosts."""
    with runner:
        try:
            return _follow(_submit(runner, stages, retries, where, share))
        except BaseException:
            host.current_resources().children.end()
            if where == "workers":
                cancel_remote_runs()
            raise


def _task_runner(where: Place, parallel: int, devices: Sequence[str]) -> Any:
    """The threads that run the tasks: one for each stage that runs at once, here or on another host."""
    default = MAX_REMOTE if where == "workers" else max(2, len(devices))
    return ThreadPoolTaskRunner[Any](max_workers=MAX_REMOTE if where == "ray" else parallel or default)


def _run_name() -> str:
    return runtime.flow_run.parameters.get("study") or current_study()


@flow(name="reproduce", flow_run_name=_run_name)
@fail_in_one_line
def reproduce(
    study: str = "",
    targets: list[str] | None = None,
    where: Place = "here",
    parallel: Annotated[int, Field(ge=0)] = 0,
    retries: Annotated[int, Field(ge=0)] = 1,
    gpus: list[str] | None = None,
    share: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> str:
    """Bring a study up to date: every stale stage of its DVC graph, as a task.

    Args:
        study: a name of `fedweave list studies`; empty: the one that params.yaml holds.
        targets: only these stages and what they depend on, for example `tune`; empty: all.
        where: training runs `here`, on the `workers` of the project's pool, by `ray` on this host or on the cluster of
            RAY_ADDRESS, or by `slurm` as cluster.yaml says.
        parallel: how many stages run at once; 0: one per GPU, at least two; with workers the pool's limit; with ray the
            cores of this host.
        retries: how often a failed stage is tried again; training continues from its last checkpoint.
        gpus: values of CUDA_VISIBLE_DEVICES, one per training stage; empty: all GPUs of the host.
        share: with ray, the part of a GPU that a training stage takes; 0.25 packs four onto one.
    """
    devices = tuple(gpus) if gpus else visible_devices()
    host.set_resources(devices if where == "here" else ())
    addresses.mlflow_address()  # refuse a wrong port now; the link to MLflow is made at the end only
    if study:
        host.call(use_study, study)
    on_cluster = slurm_flow.run_on_cluster(current_study(), targets or ()) if where == "slurm" else 0
    plan = dvc_graph.plan(targets or ())
    stages = plan.stale
    if where == "workers":
        cancel_remote_runs(CANCEL_TIMEOUT)  # stages of an earlier flow that was killed
    with ray_cluster.connect(parallel, devices) if where == "ray" and stages else nullcontext():
        failed, not_run = _run_stages(stages, retries, where, share, _task_runner(where, parallel, devices))
    finished = current_study()
    synchronise.run_in_subprocess(RESULTS / finished, finished)
    failure = f"{len(failed)} of {len(stages)} stages failed, {not_run} did not run" if failed or not_run else ""
    publish(finished, failure)
    if failure:
        raise FailedStages(f"{failure}: {' | '.join(failed)}")
    summary, board = plan.summary(on_cluster + len(stages)), RESULTS / finished / "leaderboard.txt"
    get_run_logger().info("%s", f"{summary}; leaderboard: {board}" if board.is_file() else summary)
    return summary


@flow(name="stage", flow_run_name="{work_order.stage}")
@fail_in_one_line
def perform(work_order: remote_stages.WorkOrder, retries: Annotated[int, Field(ge=0)] = 0) -> None:
    """Run one stage for a flow on another host, which sends the work order and commits the outputs.

    Args:
        work_order: what the flow `reproduce` says of the stage; not meant to be written by hand.
        retries: how often it is tried again on this host, from its last checkpoint.
    """
    children = host.set_resources(visible_devices()).children
    try:
        with remote_stages.prepare(work_order) as command:
            host.call(run_stage.with_options(retries=retries), work_order.stage, True, command)
        outputs = remote_stages.deliver(work_order)
    except BaseException:
        children.end()
        raise
    create_table_artifact(outputs, key="outputs", description=f"what {work_order.stage} made, in the DVC remote")


def start(study: str, where: Place, targets: list[str] | None = None, **options: Any) -> None:
    """Run `reproduce` for the command line: on the server of `make ui` if it runs, else on a temporary one."""
    if study:
        catalogue.find_file(study)
        dvc_graph.check_groups(targets or ())
    addresses.mlflow_address()  # refuse a wrong port now; the link to MLflow is made at the end only
    server, pool = server_settings(), pool_names.current_pool()
    if where == "workers":
        check_project(server)
    if not study:
        dvc_graph.check(targets or ())  # before a server starts
    try:
        with server_watch.use(server), tags(pool):
            reproduce(study=study, where=where, targets=targets, **options)
    except (StageError, PermanentFailure, FailedStages) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
