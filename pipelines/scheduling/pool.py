"""The Prefect server of a flow, and training on the workers of the project's pool there."""

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from .. import addresses
from . import pool_names, pool_owner, remote_stages, server_client

POLL = 2.0  # seconds between two queries about a stage on a worker


class WorkerLostError(RuntimeError):
    """The worker of a stage ended without reporting a result."""


def server_settings() -> dict[Any, str]:
    """Settings for the server of `make ui`, if it runs; none if PREFECT_API_URL names a server, which must answer.

    Raises:
        BadInput: the server of PREFECT_API_URL does not answer, or refuses the password.
    """
    if address := PREFECT_API_URL.value():
        addresses.check_prefect(address, ", or unset PREFECT_API_URL for a temporary one")
        with server_client.connect() as client:
            client.read_flows(limit=1)
        return {}
    local = addresses.prefect_api()
    return {} if addresses.connection_error(local) else {PREFECT_API_URL: local}


def check_project(server: dict[Any, str]) -> None:
    """Refuse to send stages to the workers of another project at the server with the settings `server`."""
    with temporary_settings(server), server_client.connect() as client:
        pool_owner.check_stages(client, pool_names.current_pool(), bool(os.environ.get(pool_names.VARIABLE)))


def run_remotely(stage: str, retries: int, wait: Callable[[float], None]) -> None:
    """Let a worker of the pool run `stage`, and commit its outputs; `wait` may raise to stop the waiting.

    Raises:
        WorkerLostError: its worker ended while the stage ran.
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
                f"{run.state.name}: {run.state.message}"
            )
        remote_stages.accept(work_order, _read_outputs(run))


def cancel_remote_runs(timeout: float = 0.0) -> None:
    """Cancel every stage that flows of this folder sent to workers and that still runs.

    Args:
        timeout: seconds to wait for their ends; 0: do not wait.

    Raises:
        RuntimeError: a stage still runs after `timeout`.
    """
    active = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
    deadline = time.monotonic() + timeout
    with get_client(sync_client=True) as client:
        for run in _find_runs(client, active):
            client.set_flow_run_state(run.id, Cancelling())
        while timeout and (remaining := _find_runs(client, [*active, StateType.CANCELLING])):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{remaining[0].name}: still runs for an earlier flow; "
                    f"cancel its flow run: prefect flow-run cancel {remaining[0].id}"
                )
            time.sleep(POLL)


def _find_runs(client: SyncPrefectClient, states: Sequence[StateType]) -> list[FlowRun]:
    filters = {"tags": {"all_": [tag()]}, "state": {"type": {"any_": list(states)}}}
    return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(filters))


def tag() -> str:
    """The tag of the runs that flows of this folder start on workers."""
    return f"writer:{socket.gethostname()}:{Path.cwd()}"


def _read_outputs(run: FlowRun) -> list[dict[str, str]]:
    """The outputs that a worker reported, to be fetched; none if it worked in this folder."""
    with get_client(sync_client=True) as client:
        filters = ArtifactFilter.model_validate({"flow_run_id": {"any_": [run.id]}, "key": {"any_": ["outputs"]}})
        artifacts = client.read_artifacts(artifact_filter=filters)
    return [entry for artifact in artifacts for entry in json.loads(str(artifact.data))]
