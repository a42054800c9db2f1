"""`fedweave deploy` and `fedweave worker`: the pool of workers for training, once per server and once per host."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from fedweave.errors import BadInput
from fedweave.pipelines import addresses
from fedweave.pipelines.processes import search_path
from fedweave.pipelines.project import PLACE
from fedweave.pipelines.scheduling import gpus, notifications

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL, WRITER, STAGES = "gpu-pool", "writer", "stages"
HEARTBEAT = 30  # seconds between two signs of life of a run
LOST = "no sign of life for {} seconds: its worker was lost"
Role = Literal["both", "writer", "stages"]


def deploy(
    slots: Annotated[
        int, typer.Option(min=1, help="training stages at once, over all hosts: how many GPUs there are")
    ] = 1,
    webhook: Annotated[
        str,
        typer.Option(
            envvar="FEDWEAVE_WEBHOOK",
            help="address that gets a message when a flow has completed or failed; it stays until another is given",
        ),
    ] = "",
) -> None:
    """Register this project at the Prefect server: its pool and queues, their limits, the deployments of prefect.yaml,
    and who hears of the end of a flow.
    """
    if webhook:
        notifications.check(webhook)
    os.environ["PREFECT_API_URL"] = _server()
    os.environ.pop(PLACE, None)  # it stays a variable in the deployments
    register(slots)
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise BadInput("prefect.yaml: could not be deployed; see above")
    if webhook:
        notifications.register(webhook)
    _report(slots, bool(webhook))


def _report(slots: int, notifies: bool) -> None:
    """Say what was registered, and what to do next."""
    from fedweave.study.config import read_yaml

    names = ", ".join(entry["name"] for entry in read_yaml(Path("prefect.yaml"))["deployments"])
    count = "one training stage" if slots == 1 else f"{slots} training stages"
    print(f"deployments {names}; pool {POOL}: {count} at once")
    if notifies:
        print(f"a message to the webhook when a flow has ended: block webhook/{notifications.BLOCK} in Prefect's UI")
    print("next, on every host: fedweave worker")
    print("then: prefect deployment run reproduce/reproduce")


def register(slots: int) -> None:
    """Create or update the pool, its queues with their limits, and the automation that watches for lost workers."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        _pool(client)
        _queue(client, WRITER, 1)  # one folder holds dvc.lock
        _queue(client, STAGES, slots)
    _watch()


def worker(
    role: Annotated[
        Role, typer.Option(help="stages: training for a writer elsewhere; writer: flows; both: all on one host")
    ] = "both",
    limit: Annotated[
        int, typer.Option(min=0, help="training stages at once on this host; 0: one per GPU, at least one")
    ] = 0,
    name: Annotated[str, typer.Option(help="what Prefect calls this worker; default: the host and the role")] = "",
    health_port: Annotated[int, typer.Option(min=0, help="a port of loopback that answers /health; 0: none")] = 0,
) -> NoReturn:
    """Work for the Prefect server in this folder, until Ctrl-C or SIGTERM: flows that read and write dvc.lock here, or
    single stages.
    """
    slots = limit or max(1, len(gpus.visible()))
    most = {"writer": 1, "stages": slots, "both": slots + 1}[role]
    queues = {"writer": (WRITER,), "stages": (STAGES,), "both": (WRITER, STAGES)}[role]
    command = [sys.executable, *f"-m prefect worker start --pool {POOL} --type process --limit {most}".split()]
    command += ["--name", name or f"{socket.gethostname()}-{role}"]
    command += [word for queue in queues for word in ("--work-queue", queue)]
    command += ["--with-healthcheck"] if health_port else []
    own = {
        "PREFECT_API_URL": _server(),
        PLACE: str(Path.cwd()),
        "PATH": search_path(),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT),
    }
    health = (
        {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(health_port)}
        if health_port
        else {}
    )
    # Prefect ends a worker by a SIGINT to itself, and a shell that starts it in the background lets SIGINT be ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execve(sys.executable, command, {**os.environ, **own, **health})


def _server() -> str:
    """The server's address: PREFECT_API_URL, or the one of `make ui`.

    Raises:
        BadInput: nobody answers there.
    """
    return addresses.check_prefect(os.environ.get("PREFECT_API_URL") or addresses.prefect_api())


def _pool(client: "SyncPrefectClient") -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    about = f"training, one run per GPU; flows in queue {WRITER}, their stages in {STAGES}"
    client.create_work_pool(
        WorkPoolCreate(name=POOL, type="process", description=about, base_job_template=template), overwrite=True
    )


def _queue(client: "SyncPrefectClient", name: str, limit: int) -> None:
    from prefect.exceptions import ObjectAlreadyExists

    try:
        client.create_work_queue(name, concurrency_limit=limit, work_pool_name=POOL)
    except ObjectAlreadyExists:
        client.update_work_queue(client.read_work_queue_by_name(name, POOL).id, concurrency_limit=limit)


def _watch() -> None:
    """Let the server call a run crashed when its heartbeat stops, so that a lost worker holds no slot."""
    from datetime import timedelta

    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture

    beat, patience = "prefect.flow-run.heartbeat", 4 * HEARTBEAT
    ends = {
        f"prefect.flow-run.{state}"
        for state in ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut", "AwaitingRetry")
    }
    trigger = EventTrigger(
        after={beat}, expect={beat, *ends}, match={"prefect.resource.id": ["prefect.flow-run.*"]},
        # The workers of other pools may send heartbeats less often.
        match_related={"prefect.resource.role": "work-pool", "prefect.resource.name": POOL},
        for_each={"prefect.resource.id"}, posture=Posture.Proactive, threshold=1, within=timedelta(seconds=patience),
    )  # fmt: skip
    action = ChangeFlowRunState(name="Lost", state=StateType.CRASHED, message=LOST.format(patience), force=False)
    automation = Automation(
        name="fedweave: lost workers", description=LOST.format(patience), trigger=trigger, actions=[action]
    )
    notifications.save(automation)
