"""The Prefect server of a flow, and training on the workers of the project's pool there."""

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from fedweave.pipelines import addresses
from fedweave.pipelines.scheduling import pool_names, pool_owner, remote_stages

Place = Literal["here", "workers", "ray", "slurm"]
POLL = 2.0  # seconds between two looks at a stage elsewhere


class WorkerLostError(RuntimeError):
    """A stage whose worker ended without a word."""


def server_settings() -> dict[Any, str]:
    """Settings by which Prefect finds the server of `make ui`, if it runs and no other is named, which must answer.

    Raises:
        BadInput: the one that is named does not.
    """
    if named := PREFECT_API_URL.value():
        addresses.check_prefect(named, ", or unset PREFECT_API_URL for a temporary one")
        return {}
    here = addresses.prefect_api()
    return {} if addresses.connection_error(here) else {PREFECT_API_URL: here}


def check_project(server: dict[Any, str]) -> None:
    """Refuse to send stages to the workers of another project, at the server of these settings.

    Raises:
        BadInput: the pool is another project's, or nobody's.
    """
    with temporary_settings(server), get_client(sync_client=True) as client:
        pool_owner.check_stages(client, pool_names.current_pool(), bool(os.environ.get(pool_names.VARIABLE)))


def run_remotely(stage: str, retries: int, wait: Callable[[float], None]) -> None:
    """Let a worker of the pool run `stage`, and commit what it made; `wait` may end the waiting by raising.

    Raises:
        Lost: its worker ended in mid-run.
        RuntimeError: the stage failed.
    """
    with remote_stages.issue(stage) as work_order:
        parameters = {"work_order": asdict(work_order), "retries": retries}
        deployment = f"stage/{pool_names.deployment('stage', pool_names.current_pool())}"
        run = cast(
            FlowRun, run_deployment(deployment, parameters=parameters, flow_run_name=stage, timeout=0, tags=[tag()])
        )
        with get_client(sync_client=True) as client:
            while run.state is None or not run.state.is_final():
                wait(POLL)
                run = client.read_flow_run(run.id)
        if not run.state.is_completed():
            raise (WorkerLostError if run.state.is_crashed() else RuntimeError)(
                f"{run.name}: {run.state.name}: {run.state.message}"
            )
        remote_stages.accept(work_order, _read_outputs(run))


def cancel_remote_runs(patience: float = 0.0) -> None:
    """Cancel every stage that this folder's flows sent out and that still runs; wait at most `patience` seconds for its
    end.

    Raises:
        RuntimeError: one is still there.
    """
    going = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
    end = time.monotonic() + patience
    with get_client(sync_client=True) as client:
        for run in _find_runs(client, going):
            client.set_flow_run_state(run.id, Cancelling())
        while patience and (left := _find_runs(client, [*going, StateType.CANCELLING])):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{left[0].name}: still runs for an earlier flow; "
                    f"cancel its flow run: prefect flow-run cancel {left[0].id}"
                )
            time.sleep(POLL)


def _find_runs(client: SyncPrefectClient, states: Sequence[StateType]) -> list[FlowRun]:
    filters = {"tags": {"all_": [tag()]}, "state": {"type": {"any_": list(states)}}}
    return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(filters))


def tag() -> str:
    """What marks the runs of this folder's flows."""
    return f"writer:{socket.gethostname()}:{Path.cwd()}"


def _read_outputs(run: FlowRun) -> list[dict[str, str]]:
    """The outputs that a worker reported, to be fetched; none if it worked in this folder."""
    with get_client(sync_client=True) as client:
        filters = ArtifactFilter.model_validate({"flow_run_id": {"any_": [run.id]}, "key": {"any_": ["outputs"]}})
        artifacts = client.read_artifacts(artifact_filter=filters)
    return [entry for artifact in artifacts for entry in json.loads(str(artifact.data))]
