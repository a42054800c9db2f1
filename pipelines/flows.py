"""The Prefect flow: DVC's graph, one task per stale stage.

DVC stays the ledger. A task runs `dvc repro -s STAGE`, so this route and a plain `dvc repro` write the same lock
file, and either may go on where the other stopped.
"""

import argparse
import csv
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast
from urllib.request import urlopen
from uuid import UUID

from prefect import State, flow, get_run_logger, runtime, task
from prefect.artifacts import create_link_artifact, create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from ruamel.yaml import YAML

from pipelines.ledger import StaleStage, stale_stages
from pipelines.processes import Children

SERVER = "http://127.0.0.1:4200/api"
MLFLOW = "http://127.0.0.1:5000"
# What DVC says of an outcome that is not a run, and the name of the state that it becomes in the UI.
NOT_RUN = {"didn't change, skipping": "Unchanged", "is cached - skipping run": "Restored"}
HINTS = ("To track the changes", "To enable auto staging", "Use `dvc push`", "git add", "dvc config core.auto")
GPUS: ContextVar["SimpleQueue[str]"] = ContextVar("GPUS")
CHILDREN: ContextVar[Children] = ContextVar("CHILDREN")


def current_study() -> str:
    """The study that params.yaml names."""
    return str(YAML(typ="safe").load(Path("params.yaml"))["study"])


@contextmanager
def _device(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment that gives a stage one GPU of the flow's list to itself; empty without a list."""
    gpus = GPUS.get(None) if wanted else None
    if gpus is None:
        yield {}
        return
    name = gpus.get()
    try:
        yield {"CUDA_VISIBLE_DEVICES": name}
    finally:
        gpus.put(name)


def _run(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Run `command`, its lines going to the run's log as they come; return the last ones."""
    logger, last = get_run_logger(), deque[str](maxlen=20)
    with CHILDREN.get().child(command, env) as process:
        assert process.stdout is not None
        for line in map(str.strip, process.stdout):
            if line and not line.startswith(HINTS):
                logger.info("%s", line)
                last.append(line)
        code = process.wait()
    if code:
        reason = next((line for line in last if "error" in line.lower()), "no error line")
        raise RuntimeError(f"exit code {code}: {reason}")
    return list(last)


@task(task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False)
def run_stage(stage: str, gpu: bool) -> State[None]:
    """Bring one DVC stage up to date. DVC's locks make this safe beside other stages on the same host."""
    with _device(gpu) as env:
        last = _run([sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", stage], env)
    said = (name for words, name in NOT_RUN.items() if any(words in line for line in last))
    return Completed(name=next(said, "Completed"))


@task(task_run_name="study use {study}", cache_policy=NO_CACHE, persist_result=False)
def use_study(study: str) -> None:
    """Write a study of the catalogue into params.yaml."""
    _run([sys.executable, "-m", "pipelines.cli", "study", "use", study], {})


def _submit(runner: Any, stages: Sequence[StaleStage], retries: int) -> list[PrefectFuture[Any]]:
    """One task per stage, in order, each waiting for the stages it needs."""
    futures: dict[str, PrefectFuture[Any]] = {}
    for stage in stages:
        tags = ["gpu"] if stage.gpu else []
        ready = run_stage.with_options(tags=tags, retries=retries, retry_delay_seconds=5)
        parameters = {"stage": stage.name, "gpu": stage.gpu}
        needed = [futures[name] for name in stage.needs]
        futures[stage.name] = runner.submit(ready, parameters, wait_for=needed)
    return list(futures.values())


def _follow(futures: Sequence[PrefectFuture[Any]]) -> tuple[list[str], int]:
    """Move the progress bar until all are done; return why the failed ones failed, and how many did not run."""
    progress = cast(UUID, create_progress_artifact(progress=0.0, key="stages", description="stages that are up to date"))
    failed, idle = [], 0
    for count, future in enumerate(as_completed(list(futures)), 1):
        future.wait()  # the state known here; the server hears of it a moment later
        if future.state.is_failed() or future.state.is_crashed():
            failed.append(str(future.state.message))
        elif not future.state.is_completed():
            idle += 1
        update_progress_artifact(progress, progress=100.0 * count / len(futures))
    return failed, idle


def _publish(study: str) -> None:
    """The leaderboard as a table, and the way to the runs, beside the flow run in the UI."""
    table = Path("results", study, "leaderboard.csv")
    if table.is_file():
        with table.open(encoding="utf-8", newline="") as file:
            create_table_artifact(list(csv.DictReader(file)), key="leaderboard", description=f"study {study}")
    create_link_artifact(MLFLOW, link_text=f"the runs of {study} in MLflow", key="mlflow")


def _lend(gpus: Sequence[str]) -> None:
    """Let the stages of this flow take turns on `gpus`."""
    queue: SimpleQueue[str] = SimpleQueue()
    for name in gpus:
        queue.put(name)
    GPUS.set(queue)


def _run_name() -> str:
    return runtime.flow_run.parameters.get("study") or current_study()


@flow(name="reproduce", flow_run_name=_run_name)
def reproduce(study: str = "", parallel: int = 2, retries: int = 0, gpus: list[str] | None = None, targets: list[str] | None = None) -> str:
    """Bring a study up to date: every stale stage of its DVC graph, as a task.

    Args:
        study: a name of `fedweave list studies`; empty: the one that params.yaml holds.
        parallel: how many stages run at once.
        retries: how often a failed stage is tried again; training goes on from its last checkpoint.
        gpus: values of CUDA_VISIBLE_DEVICES to hand out, one per training stage; empty: every stage sees all.
        targets: only these stages and what they depend on, for example `tune`; empty: all.
    """
    children = Children()
    CHILDREN.set(children)
    if study:
        use_study(study)
    stages = stale_stages(targets or ())
    if gpus:
        _lend(gpus)
    workers: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=max(1, parallel))
    with workers as runner:
        try:
            failed, idle = _follow(_submit(runner, stages, retries)) if stages else ([], 0)
        except BaseException:
            children.end()
            raise
    _publish(current_study())
    if failed or idle:
        raise RuntimeError(f"{len(failed)} of {len(stages)} stages failed, {idle} did not run: {' | '.join(failed)}")
    return f"{len(stages)} stages brought up to date"


def _server_runs() -> bool:
    try:
        with urlopen(f"{SERVER}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def main() -> None:
    """Run the flow from the command line: on the server of `make ui` if it runs, else on a temporary one."""
    parser = argparse.ArgumentParser(description="Reproduce a study, scheduled by Prefect.")
    parser.add_argument("--study", default="", help="default: the one that params.yaml holds")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1, help="stages at once")
    parser.add_argument("--retries", type=int, default=0)
    parser.add_argument("--gpus", nargs="*", help="CUDA devices to hand out, one per training stage")
    options = vars(parser.parse_args())
    server = {PREFECT_API_URL: SERVER} if PREFECT_API_URL.value() is None and _server_runs() else {}
    with temporary_settings(server):
        reproduce(**options)


if __name__ == "__main__":
    main()
